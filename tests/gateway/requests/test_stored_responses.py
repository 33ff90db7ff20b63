"""Whose a stored response is: ids come from workers' replies, and some of them from clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.requests.stored_responses import Owner, StoredResponses
from gateway.routing.census.targets import Target
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, client, replying, request, run, worker
from tests.gateway.requests.support import as_json, bearer, storing, tenants
from tests.gateway.support import gate


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


def test_a_response_is_cancelled_while_it_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def script(link: Link) -> None:
            while True:
                if (await link.request()).start.startswith(b"POST /v1/responses HTTP"):
                    await link.send(SSE_HEAD + chunk(b'data: {"response":{"id":"resp_1"}}\n\n'))
                    await cancelled.wait()
                    await link.send(chunk(b"data: cancelled\n\n") + LAST_CHUNK)
                else:
                    await link.send(as_json(b'{"id":"resp_1"}'))
                    cancelled.set()

        async with (
            worker(script) as one,
            worker(replying(as_json(b"{}", b"404 Not Found"))) as two,
            gate(one.port, two.port, access=tenants(tmp_path), several=False) as gateway,
            client(gateway.server.port) as connected,
        ):
            gateway.pool.router.census.workers.get("w1").checked(0, healthy=False, refused=True)
            body = orjson.dumps({"model": "m", "stream": True, "background": True})
            connected.send(request(path="/v1/responses", body=body, headers=bearer("a")))
            assert (await connected.head()).status == 200
            gateway.pool.router.census.workers.get("w1").checked(0, healthy=True)
            foreign = await gateway.ask("POST", "/v1/responses/resp_1/cancel", None, bearer("b"))
            assert (foreign.status, two.requests) == (404, [])
            assert (await gateway.ask("POST", "/v1/responses/resp_1/cancel", None, bearer("a"))).status == 200
            assert b"cancelled" in await asyncio.wait_for(connected.reader.readuntil(LAST_CHUNK), 10)

    run(scenario())


@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", None)])
def test_no_other_worker_answers_for_one_that_is_overloaded(method: str, suffix: str | None, tmp_path: Path) -> None:
    """It would say that there is no such response, or show its own of that name."""

    async def scenario() -> None:
        async def script(link: Link) -> None:
            await link.request()
            await link.send(as_json(b'{"id":"resp_1"}'))
            await link.request()
            await link.send(as_json(b'{"error":{}}', b"503 Service Unavailable"))

        async with (
            worker(script) as one,
            worker(replying(as_json(b'{"id":"resp_1"}'))) as two,
            gate(one.port, two.port, access=tenants(tmp_path), several=False) as gateway,
        ):
            gateway.pool.router.census.workers.get("w1").checked(0, healthy=False, refused=True)
            assert (await gateway.ask("POST", "/v1/responses", {"model": "m"}, bearer("a"))).status == 200
            gateway.pool.router.census.workers.get("w1").checked(0, healthy=True)
            path = "/v1/responses" if suffix is None else f"/v1/responses/resp_1{suffix}"
            body = {"model": "m", "previous_response_id": "resp_1"} if suffix is None else None
            assert (await gateway.ask(method, path, body, bearer("a"))).status == 503
            assert two.requests == []
            # Gone with its worker.
            gateway.pool.targets([Target("w1", "127.0.0.1", two.port, "w1")])
            answer = await gateway.ask(method, path, body, bearer("a"))
            assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (404, "response_not_found")
            assert two.requests == []

    run(scenario())


def test_a_field_of_responses_means_nothing_on_other_paths(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(storing("a")) as engine, gate(engine.port, access=tenants(tmp_path)) as gateway:
            body = {"model": "m", "messages": [], "previous_response_id": "resp_other"}
            assert (await gateway.ask("POST", "/v1/chat/completions", body, bearer("a"))).status == 200

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_stored_responses_reach_the_worker_that_has_them(stream: bool) -> None:
    async def scenario() -> None:
        async with worker(storing("a")) as one, worker(storing("b")) as two, worker(storing("c")) as three:
            async with gate(one.port, two.port, three.port, several=False) as gateway:
                body = {"model": "m", "input": "x", **({"stream": True} if stream else {})}
                first = await gateway.ask("POST", "/v1/responses", body)
                where = first.header(b"x-warmroute-worker")
                found = b"resp_" + {b"w0": b"a", b"w1": b"b", b"w2": b"c"}[where]
                for _ in range(10):
                    path = f"/v1/responses/{found.decode()}"
                    for method, suffix in (
                        ("GET", ""),
                        ("GET", "?stream=true"),
                        ("POST", "/cancel"),
                        ("GET", "/input_items"),
                    ):
                        answer = await gateway.ask(method, path + suffix)
                        assert (answer.status, answer.header(b"x-warmroute-worker")) == (200, where)
                    more = {"model": "m", "input": "y", "previous_response_id": found.decode()}
                    answer = await gateway.ask("POST", "/v1/responses", more)
                    assert answer.header(b"x-warmroute-worker") == where
                assert (await gateway.ask("DELETE", f"/v1/responses/{found.decode()}")).status == 200
                others = {
                    (await gateway.ask("GET", f"/v1/responses/{found.decode()}")).header(b"x-warmroute-worker")
                    for _ in range(40)
                }
                assert len(others) == 3  # forgotten, so by load
                assert gateway.idle()
            async with gate(one.port) as gateway:
                assert (await gateway.ask("GET", "/v1/responses/resp_unknown")).status == 404

    run(scenario())
