"""What the public port offers: its paths, the edits of bodies, and who answers what."""
