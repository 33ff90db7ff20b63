"""host:port, written one way everywhere: workers are joined by it."""

from __future__ import annotations

import asyncio
import socket


def address(host: str, port: int) -> str:
    """host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(name: str, seconds: float) -> list[str]:
    """All addresses behind host:port, as host:port. Raises OSError, or TimeoutError after so many seconds."""
    host, _, port = name.rpartition(":")
    async with asyncio.timeout(seconds):
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return list(dict.fromkeys(address(str(sockaddr[0]), int(port)) for *_, sockaddr in found))
