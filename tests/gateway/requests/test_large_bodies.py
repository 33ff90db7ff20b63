"""Bodies whose reading or editing would hold up everyone's streams."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pytest

from gateway.requests import edit
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
    edited = edit._edited

    def recorded(*arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return edited(*arguments)

    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port, aliases={"public": "lora"}) as gateway:
            for size in (10, INLINE_BYTES):
                body = {"model": "public", "prompt": "x" * size}
                assert (await gateway.ask("POST", "/v1/completions", body)).status == 200
                assert orjson.loads(engine.requests[-1].body) == {**body, "model": "lora"}
            here = threading.get_ident()
            assert [thread == here for thread in threads] == [True, False]

    monkeypatch.setattr(edit, "_edited", recorded)
    run(scenario())
