"""HTTP/1.1 over asyncio protocols, uvloop and httptools; no framework on this path."""
