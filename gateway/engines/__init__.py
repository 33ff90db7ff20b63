"""How engines differ, as the gateway sees them: one file an engine, listed in `warmroute.config.engines`."""
