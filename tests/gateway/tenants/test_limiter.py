"""Limiters of several gateways over a real server, which is killed and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import NoPermissionError

from gateway.http.errors import RequestError
from gateway.tenants.limiter import Admission, Limiter, limits_key
from gateway.tenants.metrics import TenantMetrics
from gateway.tenants.tenant import ANONYMOUS, Limits, Tenant
from tests.redis_servers import server
from tests.support import eventually, redis_client
from warmroute.redis.access import gateway_rules


class Gateway:
    """A limiter, running."""

    def __init__(self, limiter: Limiter, registry: CollectorRegistry, task: asyncio.Task[None]) -> None:
        self.limiter = limiter
        self.registry = registry
        self.task = task

    @property
    def held(self) -> dict[str, Any]:
        """What it keeps of tenants, by their names."""
        return self.limiter._held

    async def ask(self, tenant: Tenant, tokens: int = 1) -> Admission | RequestError:
        try:
            return await self.limiter.admit(tenant, tokens, time.monotonic())
        except RequestError as error:
            return error

    async def admitted(self, tenant: Tenant, count: int, tokens: int = 1) -> list[Admission]:
        answers = [await self.ask(tenant, tokens) for _ in range(count)]
        return [answer for answer in answers if isinstance(answer, Admission)]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"warmroute_gateway_{name}", labels) or 0

    async def die(self) -> None:
        """Without a word to Redis, as a process that is killed."""
        self.held.clear()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def gateways(url: str, count: int = 2, wait_seconds: float = 2.0) -> AsyncIterator[list[Gateway]]:
    """A long wait, but where a test is about that: a busy machine answers late too."""
    async with AsyncExitStack() as stack:
        started = []
        for _ in range(count):
            client = await stack.enter_async_context(redis_client(url))
            registry = CollectorRegistry()
            limiter = Limiter(client, TenantMetrics(registry), wait_seconds=wait_seconds)
            gateway = Gateway(limiter, registry, asyncio.create_task(limiter.run()))
            stack.push_async_callback(gateway.stop)
            started.append(gateway)
        yield started


def tenant(requests: int | None = None, tokens: int | None = None, slots: int | None = None, name: str = "a") -> Tenant:
    return Tenant(name, name, Limits(requests, tokens, slots))


def test_two_gateways_share_one_limit_of_requests(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url) as (one, two):
            who = tenant(requests=40)
            began = time.monotonic()
            first = await one.admitted(who, 30)
            second = await two.admitted(who, 30)
            refill = 40 * (time.monotonic() - began) / 60
            assert len(first) == 30
            assert 10 <= len(second) <= 10 + refill
            refusal = await one.ask(who)
            assert isinstance(refusal, RequestError)
            assert refusal.status == 429
            assert refusal.message.startswith("the limit of 40 requests a minute is used up; try again in")
            assert int(dict(refusal.headers)[b"retry-after"]) in (1, 2)
            assert two.metric("tenant_requests_total", tenant="a", outcome="requests") == 30 - len(second)
            assert one.metric("tenant_requests_total", tenant="a", outcome="admitted") == 30

    asyncio.run(scenario())


def test_concurrent_requests_together_keep_the_limits(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 3) as all_gateways:
            who = tenant(requests=50, slots=20)
            answers = await asyncio.gather(*(gateway.ask(who) for gateway in all_gateways for _ in range(30)))
            running = [answer for answer in answers if isinstance(answer, Admission)]
            assert len(running) == 20
            for admission in running[:10]:
                for _ in range(3):
                    admission.release()
                admission.settle(5)

            async def more() -> int:
                running.extend(await all_gateways[0].admitted(who, 1))
                return len(running) == 30

            await eventually(more, what="slots that others have freed are found within ticks")
            assert isinstance(await all_gateways[1].ask(who), RequestError)

    asyncio.run(scenario())


def test_usage_corrects_the_estimate_for_all_gateways(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url) as (one, two):
            who = tenant(tokens=1000)
            (admission,) = await one.admitted(who, 1, tokens=100)
            with admission:
                assert dict(admission.headers())[b"x-ratelimit-limit-tokens"] == b"1000"
                admission.settle(900)
                admission.settle(0)
            assert one.metric("tenant_tokens_total", tenant="a") == 900
            refused = await eventually(lambda: two.admitted(tenant(tokens=1000), 1, tokens=1))
            refused[0].release()

            async def seen() -> bool:
                return isinstance(await two.ask(who, 200), RequestError)

            await eventually(seen, what="the first gateway's debt reaches the second")
            large = await two.ask(who, 1001)
            assert isinstance(large, RequestError)
            assert (b"x-should-retry", b"false") in large.headers

    asyncio.run(scenario())


def test_a_reply_that_does_not_tell_costs_the_estimated_prompt_and_what_came(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,):
            who = tenant(tokens=1000)
            (admission,) = await gateway.admitted(who, 1, tokens=100)
            with admission:
                admission.settle_estimate(850)
                admission.settle_estimate(850)
            assert gateway.metric("tenant_tokens_total", tenant="a") == 950
            assert isinstance(await gateway.ask(who, 500), RequestError)

    asyncio.run(scenario())


def test_slots_of_a_gateway_that_died_or_left_come_back(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 3) as (dying, leaving, staying):
            who = tenant(slots=4)
            assert len(await dying.admitted(who, 2)) == 2
            assert len(await leaving.admitted(who, 2)) == 2
            assert isinstance(await staying.ask(who), RequestError)
            for admission in await leaving.admitted(who, 1):
                admission.release()
            await leaving.stop()
            running = []

            async def more(count: int) -> bool:
                running.extend(await staying.admitted(who, 1))
                return len(running) == count

            await eventually(lambda: more(2), within=5, what="the slots of the gateway that left")
            await dying.die()
            await eventually(lambda: more(4), within=20, what="the slots of the gateway that died")

    asyncio.run(scenario())


def test_most_requests_do_not_wait_for_redis(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,):
            who = tenant(requests=60_000, tokens=60_000_000, slots=1000)
            for _ in range(2000):
                answer = await gateway.ask(who, 500)
                assert isinstance(answer, Admission)
                answer.release()
            calls = gateway.metric("limit_calls_total", outcome="answered")
            assert 0 < calls < 40

    asyncio.run(scenario())


def test_what_is_not_used_goes_back_and_an_idle_tenant_is_forgotten(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,), redis_client(redis_url) as client:
            who = tenant(requests=6000, slots=10)
            for admission in await gateway.admitted(who, 60):
                admission.release()
            held = gateway.held["a"].quota
            assert held.requests is not None
            await eventually(lambda: held.requests is not None and held.requests.held == 0, what="the lease goes back")
            rows = await client.hgetall(limits_key("a"))
            assert float(rows[b"r"]) > 5930
            (claim,) = (value for name, value in rows.items() if name.startswith(b"c:"))
            assert claim.startswith(b"0 ")
            gateway.limiter._tick(time.monotonic() + 61)
            assert not gateway.held
            assert await client.pttl(limits_key("a")) > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", ["kill", "freeze"])
def test_without_redis_requests_go_on_by_half_the_limit_and_share_again_afterwards(
    failure: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            async with gateways(process.url, wait_seconds=0.5) as (one, two):
                who = tenant(requests=60)
                for gateway in (one, two, one):
                    assert await gateway.admitted(who, 1)
                await eventually(lambda: one.held["a"].quota.gateways == 2)
                getattr(process, failure)()
                admitted = []
                for gateway in (one, two):
                    await eventually(lambda gateway=gateway: lost(gateway, who, admitted))
                    began = time.monotonic()
                    # The first call is bounded by its deadline, the others wait for nothing.
                    admitted.extend(await gateway.admitted(who, 100))
                    assert time.monotonic() - began < 0.5
                    assert gateway.metric("limits_shared") == 0
                assert 50 <= len(admitted) <= 60
                process.start() if failure == "kill" else process.thaw()
                for gateway in (one, two):
                    await eventually(lambda gateway=gateway: gateway.metric("limits_shared") == 1, within=20)
                assert len(await one.admitted(who, 60)) + len(await two.admitted(who, 60)) <= 30

    async def lost(gateway: Gateway, who: Tenant, admitted: list[Admission]) -> bool:
        admitted.extend(await gateway.admitted(who, 1))
        return gateway.held["a"].quota.away

    asyncio.run(scenario())


def test_a_redis_that_was_never_there_holds_a_request_up_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            process.freeze()
            async with gateways(process.url, 1, wait_seconds=0.02) as (gateway,):
                began = time.monotonic()
                assert len(await gateway.admitted(tenant(requests=60), 100)) == 60
                assert time.monotonic() - began < 1
                assert gateway.metric("limit_calls_total", outcome="late") == 1
                process.thaw()

    asyncio.run(scenario())


def test_a_client_that_leaves_while_it_waits_takes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            async with gateways(process.url, 1) as (gateway,):
                who = tenant(requests=60, slots=1)
                process.freeze()
                leaving = asyncio.create_task(gateway.ask(who))
                await eventually(lambda: "a" in gateway.held and gateway.held["a"].call is not None)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
                assert leaving.cancelled()
                process.thaw()
                held = gateway.held["a"]
                await eventually(lambda: held.answered)
                assert held.quota.in_use == 0
                assert not held.quota._waiting
                assert await gateway.admitted(who, 1)

    asyncio.run(scenario())


def test_a_gateway_that_ends_gives_back_what_it_had_not_used(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,), redis_client(redis_url) as client:
            for admission in await gateway.admitted(tenant(requests=6000, slots=100), 60):
                admission.release()
            requests = gateway.held["a"].quota.requests
            assert requests is not None
            assert requests.held > 0
            await gateway.stop()
            rows = await client.hgetall(limits_key("a"))
            assert float(rows[b"r"]) >= 5940
            assert set(rows) == {b"r", b"at"}

    asyncio.run(scenario())


def test_a_tenant_without_limits_never_asks(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,), redis_client(redis_url) as client:
            for who in (ANONYMOUS, tenant()):
                (admission,) = await gateway.admitted(who, 1)
                assert admission.headers() == ()
                admission.settle(5)
                admission.release()
            assert await client.dbsize() == 0

    asyncio.run(scenario())


def test_the_gateways_redis_user_may_keep_limits_and_not_write_the_index(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            process.call("ACL", "SETUSER", "gateway", "on", ">g", *gateway_rules().split())
            url = process.url.replace("//", "//gateway:g@")
            async with gateways(url, 1) as (gateway,), redis_client(url) as client:
                assert len(await gateway.admitted(tenant(requests=60, tokens=600, slots=4), 3)) == 3
                assert gateway.metric("limits_shared") == 1
                assert gateway.metric("limit_calls_total", outcome="failed") == 0
                await gateway.stop()
                assert gateway.metric("limit_calls_total", outcome="failed") == 0
                with pytest.raises(NoPermissionError):
                    await client.hset("wr:{main/0}:workers", "a", "b")

    asyncio.run(scenario())


def test_a_flood_of_refused_requests_does_not_become_a_flood_of_calls(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (gateway,):
            who = tenant(requests=1)
            assert await gateway.admitted(who, 1)
            assert not await gateway.admitted(who, 1)
            before = gateway.metric("limit_calls_total", outcome="answered")
            began = time.monotonic()
            assert not await gateway.admitted(who, 5000)
            allowed = 2 + (time.monotonic() - began) * 10
            assert gateway.metric("limit_calls_total", outcome="answered") - before <= allowed

    asyncio.run(scenario())


@pytest.mark.parametrize("block_seconds", [0.001, 0.005, 0.012])
def test_a_busy_gateway_refuses_nobody_below_the_limits(block_seconds: float, redis_url: str) -> None:
    """Newcomers take nothing that was leased for those who wait, whose time would run out behind them."""

    async def scenario() -> None:
        async with gateways(redis_url, 1, wait_seconds=0.02) as (one,):
            for who in (tenant(slots=500, name="a"), tenant(requests=100_000, tokens=10_000_000, name="b")):
                asked = []
                for _ in range(40):
                    asked.append(asyncio.create_task(one.ask(who, 16)))
                    await asyncio.sleep(0)
                    end = time.monotonic() + block_seconds
                    while time.monotonic() < end:
                        pass  # other requests keep the loop from its turn
                answers = await asyncio.gather(*asked)
                assert [answer for answer in answers if isinstance(answer, RequestError)] == []

    asyncio.run(scenario())
