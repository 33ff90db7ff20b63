"""Gateways that tell each other of their requests, over real servers and their failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import NoPermissionError

from gateway.discovery.peer_channel import SILENCE_SECONDS, PeerChannel, channel_name
from gateway.process.metrics import GatewayMetrics
from gateway.routing.state.peer_sync import PeerSync
from gateway.routing.state.predictions import Predictions
from gateway.routing.state.reservations import NOTHING, Booked, Reservations
from tests.gateway.http.support import plain, run, worker
from tests.gateway.process.test_gateway import gateway, healthy_then
from tests.redis_servers import sentinel_group, server, server_cluster
from tests.support import eventually, redis_client
from warmroute.cli.stack import get_json
from warmroute.config.redis import RedisConfig
from warmroute.redis.access import gateway_rules
from warmroute.redis.client import connect

POOL = "chat/é {x}"


class Gateway:
    """One gateway's part in the exchange."""

    def __init__(self, url: str, name: str) -> None:
        self.registry = CollectorRegistry()
        self.reservations, self.predictions = Reservations(), Predictions()
        self.peers = PeerSync(self.reservations, self.predictions)
        self.redis = connect(RedisConfig(url=url, timeout_seconds=1.0))
        metrics = GatewayMetrics(self.registry)
        self.exchange = PeerChannel(self.redis, POOL, self.peers, metrics, name=name)
        self.task = asyncio.create_task(self.exchange.run())

    def shared(self) -> bool:
        return self.peers.shared(time.monotonic())

    def everywhere(self) -> Booked:
        return self.reservations.everywhere("w")

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"warmroute_gateway_flight_{name}", {"pool": POOL, **labels}) or 0.0

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.redis.aclose()


@asynccontextmanager
async def gateways(url: str, number: int) -> AsyncIterator[list[Gateway]]:
    started = [Gateway(url, f"g{position}") for position in range(number)]
    try:
        await eventually(lambda: all(each.shared() and each.peers.gateways == number - 1 for each in started))
        yield started
        assert not any(each.task.done() and each.task.exception() for each in started if not each.task.cancelled())
    finally:
        for each in started:
            await each.stop()


def test_gateways_see_each_other_within_a_tenth_of_a_second(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 2) as (first, second):
            began = time.monotonic()
            booking = first.reservations.book("w", 100, began)
            await eventually(lambda: second.everywhere() == Booked(1, 100))
            assert time.monotonic() - began < 0.1
            prediction = first.predictions.predict("w", list(range(100)))
            first.peers.routed(prediction, 0, 6400)
            booking.first_byte()
            await eventually(lambda: second.everywhere() == Booked(1, 0))
            assert second.peers.predicted.match(list(range(100))) == {"w": 96}
            booking.close()
            first.predictions.withdraw(prediction)
            await eventually(lambda: second.everywhere() == NOTHING and not second.peers.predicted.keys)
            assert second.metric("gateways") == 1
            assert second.metric("shared") == 1
            assert second.metric("received_total", outcome="applied") >= 4

    asyncio.run(scenario())


def test_one_that_ends_is_forgotten_at_once_and_one_that_is_killed_after_three_seconds(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 3) as (stays, ends, dies):
            ends.reservations.book("w", 10)
            dies.reservations.book("w", 1)
            await eventually(lambda: stays.everywhere() == Booked(2, 11))
            await ends.stop()
            await eventually(lambda: stays.everywhere() == Booked(1, 1), within=1)
            # As a kill: no word of farewell comes.
            dies.exchange._redis = connect(RedisConfig(url="redis://127.0.0.1:1"))
            dies.task.cancel()
            await eventually(lambda: stays.everywhere() == NOTHING, within=6)
            assert stays.peers.gateways == 0
            await dies.exchange._redis.aclose()

    asyncio.run(scenario())


def test_one_that_is_alone_says_little(redis_url: str) -> None:
    async def scenario() -> None:
        async with gateways(redis_url, 1) as (alone,):
            before, began = alone.metric("sent_total", outcome="sent"), time.monotonic()
            for number in range(50):
                alone.reservations.book("w", number, 0.0).close()
                await asyncio.sleep(0)
            await eventually(lambda: alone.metric("sent_total", outcome="sent") >= before + 2)
            assert time.monotonic() - began > 0.9
            assert alone.shared()

    asyncio.run(scenario())


