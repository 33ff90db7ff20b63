"""One request's way: which paths there are, whose a request is, what changes in it, who answers, what it used."""
