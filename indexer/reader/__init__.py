"""The reading side: the in-memory mirror of a pool and the followers that keep it current."""
