"""Stored responses made through one gateway and used through another, over a real Redis that may go away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import NoPermissionError

from gateway.requests import shared_responses
from gateway.requests.access import OPEN, Access
from gateway.requests.metrics import RequestMetrics
from gateway.requests.shared_responses import SharedResponses
from gateway.requests.stored_responses import Owner, StoredResponses
from tests.gateway.http.support import Link, run, worker
from tests.gateway.requests.support import as_json, bearer, storing, tenants
from tests.gateway.support import Gate, gate
from tests.indexer.support import running
from tests.redis_servers import server, server_cluster
from tests.support import eventually, redis_client
from warmroute.redis.access import gateway_rules
from warmroute.redis.client import Client

CALLS = "warmroute_gateway_stored_response_calls_total"
WAYS = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]


def calls(gateway: Gate, operation: str, outcome: str) -> float:
    return gateway.count("stored_response_calls_total", operation=operation, outcome=outcome)


@asynccontextmanager
async def two_gateways(url: str, *ports: int, access: Access = OPEN, **options: Any) -> AsyncIterator[list[Gate]]:
    """Replicas in front of the same workers, each with a client of its own."""
    async with AsyncExitStack() as stack:
        gateways = []
        for _ in range(2):
            client = await stack.enter_async_context(redis_client(url))
            gateways.append(await stack.enter_async_context(gate(*ports, access=access, redis=client, **options)))
        yield gateways


async def made(gateway: Gate, headers: list[str], body: dict[str, Any] | None = None) -> tuple[str, bytes | None]:
    """Id and worker of a new response that is written for all."""
    before = calls(gateway, "learn", "done") + calls(gateway, "learn", "foreign")
    answer = await gateway.ask("POST", "/v1/responses", body or {"model": "m", "input": "x"}, headers)
    assert answer.status == 200
    await eventually(lambda: calls(gateway, "learn", "done") + calls(gateway, "learn", "foreign") > before)
    return orjson.loads(answer.body)["id"], answer.header(b"x-warmroute-worker")


@pytest.mark.parametrize("keys", [False, True])
def test_what_one_gateway_made_is_used_through_another(keys: bool, redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        access, headers = (tenants(tmp_path), bearer("a")) if keys else (OPEN, [])
        async with worker(storing("a")) as one, worker(storing("b")) as two, worker(storing("c")) as three:
            ports = one.port, two.port, three.port
            for method, suffix in WAYS:
                async with two_gateways(redis_url, *ports, access=access, several=False) as (maker, user):
                    name, where = await made(maker, headers)
                    answer = await user.ask(method, f"/v1/responses/{name}{suffix}", None, headers)
                    assert (answer.status, answer.header(b"x-warmroute-worker")) == (200, where)
                    assert calls(user, "find", "done") == 1
            async with two_gateways(redis_url, *ports, access=access, several=False) as (maker, user):
                name, where = await made(maker, headers)
                more = {"model": "m", "input": "y", "previous_response_id": name}
                for _ in range(5):
                    answer = await user.ask("POST", "/v1/responses", more, headers)
                    assert (answer.status, answer.header(b"x-warmroute-worker")) == (200, where)
                assert calls(user, "find", "done") == 1  # then it is known here

    run(scenario())


def test_an_alias_is_restored_by_another_gateway_too(redis_url: str) -> None:
    async def script(link: Link) -> None:
        while True:
            await link.request()
            await link.send(as_json(b'{"id": "resp_1", "model": "lora"}'))

    async def scenario() -> None:
        async with worker(script) as engine:
            options = {"several": False, "aliases": {"public": "lora"}}
            async with two_gateways(redis_url, engine.port, **options) as (maker, user):
                await made(maker, [], {"model": "public", "input": "x"})
                shown = await user.ask("GET", "/v1/responses/resp_1")
                assert orjson.loads(shown.body)["model"] == "public"

    run(scenario())


@pytest.mark.parametrize(("method", "suffix"), [*WAYS, ("POST", None)])
def test_another_tenants_response_is_404_through_any_gateway(
    method: str, suffix: str | None, redis_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            worker(storing("a")) as engine,
            two_gateways(redis_url, engine.port, access=tenants(tmp_path), several=False) as (maker, user),
        ):
            name, _ = await made(maker, bearer("a"))
            if suffix is None:
                body = {"model": "m", "input": "y", "previous_response_id": name}
                answer = await user.ask(method, "/v1/responses", body, bearer("b"))
            else:
                answer = await user.ask(method, f"/v1/responses/{name}{suffix}", None, bearer("b"))
            assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (404, "response_not_found")
            assert len(engine.requests) == 1
            assert (await user.ask("GET", f"/v1/responses/{name}", None, bearer("a"))).status == 200

    run(scenario())


def test_who_names_another_tenants_id_gets_nothing(redis_url: str, tmp_path: Path) -> None:
    """As with `request_id` of vLLM and SGLang; with `store: false` the engine keeps the first one's."""

    async def scenario() -> None:
        async with (
            worker(storing("a")) as engine,
            two_gateways(redis_url, engine.port, access=tenants(tmp_path), several=False) as (maker, thief),
        ):
            name, _ = await made(maker, bearer("a"), {"model": "m", "input": "x", "request_id": "resp_a"})
            assert (await maker.ask("GET", f"/v1/responses/{name}", None, bearer("a"))).status == 200
            for _ in range(2):
                await made(thief, bearer("b"), {"model": "m", "input": "x", "request_id": name})
                assert (await thief.ask("GET", f"/v1/responses/{name}", None, bearer("b"))).status == 404
            body = {"model": "m", "input": "x", "request_id": name, "store": False}
            assert (await thief.ask("POST", "/v1/responses", body, bearer("b"))).status == 200
            assert (await thief.ask("GET", f"/v1/responses/{name}", None, bearer("b"))).status == 404
            # Not told by the request: noticed when Redis has answered.
            await made(thief, bearer("b"), {"model": "m", "input": "x"})
            assert (await thief.ask("GET", f"/v1/responses/{name}", None, bearer("b"))).status == 404
            assert calls(thief, "learn", "foreign") == 3
            assert (await maker.ask("GET", f"/v1/responses/{name}", None, bearer("a"))).status == 200

    run(scenario())


