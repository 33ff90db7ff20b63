"""One client over one server, Sentinel's master and a cluster: the same calls, over real servers and their failures."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from redis.crc import key_slot
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError  # noqa: A004 - redis-py's name
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.redis_servers import SentinelGroup, Server, ServerCluster, sentinel_group, server, server_cluster, until
from tests.support import eventually, redis_client
from warmroute.config.redis import RedisConfig
from warmroute.redis.client import Client, connect
from warmroute.redis.cluster import key_of

COUNT = "return redis.call('INCR', KEYS[1])"


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
async def client(url: str, **config):
    connected = connect(RedisConfig(url=url, **config))
    try:
        yield connected
    finally:
        await connected.aclose()


async def use(redis: Client) -> None:
    """Every kind of call that the index makes."""
    await redis.flushall()
    assert await redis.ping()
    script = redis.register_script(COUNT)
    for name in ("wr:{a}", "wr:{b}", "wr:{c}", "wr:{d}"):
        assert [await script(keys=[name]), await script(keys=[name], client=redis)] == [1, 2]
    assert await redis.set("wr:{a}:x", "1", nx=True, get=True) is None
    assert await redis.get("wr:{a}:x") == b"1"
    async with redis.deadline(), redis.pipeline(transaction=False) as pipeline:
        pipeline.sadd("wr:{a}:s", 1, 2)
        pipeline.smembers("wr:{a}:s")
        assert await pipeline.execute() == [2, {b"1", b"2"}]
    blocked = asyncio.ensure_future(redis.xread({"wr:{a}:log": "0-0"}, 10, 5000))
    async with asyncio.timeout(2):  # a blocked read holds up nobody
        await redis.hset("wr:{a}:h", "f", "v")
        assert await redis.hgetall("wr:{a}:h") == {b"f": b"v"}
        await redis.zadd("wr:{a}:z", {"w": 5})
        assert await redis.zrange("wr:{a}:z", 0, -1, withscores=True) == [(b"w", 5.0)]
        added = await redis.xadd("wr:{a}:log", {"k": "v"})
        ((_, entries),) = await blocked
    assert entries == [(added, {b"k": b"v"})]
    assert await redis.xrange("wr:{a}:log", added, added, count=1) == entries
    assert await redis.xrevrange("wr:{a}:log", count=1) == entries
    for master in await redis.masters():
        assert (await master.info("memory"))["maxmemory_policy"] == "noeviction"
        assert (await master.hello())["role"] == "master"


def test_one_server(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            await use(redis)
            assert len(await redis.masters()) == 1

    asyncio.run(scenario())


def test_a_unix_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with client(f"unix://{tmp_path}/redis.sock?db=1") as redis:
            await use(redis)

    with server(tmp_path, "--unixsocket", f"{tmp_path}/redis.sock"):
        asyncio.run(scenario())


def test_a_cluster(cluster: ServerCluster) -> None:
    async def scenario() -> None:
        async with client(cluster.url) as redis:
            await use(redis)
            assert len(await redis.masters()) == 3
            with pytest.raises(RedisError, match="each of `masters"):
                await redis.scan()

    asyncio.run(scenario())


def test_sentinels_master(group: SentinelGroup) -> None:
    async def scenario() -> None:
        async with client(group.url) as redis:
            await use(redis)
        nobody = group.url.replace("/index", "/other")
        async with client(nobody) as redis:
            with pytest.raises(ConnectionError, match="no master of the name 'other'"):
                await redis.ping()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_failover_of_sentinel_is_followed(fault: str, group: SentinelGroup) -> None:
    async def scenario() -> None:
        async with client(group.url, timeout_seconds=1) as redis:
            script = redis.register_script(COUNT)
            await script(keys=["wr:{a}"])
            reader = asyncio.ensure_future(redis.xread({"wr:{a}:log": "0-0"}, 10, 30_000))
            old = group.master()
            getattr(old, fault)()

            async def writes() -> bool:
                with suppress(RedisError):
                    return await script(keys=["wr:{a}"]) > 0
                return False

            await eventually(writes, within=15)
            assert group.master() is not old
            with suppress(RedisError):
                await reader
            assert len(await redis.masters()) == 1

    asyncio.run(scenario())


def test_a_master_that_was_demoted_is_left(group: SentinelGroup) -> None:
    async def scenario() -> None:
        async with client(group.url) as redis:
            await redis.set("wr:{a}", "1")
            old = group.master()
            until(lambda: group.sentinels[0].call("SENTINEL", "FAILOVER", "index"))
            await eventually(lambda: group.master() is not old)
            new = group.master()
            # The old one takes commands for ten seconds more: the client leaves it all the same.
            await eventually(lambda: _reaches(redis, new), within=4)
            # One that was demoted by another's hand keeps its connections, and says READONLY.
            new.call("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises((ReadOnlyError, ConnectionError)):
                await redis.set("wr:{a}", "3")
            new.call("REPLICAOF", "NO", "ONE")
            await eventually(lambda: _set(redis))

    asyncio.run(scenario())


async def _reaches(redis: Client, wanted: Server) -> bool:
    (master,) = await redis.masters()
    with suppress(RedisError):
        return (await master.info("server"))["tcp_port"] == wanted.port
    return False


async def _set(redis: Client) -> bool:
    with suppress(RedisError):
        return bool(await redis.set("wr:{a}", "3"))
    return False


def test_a_slot_that_moves_is_followed(cluster: ServerCluster) -> None:
    slot = key_slot(b"moving")
    source = cluster.owner(slot)
    target = next(each for each in cluster.masters if each is not source)
    names = {each: each.call("CLUSTER", "MYID").decode() for each in (source, target)}

    async def scenario() -> None:
        async with client(cluster.url) as redis:
            script = redis.register_script(COUNT)
            assert await script(keys=["{moving}"]) == 1
            target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
            source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
            # A key that the source does not have is asked of the target, where the script is not known yet.
            assert await script(keys=["{moving}:new"]) == 1
            async with redis.pipeline(transaction=False) as pipeline:
                pipeline.get("{moving}:new")
                pipeline.get("{moving}:new")
                assert await pipeline.execute() == [b"1", b"1"]
            source.call("MIGRATE", "127.0.0.1", target.port, "{moving}", 0, 1000)
            for each in (target, source):
                each.call("CLUSTER", "SETSLOT", slot, "NODE", names[target])
            # MOVED, with a command, then with none.
            assert await script(keys=["{moving}"]) == 2
            assert await script(keys=["{moving}"]) == 3

    asyncio.run(scenario())
    assert cluster.owner(slot) is target


def test_a_failover_of_a_cluster_is_followed(tmp_path: Path) -> None:
    async def scenario(servers: ServerCluster) -> None:
        key = next(f"wr:{{{number}}}" for number in range(1000) if key_slot(str(number).encode()) < 5461)
        other = next(f"wr:{{{number}}}" for number in range(1000) if key_slot(str(number).encode()) > 10922)
        async with client(servers.url, timeout_seconds=2) as redis:
            script = redis.register_script(COUNT)
            await script(keys=[key])
            servers.masters[0].kill()

            async def writes() -> bool:
                with suppress(RedisError):
                    return await script(keys=[key]) > 0
                return False

            await eventually(writes, within=20)
            await script(keys=[other])
            assert len(await redis.masters()) == 3
            # A node that comes back knows no script.
            servers.replica.call("SCRIPT", "FLUSH")
            assert await writes()

    with server_cluster(tmp_path) as servers:
        asyncio.run(scenario(servers))


def test_a_frozen_server_costs_one_deadline(tmp_path: Path) -> None:
    async def scenario(frozen: Server) -> None:
        async with client(frozen.url, timeout_seconds=1) as redis:
            await redis.ping()
            frozen.freeze()
            try:
                async with asyncio.timeout(3):
                    results = await asyncio.gather(*(redis.get("k") for _ in range(40)), return_exceptions=True)
                assert all(isinstance(result, RedisTimeoutError | ConnectionError) for result in results)
            finally:
                frozen.thaw()
            assert await redis.ping()

    with server(tmp_path) as frozen:
        asyncio.run(scenario(frozen))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_that_are_reset_are_redis_errors(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """uvloop raises RuntimeError of a write on a connection that was reset, which ended whoever called."""

    async def scenario() -> None:
        served: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.append(writer)
            with suppress(ConnectionResetError):
                while commands := (await reader.read(4096)).count(b"*"):
                    writer.write(b"+OK\r\n" * commands)

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with client(f"redis://127.0.0.1:{port}/0", timeout_seconds=5) as redis:
                connection = redis.connection_pool.make_connection()
                await connection.connect()
                await eventually(lambda: served)
                end = served[0].get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                served[0].transport.abort()
                await eventually(connection._writer.is_closing)
                with pytest.raises(ConnectionError):
                    await connection.send_command("PING")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("EVALSHA", "f", 1, "k", "a"), b"k"),
        (("EVAL", "f", 0, "a"), None),
        (("XREAD", "BLOCK", "5", "COUNT", "1", b"STREAMS", "k", "0"), b"k"),
        (("CLIENT PAUSE", "5"), None),
        (("MEMORY USAGE", "k"), b"k"),
        (("SET", b"k", "v"), b"k"),
        (("PING",), None),
    ],
)
def test_commands_are_routed_by_their_first_key(command: tuple, key: bytes | None) -> None:
    assert key_of(command) == key
