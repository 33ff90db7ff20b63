"""Every path that goes to workers, and the errors that its clients read."""

from __future__ import annotations

import orjson
import pytest

from gateway.requests.paths import POST_ROUTES
from tests.gateway.http.support import SSE_HEAD, Link, chunk, replying, run, worker
from tests.gateway.requests.support import CHAT, as_json
from tests.gateway.support import gate


@pytest.mark.parametrize("path", sorted(POST_ROUTES))
def test_every_path_goes_through_byte_for_byte(path: str) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b'{"model": "m", "x": 1.0}'))) as engine, gate(engine.port) as gateway:
            body = b'{ "model":"m" , "input": "\xc3\xa9", "n": 1.50 }'
            answer = await gateway.ask("POST", f"{path}?a=b", body)
            assert (answer.status, answer.body) == (200, b'{"model": "m", "x": 1.0}')
            assert engine.requests[0].start == f"POST {path}?a=b HTTP/1.1".encode()
            assert engine.requests[0].body == body
            assert gateway.idle()

    run(scenario())


def test_messages_have_errors_in_anthropics_shape() -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            for body, status, kind in (
                (b"{", 400, "invalid_request_error"),
                (b'{"model":"none"}', 404, "not_found_error"),
                (b'{"model":"m"}', 503, "overloaded_error"),
            ):
                answer = await gateway.ask("POST", "/v1/messages", body)
                error = orjson.loads(answer.body)
                assert answer.status == status
                assert (error["type"], error["error"]["type"], set(error)) == ("error", kind, {"type", "error"})
                assert set(error["error"]) == {"type", "message"}

    run(scenario())


def test_a_broken_stream_of_messages_ends_with_anthropics_error_event() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + chunk(b'event: message_start\ndata: {"type":"message_start"}\n\n'))

    async def scenario() -> None:
        async with worker(script) as engine, gate(engine.port) as gateway:
            answer = await gateway.ask("POST", "/v1/messages", {**CHAT, "stream": True})
            last = answer.body.split(b"\n\n")[-2]
            assert last.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error"')

    run(scenario())