def test_an_id_that_the_client_chose_counts_once_redis_has_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            async with (
                worker(storing("a")) as engine,
                two_gateways(process.url, engine.port, access=tenants(tmp_path), several=False) as (maker, _),
            ):
                process.freeze()
                body = {"model": "m", "input": "x"}
                for chosen, status in (({"request_id": "resp_a"}, 404), ({}, 200)):
                    assert (await maker.ask("POST", "/v1/responses", body | chosen, bearer("a"))).status == 200
                    assert (await maker.ask("GET", "/v1/responses/resp_a", None, bearer("a"))).status == status
                process.thaw()

    run(scenario())


def test_deleted_is_forgotten_for_all(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(storing("a")) as engine,
            two_gateways(redis_url, engine.port, access=tenants(tmp_path), several=False) as (maker, user),
        ):
            name, _ = await made(maker, bearer("a"))
            assert (await maker.ask("DELETE", f"/v1/responses/{name}", None, bearer("a"))).status == 200
            await eventually(lambda: calls(maker, "forget", "done"))
            assert (await user.ask("GET", f"/v1/responses/{name}", None, bearer("a"))).status == 404
            assert calls(user, "find", "missing") == 1

    run(scenario())


@pytest.mark.parametrize("away", ["dead", "silent"])
def test_without_redis_each_gateway_knows_its_own(away: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            async with (
                worker(storing("a")) as engine,
                two_gateways(process.url, engine.port, access=tenants(tmp_path), several=False) as (maker, user),
            ):
                process.kill() if away == "dead" else process.freeze()
                body = {"model": "m", "input": "x"}
                for chosen in ({}, {"request_id": "resp_a"}):
                    assert (await maker.ask("POST", "/v1/responses", body | chosen, bearer("a"))).status == 200
                assert (await maker.ask("GET", "/v1/responses/resp_a", None, bearer("a"))).status == 200
                # The other one does not wait for long, and says what it says of any unknown response.
                assert (await user.ask("GET", "/v1/responses/resp_a", None, bearer("a"))).status == 404
                assert calls(user, "find", "failed") == 1
                assert calls(user, "find", "missing") == 0
                process.start() if away == "dead" else process.thaw()

                async def found() -> bool:
                    await maker.ask("POST", "/v1/responses", body, bearer("a"))
                    return (await user.ask("GET", "/v1/responses/resp_a", None, bearer("a"))).status == 200

                await eventually(found, within=20)

    run(scenario())


def shared(client: Client) -> tuple[SharedResponses, StoredResponses, CollectorRegistry]:
    registry, local = CollectorRegistry(), StoredResponses()
    return SharedResponses(client, RequestMetrics(registry), local), local, registry


def test_redis_holds_a_bounded_number_and_no_ids(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_responses, "BUCKETS", 1)
    monkeypatch.setattr(shared_responses, "OWNERS_A_BUCKET", 10)

    async def scenario() -> None:
        async with redis_client(redis_url) as client:
            writer, _, registry = shared(client)
            reader, local, _ = shared(client)
            done = {"operation": "learn", "outcome": "done"}
            async with running(writer.run()):
                for number in range(50):
                    writer.learn(f"resp_{number}", Owner("p", "w0", "a", "m"))
                await eventually(lambda: registry.get_sample_value(CALLS, done) == 50)

                async def count() -> int:
                    return int(await client.hlen("wr-response:{0}:owners"))

                assert await count() == 10
                assert await client.zcard("wr-response:{0}:used") == 10
            assert await reader.find("resp_0") is None
            assert await reader.find("resp_49") == Owner("p", "w0", "a", "m") == local.owner("resp_49")
            assert await reader.find("x" * 200) is None
            assert await reader.find("\ud800") is None
            assert 0 < await client.ttl("wr-response:{0}:owners") <= 86_400
            everything = b"".join([*(await client.hgetall("wr-response:{0}:owners")), *await client.keys()])
            assert b"resp_" not in everything
            # One that nobody used for a day goes, whatever happens in its bucket.
            digests = await client.zrange("wr-response:{0}:used", 0, -1)
            await client.zadd("wr-response:{0}:used", dict.fromkeys(digests, 1))
            assert await reader.find("resp_48") is None
            assert await count() == 0

    run(scenario())


def test_writes_go_out_together_but_in_order_for_each_id(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as client:
            writer, *_ = shared(client)
            reader, *_ = shared(client)
            names = [f"resp_{number}" for number in range(30)]
            for name in names:
                writer.learn(name, Owner("p", "w0", "a", ""))
                writer.forget(name)
                writer.learn(name, Owner("p", "w1", "a", ""))
            for name in names:
                writer.learn(name, Owner("p", "w2", "a", ""))
                if name != "resp_29":
                    writer.forget(name)
            async with running(writer.run()):

                async def last() -> bool:
                    return await reader.find("resp_29") == Owner("p", "w2", "a", "")

                await eventually(last)
                assert [name for name in names if await shared(client)[0].find(name)] == ["resp_29"]

    run(scenario())


def test_writes_that_wait_are_bounded_and_those_dropped_are_counted(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_responses, "WRITES_LIMIT", 3)

    async def scenario() -> None:
        async with redis_client(redis_url) as client:
            writer, local, registry = shared(client)
            for number in range(5):
                writer.learn(f"resp_{number}", Owner("p", "w0", "a", ""), chosen=number % 2 == 0)
            assert registry.get_sample_value(CALLS, {"operation": "learn", "outcome": "dropped"}) == 2
            # A chosen id that cannot be asked for counts as without Redis.
            known = [local.owner(f"resp_{number}") is not None for number in range(5)]
            assert known == [False, True, False, True, True]

    run(scenario())


def test_a_cluster_and_a_user_with_the_gateways_rules(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        async with redis_client(url) as client:
            writer, *_ = shared(client)
            reader, *_ = shared(client)
            async with running(writer.run()):
                for number in range(20):
                    writer.learn(f"resp_{number}", Owner("p", "w0", "a", ""))
                writer.forget("resp_0")
                for number in range(1, 20):

                    async def found(name: str = f"resp_{number}") -> bool:
                        return await reader.find(name) is not None

                    await eventually(found)

                async def gone() -> bool:
                    return await reader.find("resp_0") is None

                await eventually(gone)
            with pytest.raises(NoPermissionError):
                await client.hset("wr:{main/0}:workers", "a", "b")

    with server_cluster(tmp_path) as cluster:
        for node in (*cluster.masters, cluster.replica):
            node.call("ACL", "SETUSER", "gateway", "on", ">g", *gateway_rules(cluster=True).split())
        run(scenario(cluster.url.replace("//", "//gateway:g@")))
