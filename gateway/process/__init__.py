"""The gateway as a process, or as several that share a port."""
