"""Which workers a pool has, by discovery and by the index."""
