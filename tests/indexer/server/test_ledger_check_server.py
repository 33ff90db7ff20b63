"""What the indexer demands of Redis, on real servers and with real users; and that the rules we publish suffice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import AuthenticationError, NoPermissionError

from indexer.reader.metrics import MirrorMetrics
from indexer.reader.pool_index import PoolIndex
from indexer.server.file_store import SCRIPT as FILES_SCRIPT
from indexer.server.ledger import SCRIPT, UnsuitableRedisError, check_server
from tests.indexer.support import POOL, engine, in_step, indexer, running
from tests.redis_servers import Server, server
from tests.support import eventually
from warmroute.config.redis import RedisConfig
from warmroute.redis.access import FILE_COMMANDS, INDEXER_COMMANDS, SCRIPT_COMMANDS, gateway_rules, indexer_rules
from warmroute.redis.client import Client, connect


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path) as process:
        process.call("ACL", "SETUSER", "indexer", "on", ">i", *indexer_rules().split())
        process.call("ACL", "SETUSER", "gateway", "on", ">g", *gateway_rules().split())
        yield process


@asynccontextmanager
async def user(at: Server, username: str | None = None, password: str | None = None) -> AsyncIterator[Client]:
    client = connect(RedisConfig(url=at.url, username=username, password=password))
    try:
        yield client
    finally:
        await client.aclose()


def check(at: Server, username: str | None = None, password: str | None = None) -> None:
    async def scenario() -> None:
        async with user(at, username, password) as redis:
            await check_server(redis)

    asyncio.run(scenario())


def test_the_published_rules_suffice_for_indexer_and_gateway(valkey_server: Server) -> None:
    check(valkey_server, "indexer", "i")
    address = valkey_server.url.removeprefix("redis://")

    async def scenario() -> None:
        async with (
            indexer(f"redis://indexer:i@{address}", log_entries=1000) as index,
            user(valkey_server, "gateway", "g") as redis,
        ):
            mirror = PoolIndex(redis, POOL, MirrorMetrics(CollectorRegistry()))
            worker = engine(index.address, "w")
            async with running(mirror.run(), worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: in_step(mirror, worker))
                worker.store(1, 2)
                worker.clear()
                worker.store(3)
                await eventually(lambda: in_step(mirror, worker) and worker.publisher.state.held("device"))
                await index.service._drop_late()
                assert index.service.ledger_up
            with pytest.raises(NoPermissionError):
                await redis.set("wr:{x}", "1")
            with pytest.raises(NoPermissionError):
                await redis.hgetall("other")

    asyncio.run(scenario())


def test_the_script_calls_no_other_commands_than_those_published() -> None:
    called = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", SCRIPT)} - {"memory"}
    called |= {"srem", "sadd"}  # by a variable
    assert called <= set(SCRIPT_COMMANDS)
    assert set(SCRIPT_COMMANDS) - called <= {"memory|usage", "get", "set"}


def test_the_script_of_files_calls_no_other_commands_than_those_published() -> None:
    called = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", FILES_SCRIPT)}
    assert called <= {*SCRIPT_COMMANDS, *FILE_COMMANDS}
    assert set(FILE_COMMANDS) <= called


def test_what_a_user_lacks_is_named(valkey_server: Server) -> None:
    valkey_server.call("ACL", "SETUSER", "indexer", "-xadd", "-unlink")
    with pytest.raises(NoPermissionError, match=r"may not call unlink, xadd on keys wr:\*.*\+evalsha"):
        check(valkey_server, "indexer", "i")
    with pytest.raises(NoPermissionError, match="eval"):
        check(valkey_server, "gateway", "g")


def test_without_info_the_policy_is_only_doubted(valkey_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    valkey_server.call("ACL", "SETUSER", "indexer", "-info")
    check(valkey_server, "indexer", "i")
    assert "cannot see whether Redis runs maxmemory-policy noeviction" in caplog.text


@pytest.mark.parametrize(("username", "password"), [("indexer", "wr0ng"), ("nobody", "wr0ng"), (None, "wr0ng")])
def test_a_wrong_user_is_told_so_without_the_password(
    username: str | None, password: str, valkey_server: Server
) -> None:
    valkey_server.call("CONFIG", "SET", "requirepass", "secret")
    with pytest.raises(AuthenticationError, match=r"refuses our user or password.*redis\.password_file") as caught:
        check(valkey_server, username, password)
    assert password not in str(caught.value)


def test_a_missing_user_is_told_so(valkey_server: Server) -> None:
    valkey_server.call("CONFIG", "SET", "requirepass", "secret")
    with pytest.raises(AuthenticationError, match=r"set redis\.username and redis\.password"):
        check(valkey_server)


def test_a_server_that_evicts_is_refused(valkey_server: Server) -> None:
    valkey_server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(UnsuitableRedisError, match="noeviction"):
        check(valkey_server)


def test_an_old_server_is_refused(valkey_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.server.ledger.OLDEST_REDIS", 99)
    with pytest.raises(UnsuitableRedisError, match=r"version \d+\.\d+\.\d+: upgrade it"):
        check(valkey_server)


def test_a_password_may_change_in_its_file(valkey_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("i\n")

    async def scenario() -> None:
        redis = connect(RedisConfig(url=valkey_server.url, username="indexer", password_file=file))
        try:
            assert await redis.ping()
            valkey_server.call("ACL", "SETUSER", "indexer", "resetpass", ">new")
            valkey_server.call("CLIENT", "KILL", "USER", "indexer")
            with pytest.raises(AuthenticationError):
                await redis.ping()
            file.write_text("new\n")
            assert await redis.ping()
            file.unlink()
            valkey_server.call("CLIENT", "KILL", "USER", "indexer")
            with pytest.raises(AuthenticationError, match=r"redis\.password_file: .* cannot be read"):
                await redis.ping()
        finally:
            await redis.aclose()

    asyncio.run(scenario())


def test_commands_are_told_once() -> None:
    commands = (*INDEXER_COMMANDS, *FILE_COMMANDS)
    assert len(set(commands)) == len(commands)
