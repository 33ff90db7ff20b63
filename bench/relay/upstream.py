"""`python -m bench.relay.upstream PORT`: an engine that answers from memory, so that a proxy's cost is all there is.

`"max_tokens": 0` gets a short JSON reply at once, n gets n events EVENT_SECONDS apart, each written by itself. Both
carry usage, as engines' replies do: prompt tokens as `"told"` says. It trusts its requests: a body ends with BODY_END.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

BODY_END = b'"user": "bench"}'
EVENT_SECONDS = 0.002
TOLD = b'"told": "'
TOLD_DIGITS = 8
USAGE = b'"usage": {"prompt_tokens": 100, "total_tokens": 116, "completion_tokens": 16, '
USAGE += b'"prompt_tokens_details": {"cached_tokens": 64}}'
SHORT = b'{"id": "c", "choices": [{"message": {"role": "assistant", "content": "%b"}}], %b}' % (b"y" * 200, USAGE)
EVENT = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": " word"}}]}\n\n'
LAST_EVENT = b'data: {"id": "c", "choices": [], %b}\n\ndata: [DONE]\n\n' % USAGE
SHORT_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(SHORT), SHORT)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
STREAM_END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST_EVENT), LAST_EVENT)
SHORT_REPLIES = {100: SHORT_REPLY}
HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One connection of a proxy."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._seen.startswith(b"GET "):
            if self._seen.endswith(b"\r\n\r\n"):
                self._seen = b""
                self._transport.write(HEALTHY)
            return
        if not self._seen.endswith(BODY_END):
            return
        events = int(self._seen.rpartition(b'"max_tokens":')[2].partition(b",")[0])
        told = int(self._seen.rpartition(TOLD)[2][:TOLD_DIGITS])
        self._seen = b""
        if events == 0:
            self._transport.write(_short_reply(told))
        else:
            self._transport.write(STREAM_HEAD)
            self._event(events)

    def _event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(STREAM_END)
        else:
            self._transport.write(CHUNK)
            self._loop.call_later(EVENT_SECONDS, self._event, left - 1)


def _short_reply(tokens: int) -> bytes:
    """The reply that tells so many prompt tokens."""
    reply = SHORT_REPLIES.get(tokens)
    if reply is None:
        body = SHORT.replace(b'"prompt_tokens": 100,', b'"prompt_tokens": %d,' % tokens)
        head = SHORT_REPLY.partition(b"Content-Length:")[0]
        reply = SHORT_REPLIES[tokens] = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
    return reply


async def serve(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
