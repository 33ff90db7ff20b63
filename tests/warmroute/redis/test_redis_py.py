"""What is ours in warmroute/redis, and why: each fault runs over our client and over redis-py's own.

Ours must pass. redis-py's own must fail: where it passes, the test fails as XPASS, and the code that its reason names
can go.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisClusterException, RedisError

from tests.redis_servers import MASTER, SentinelGroup, ServerCluster, sentinel_group, server, server_cluster, until
from tests.support import eventually
from warmroute.config.redis import RedisConfig
from warmroute.redis.access import gateway_rules
from warmroute.redis.client import connect

CONNECTIONS = 4
Opened = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCluster]:
    # Nothing fails over here; a busy machine must not look like a lost node.
    with server_cluster(tmp_path_factory.mktemp("cluster"), "--cluster-node-timeout", "10000") as servers:
        yield servers


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path) as servers:
        yield servers


@asynccontextmanager
async def ours(url: str, **config: Any) -> AsyncIterator[Any]:
    client = connect(RedisConfig(url=url, timeout_seconds=1, **config), connections=CONNECTIONS)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def redis_py(url: str, **config: Any) -> AsyncIterator[Any]:
    """redis-py's own, as its documentation has it, with a deadline of a second around every call.

    Without its `socket_timeout`, for the reason that `test_a_cancelled_call_ends` checks.
    """
    target = RedisConfig(url=url, **config).target
    options = {"protocol": 2, "max_connections": CONNECTIONS, "socket_timeout": None, "socket_connect_timeout": 1}
    if target.topology == "cluster":
        nodes = [ClusterNode(*address) for address in target.addresses]
        client: Any = _with_deadline(RedisCluster)(startup_nodes=nodes, **options, **config)
        sentinels = []
    else:
        asked = {"protocol": 2, "socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        sentinel = Sentinel(target.addresses, sentinel_kwargs=asked, retry=Retry(NoBackoff(), 1), **options)
        client = sentinel.master_for(MASTER, redis_class=_with_deadline(Redis))
        sentinels = sentinel.sentinels
    try:
        yield client
    finally:
        for each in (client, *sentinels):
            await each.aclose()
        # A cluster's client that failed to begin leaves them open.
        if target.topology == "cluster":
            for node in (*client.nodes_manager.startup_nodes.values(), *client.get_nodes()):
                await node.disconnect()


def _with_deadline(base: type) -> type:
    class WithDeadline(base):
        async def execute_command(self, *args: Any, **options: Any) -> Any:
            async with asyncio.timeout(1):
                return await super().execute_command(*args, **options)

    return WithDeadline


def needed(reason: str) -> pytest.MarkDecorator:
    """Of code of ours. The test runs over both clients."""
    failures = (AssertionError, TimeoutError, RedisError, RedisClusterException)
    fails = pytest.mark.xfail(strict=True, raises=failures, reason=reason)
    return pytest.mark.parametrize(
        "opened", [pytest.param(ours, id="ours"), pytest.param(redis_py, id="redis-py", marks=fails)]
    )


# --- Sentinel: warmroute/redis/sentinel.py --------------------------------------------------------------------------


@needed("MasterPool: redis-py asks Sentinel when it connects alone, and writes on to a master that was demoted")
def test_a_former_master_is_left_within_two_seconds(opened: Opened, group: SentinelGroup) -> None:
    async def scenario() -> None:
        async with opened(group.url) as redis:
            await redis.get("key")
            old = group.master()
            until(lambda: group.sentinels[0].call("SENTINEL", "FAILOVER", MASTER))
            await eventually(lambda: group.master() is not old)
            new = group.master()

            async def reaches_the_new_one() -> bool:
                with suppress(RedisError):
                    await redis.execute_command("INCR", "key")
                return bool(new.call("EXISTS", "key"))

            await eventually(reaches_the_new_one, within=2)

    asyncio.run(scenario())


@needed("MasterPool: redis-py's pool for Sentinel refuses a call when all connections are in use")
def test_calls_wait_for_a_connection_to_sentinels_master(opened: Opened, group: SentinelGroup) -> None:
    asyncio.run(_more_calls_than_connections(opened, group.url))


@needed("Sentinels: redis-py asks for all masters, which needs another permission than for one")
def test_a_user_that_may_only_ask_for_the_master(opened: Opened, group: SentinelGroup) -> None:
    permitted = ("+sentinel|get-master-addr-by-name", "+hello", "+auth", "+client|setinfo")
    group.sentinels[0].call("ACL", "SETUSER", "default", "-@all", *permitted)

    async def scenario() -> None:
        async with opened(group.url) as redis:
            assert await redis.get("key") is None

    asyncio.run(scenario())


# --- Cluster: warmroute/redis/cluster.py, cluster_map.py ------------------------------------------------------------


@needed("ClusterClient: redis-py's refuses a call when all connections to a node are in use")
def test_calls_wait_for_a_connection_to_a_node(opened: Opened, cluster: ServerCluster) -> None:
    asyncio.run(_more_calls_than_connections(opened, cluster.url))


@needed("ClusterClient: redis-py's calls COMMAND, which the documented users may not")
def test_a_user_of_the_documented_rules(opened: Opened, cluster: ServerCluster) -> None:
    for each in (*cluster.masters, cluster.replica):
        each.call("ACL", "SETUSER", "gateway", "on", ">password", *gateway_rules(cluster=True).split())

    async def scenario() -> None:
        async with opened(cluster.url, username="gateway", password="password") as redis:
            assert await redis.get("wr:{a}") is None

    asyncio.run(scenario())


@needed("ClusterMap: redis-py raises RedisClusterException, which is no RedisError")
def test_a_cluster_that_is_away_raises_redis_error(opened: Opened) -> None:
    async def scenario() -> None:
        async with opened("redis+cluster://127.0.0.1:1") as redis:
            with pytest.raises(RedisError):
                await redis.get("key")

    asyncio.run(scenario())


@needed("ClusterClient: redis-py sends ASKING and the command over two connections where it has them")
def test_keys_of_a_slot_that_is_half_moved(opened: Opened, cluster: ServerCluster) -> None:
    slot = key_slot(b"half moved")
    source = cluster.owner(slot)
    target = next(each for each in cluster.masters if each is not source)
    names = {each: each.call("CLUSTER", "MYID").decode() for each in (source, target)}
    at_target = next(f"{number}" for number in range(100) if cluster.owner(key_slot(b"%d" % number)) is target)

    async def scenario() -> None:
        for connections in range(1, CONNECTIONS + 1):
            async with opened(cluster.url) as redis:
                await redis.get(at_target)
                await asyncio.gather(*(redis.get(at_target) for _ in range(connections)))
                for call in range(10):
                    assert await redis.execute_command("INCR", f"{{half moved}}:{connections}:{call}") == 1

    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    try:
        asyncio.run(scenario())
    finally:
        target.call("FLUSHALL")
        for each in (source, target):
            each.call("CLUSTER", "SETSLOT", slot, "STABLE")


@needed("ClusterMap: a call that ends by its deadline does not make redis-py read the map again")
def test_a_node_that_hangs_is_left_after_the_failover(opened: Opened, tmp_path: Path) -> None:
    key = next(f"{number}" for number in range(100) if key_slot(b"%d" % number) < 5461)

    async def scenario() -> None:
        async with opened(servers.url) as redis:
            await redis.get(key)
            servers.masters[0].freeze()
            until(lambda: servers.replica.call("ROLE")[0] == b"master")

            async def answers() -> bool:
                with suppress(RedisError, TimeoutError):
                    return await redis.execute_command("INCR", key) > 0
                return False

            await eventually(answers, within=4)

    with server_cluster(tmp_path) as servers:
        asyncio.run(scenario())


async def _more_calls_than_connections(opened: Opened, url: str) -> None:
    async with opened(url) as redis:
        await redis.get("{a}")
        read = ("XREAD", "BLOCK", 200, "STREAMS", "{a}:log", "0-0")
        blocked = (redis.execute_command(*read) for _ in range(CONNECTIONS))
        results = await asyncio.gather(*blocked, *(redis.get("{a}") for _ in range(40)), return_exceptions=True)
        assert [result for result in results if isinstance(result, BaseException)] == []


# --- One server: `Calls.deadline` -----------------------------------------------------------------------------------

TIMED = pytest.param(
    {"socket_timeout": 5},
    id="redis-py",
    marks=pytest.mark.xfail(
        sys.version_info < (3, 12),
        strict=True,
        raises=AssertionError,
        reason="Calls.deadline: socket_timeout is by asyncio.wait_for, which loses cancellations up to Python 3.11",
    ),
)


@pytest.mark.parametrize("options", [pytest.param({"socket_timeout": None}, id="ours"), TIMED])
def test_a_cancelled_call_ends(options: dict[str, Any], tmp_path: Path) -> None:
    """Whichever step it is at; the server hangs, so that no call ends by itself."""
    steps = 30

    async def scenario(url: str) -> None:
        clients = [Redis.from_url(url, protocol=2, **options) for _ in range(steps)]
        for client in clients:
            await client.ping()
        process.freeze()
        calls = []
        for step, client in enumerate(clients):
            calls.append(asyncio.ensure_future(client.ping()))
            for _ in range(step):
                await asyncio.sleep(0)
            calls[-1].cancel()
        try:
            _, running = await asyncio.wait(calls, timeout=0.5)
            assert not running
        finally:
            process.thaw()
            await asyncio.gather(*calls, return_exceptions=True)
            for client in clients:
                await client.aclose()

    with server(tmp_path) as process:
        asyncio.run(scenario(process.url))
