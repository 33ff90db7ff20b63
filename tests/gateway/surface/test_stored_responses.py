"""Whose a stored response is: ids come from workers' replies, and some of them from clients."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from gateway.surface.stored_responses import Owner, StoredResponses
from tests.gateway.entrypoint.support import Link, replying, run, worker
from tests.gateway.support import gate
from tests.gateway.surface.support import as_json, bearer, tenants


def test_another_tenants_response_cannot_be_taken_over() -> None:
    stored = StoredResponses()
    first = Owner("p", "w0", "a", "")
    stored.learn("resp_1", first)
    stored.learn("resp_1", Owner("p", "w1", "b", ""))
    assert stored.owner("resp_1") == first
    moved = Owner("p", "w1", "a", "")
    stored.learn("resp_1", moved)
    assert stored.owner("resp_1") == moved


def test_the_least_recently_used_is_forgotten() -> None:
    stored = StoredResponses(limit=2)
    owners = {name: Owner("p", name, "", "") for name in ("1", "2", "3")}
    stored.learn("1", owners["1"])
    stored.learn("2", owners["2"])
    assert stored.owner("1") == owners["1"]
    stored.learn("3", owners["3"])
    assert [stored.owner(name) for name in ("1", "2", "3")] == [owners["1"], None, owners["3"]]
    assert len(stored) == 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses"),
    ],
)
def test_with_keys_a_response_that_is_not_known_here_is_nobodys(method: str, path: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b'{"id":"resp_1","output":"secret"}'))) as engine,
            gate(engine.port, access=tenants(tmp_path), several=False) as gateway,
        ):
            body = {"model": "m", "previous_response_id": "resp_1"} if path == "/v1/responses" else None
            answer = await gateway.ask(method, path, body, bearer("a"))
            assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (404, "response_not_found")
            assert engine.requests == []

    run(scenario())


def test_an_error_that_repeats_an_id_gives_nobody_that_response(tmp_path: Path) -> None:
    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            refused = asked.start.startswith(b"POST")
            body = b'{"detail":[{"input":{"id":"resp_1"}}]}' if refused else b'{"id":"resp_1"}'
            await link.send(as_json(body, b"422 Unprocessable Entity" if refused else b"200 OK"))

    async def scenario() -> None:
        async with (
            worker(script) as engine,
            gate(engine.port, access=tenants(tmp_path), several=False) as gateway,
        ):
            provoked = {"model": "m", "input": {"id": "resp_1"}}
            assert (await gateway.ask("POST", "/v1/responses", provoked, bearer("b"))).status == 422
            assert (await gateway.ask("GET", "/v1/responses/resp_1", None, bearer("b"))).status == 404
            assert len(engine.requests) == 1

    run(scenario())


def test_a_reply_whose_id_is_read_is_not_compressed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b'{"id":"resp_1"}'))) as engine,
            gate(engine.port, access=tenants(tmp_path), several=False) as gateway,
        ):
            created = await gateway.ask(
                "POST", "/v1/responses", {"model": "m"}, [*bearer("b"), "Accept-Encoding: gzip"]
            )
            assert created.status == 200
            assert engine.requests[0].all(b"accept-encoding") == [b"identity"]
            assert (await gateway.ask("GET", "/v1/responses/resp_1", None, bearer("b"))).status == 200

    run(scenario())
