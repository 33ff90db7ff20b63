"""The clients: connections that each send a request as soon as they have the reply to the last."""

from __future__ import annotations

import asyncio
from random import Random

import httptools

from bench.relay.upstream import BODY_END, TOLD, TOLD_DIGITS

MODEL = "bench"
API_KEY = b"key"
GRACE_SECONDS = 20.0
TEXT = (
    "the of and to in is that for it was on with as be at by this have from or had not but what all were when we there "
    "can an your which their said if do will each about how up out them then she many some so these would other into "
    "has more two like him see time could no make than first been its who now people my made over did down only way "
    "find use may water long little very after words called just where most know answer question model request worker"
)
WORDS = TEXT.split()


def body(random: Random, size: int, events: int) -> bytes:
    """A chat request of about `size` bytes that asks for so many events; 0: for a short reply that is no stream."""
    text = " ".join(random.choices(WORDS, k=size))[: max(1, size - 200)].encode()
    stream = b'"stream": true, "stream_options": {"include_usage": true}, ' if events else b""
    return b'{"model": "%b", "messages": [{"role": "user", "content": "%b"}], %b%b"max_tokens": %d, %b' % (
        MODEL.encode(),
        text,
        stream,
        TOLD + b"%0*d" % (TOLD_DIGITS, 100) + b'", ',
        events,
        BODY_END,
    )


def told(payload: bytes, tokens: int) -> bytes:
    """The same request, of which the upstream tells that its prompt has so many tokens."""
    head, mark, tail = payload.rpartition(TOLD)
    return head + mark + b"%0*d" % (TOLD_DIGITS, tokens) + tail[TOLD_DIGITS:]


class LoadClient(asyncio.Protocol):
    """One connection. Only replies of status 200 count, anything else ends it with an error."""

    def __init__(self, payload: bytes, until: float) -> None:
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            b"User-Agent: bench\r\nAccept-Encoding: identity\r\nAuthorization: Bearer %b\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (API_KEY, len(payload), payload)
        )
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.replies = 0
        self._refusal = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._refusal += data

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._transport.abort()
            self.done.set_exception(ConnectionError(f"a proxy answered {status}: {self._refusal.decode()[:200]}"))
            return
        self.replies += 1
        if self._loop.time() < self._until:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if self._loop.time() < self._until:
            self.done.set_exception(ConnectionError("a proxy closed a connection within the measurement"))
        else:
            self.done.set_result(None)


async def load(port: int, payloads: list[bytes], seconds: float) -> int:
    """Replies got in `seconds` over one connection for each of `payloads`. Raises OSError for anything but 200."""
    loop = asyncio.get_running_loop()
    clients = []
    for payload in payloads:
        until = loop.time() + seconds
        _, client = await loop.create_connection(lambda p=payload, u=until: LoadClient(p, u), "127.0.0.1", port)  # type: ignore[misc]
        clients.append(client)
    async with asyncio.timeout(seconds + GRACE_SECONDS):
        await asyncio.gather(*(client.done for client in clients))
    return sum(client.replies for client in clients)
