"""Bodies whose reading or editing would hold up everyone's streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.requests.edit import INLINE_BYTES
from gateway.requests.resolve import CONTAINERS_LIMIT
from tests.gateway.http.support import replying, run, worker
from tests.gateway.requests.support import as_json
from tests.gateway.support import gate


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[{}],"])
def test_a_body_of_very_many_lists_or_objects_is_refused_before_it_is_read(unit: bytes) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            for count, status in ((CONTAINERS_LIMIT + 1, 400), (1000, 200)):
                body = b'{"model":"m","prompt":[' + unit * count + b"0]}"
                answer = await gateway.ask("POST", "/v1/completions", body)
                assert answer.status == status
                if status == 400:
                    assert b"fewer lists and objects" in answer.body
            assert len(engine.requests) == 1

    run(scenario())


def test_large_bodies_are_edited_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    to_thread = asyncio.to_thread

    async def recorded(function: Callable[..., Any], *arguments: Any) -> Any:
        def noted() -> Any:
            threads.append(threading.get_ident())
            return function(*arguments)

        return await to_thread(noted)

    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port, aliases={"public": "lora"}) as gateway:
            for size, count in ((10, 0), (INLINE_BYTES, 1)):
                body = {"model": "public", "prompt": "x" * size}
                assert (await gateway.ask("POST", "/v1/completions", body)).status == 200
                assert orjson.loads(engine.requests[-1].body) == {**body, "model": "lora"}
                assert len(threads) == count
            assert threading.get_ident() not in threads

    monkeypatch.setattr(asyncio, "to_thread", recorded)
    run(scenario())