def test_redis_restarts_and_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            async with gateways(process.url, 2) as (first, second):
                first.reservations.book("w", 100)
                await eventually(lambda: second.everywhere() == Booked(1, 100))
                await asyncio.to_thread(process.kill)
                await eventually(lambda: not first.shared() and not second.shared(), within=2)
                assert second.everywhere() == NOTHING
                assert first.everywhere() == Booked(1, 100)
                assert second.metric("shared") == 0
                await asyncio.to_thread(process.start)
                await eventually(lambda: second.shared() and second.everywhere() == Booked(1, 100))
                process.freeze()
                began = time.monotonic()
                await eventually(lambda: not first.shared() and not second.shared(), within=4)
                assert time.monotonic() - began < 2.5
                await eventually(lambda: first.metric("sent_total", outcome="failed") > 0)
                process.thaw()
                await eventually(lambda: second.shared() and second.everywhere() == Booked(1, 100))

    asyncio.run(scenario())
    # Once an outage, and each gateway.
    assert 2 <= sum("are not known, routing by" in record.message for record in caplog.records) <= 4


def test_the_rules_of_the_gateways_user_suffice_and_without_them_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with server(tmp_path) as process:
            process.call("ACL", "SETUSER", "gateway", "on", ">g", *gateway_rules().split())
            url = process.url.replace("//", "//gateway:g@")
            async with gateways(url, 2) as (first, second), redis_client(url) as client:
                first.reservations.book("w", 100)
                await eventually(lambda: second.everywhere() == Booked(1, 100))
                with pytest.raises(NoPermissionError):
                    await client.execute_command("SPUBLISH", "other", "x")
            process.call("ACL", "SETUSER", "former", "on", ">f", "%R~wr:*", "+ping", "+get")
            without = Gateway(process.url.replace("//", "//former:f@"), "g")
            await eventually(lambda: "gateway_rules()" in caplog.text)
            assert not without.shared()
            await without.stop()

    asyncio.run(scenario())


def test_a_cluster_passes_messages_and_a_failover_is_survived(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server_cluster(tmp_path) as cluster:
            async with gateways(cluster.url, 2) as (first, second):
                booking = first.reservations.book("w", 100)
                await eventually(lambda: second.everywhere() == Booked(1, 100))
                slot = cluster.masters[0].call("CLUSTER", "KEYSLOT", channel_name(POOL))
                owner = cluster.owner(slot)
                others = [each for each in cluster.masters if each is not owner]
                # The slot goes to another master: those who listen are sent away.
                target = others[0]
                node_id = target.call("CLUSTER", "MYID").decode()
                for each in (target, owner, others[1]):
                    each.call("CLUSTER", "SETSLOT", slot, "NODE", node_id)
                await eventually(lambda: first.shared() and second.shared(), within=SILENCE_SECONDS * 3)
                booking.close()
                first.reservations.book("w", 7)
                await eventually(lambda: second.everywhere() == Booked(1, 7), within=SILENCE_SECONDS * 3)

    asyncio.run(scenario())


def test_sentinel_names_another_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        with sentinel_group(tmp_path) as group:
            async with gateways(group.url, 2) as (first, second):
                first.reservations.book("w", 100)
                await eventually(lambda: second.everywhere() == Booked(1, 100))
                await asyncio.to_thread(group.first.kill)
                await eventually(lambda: not second.shared())
                await eventually(lambda: second.shared() and second.everywhere() == Booked(1, 100), within=20)

    asyncio.run(scenario())


@pytest.mark.parametrize("redis", [True, False])
def test_processes_of_one_gateway_know_each_other_and_readyz_says_so(
    tmp_path: Path, redis_url: str, redis: bool
) -> None:
    async def reply(link) -> None:
        await link.send(plain(b"{}"))

    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            gateway(tmp_path, engine.port, processes=2, redis_url=redis_url if redis else None) as (_, _, ready),
        ):
            expected = ("of all gateways", 1) if redis else ("own, and workers' reports", 0)

            async def all_say_so() -> bool:
                processes = (await asyncio.to_thread(get_json, ready))["processes"]
                pools = [each["pools"]["default"] for each in processes if each["ready"]]
                return [(pool["bookings"], pool["other_gateways"]) for pool in pools] == [expected] * 2

            await eventually(all_say_so)

    run(scenario())
