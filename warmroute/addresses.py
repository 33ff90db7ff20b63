"""host:port, written one way everywhere: workers are joined by it."""

from __future__ import annotations


def address(host: str, port: int) -> str:
    """host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
