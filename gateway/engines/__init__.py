"""How engines differ, as the gateway sees them."""
