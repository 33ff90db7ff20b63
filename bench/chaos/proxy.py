"""A TCP proxy on 127.0.0.1 whose connections can be made slow, swallowed or reset."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from enum import StrEnum
from typing import Final

SLOW_SECONDS: Final = 0.3
"""Before each piece of bytes, in both directions."""
PIECE_BYTES: Final = 65_536


class Mode(StrEnum):
    """What becomes of bytes. A connection that had some swallowed stays dead for good, as one of which a device on the
    way has forgotten; only new ones get through after the fault."""

    PASS = "pass"  # noqa: S105 - no password
    SLOW = "slow"
    HALF_OPEN = "half-open"
    RESET = "reset"


class _Link:
    """One connection of a client, and the one to the target that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.dead = False

    def reset(self) -> None:
        for writer in self.writers:
            if (own := writer.get_extra_info("socket")) is not None:
                with suppress(OSError, ValueError):  # it is closed already
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens once started; its owner sets the mode, and closes it. Bounded by its clients' connections."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._mode = Mode.PASS
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=1024)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link, task in list(self._links.items()):
            task.cancel()
            link.reset()
        await asyncio.gather(*self._links.values(), return_exceptions=True)

    def set(self, mode: Mode) -> None:
        """From the next piece of bytes on; a reset takes all connections at once."""
        self._mode = mode
        if mode is Mode.RESET:
            for link in self._links:
                link.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        task = self._links[link] = asyncio.get_running_loop().create_task(self._serve(link, reader, writer))
        task.add_done_callback(lambda _: self._links.pop(link, None))

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is Mode.RESET:
            link.reset()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # as if the target had refused it
            link.reset()
            return
        link.writers.append(up_writer)
        pumps = [
            asyncio.ensure_future(self._pump(link, reader, up_writer)),
            asyncio.ensure_future(self._pump(link, up_reader, writer)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in link.writers:
                each.close()

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until it ends; a broken connection breaks the other too."""
        try:
            while piece := await reader.read(PIECE_BYTES):
                if self._mode is Mode.HALF_OPEN:
                    link.dead = True
                if link.dead:
                    continue
                if self._mode is Mode.SLOW:
                    await asyncio.sleep(SLOW_SECONDS)
                writer.write(piece)
                await writer.drain()
            if not link.dead and not writer.is_closing():
                writer.write_eof()
        except (OSError, RuntimeError):  # uvloop says the latter of a transport that is closed
            link.reset()
