"""TLS to Redis, one-sided and mutual, and to Sentinel and a cluster with passwords.

Debian's server has TLS, the bundled one has not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004 - redis-py's name
    RedisError,
)

from tests.certificates import Authority
from tests.redis_servers import Access, Server, sentinel_group, server, server_cluster
from tests.support import eventually
from warmroute.config.redis import RedisConfig
from warmroute.process.lifecycle import StartupError
from warmroute.redis.client import connect


@pytest.fixture(scope="module")
def binary() -> str:
    path = os.environ.get("WARMROUTE_TEST_REDIS_SERVER")
    if not path:
        pytest.skip("WARMROUTE_TEST_REDIS_SERVER names no redis-server with TLS: source .ci/services.sh")
    return path


def certificates(folder: Path, hosts: str) -> Path:
    authority = Authority(folder)
    authority.sign("server", hosts)
    authority.sign("client", "client")
    return folder


@pytest.fixture(scope="module")
def tls_server(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tls")
    access = Access(certificates(folder / "ca", "localhost"))
    with server(folder / "ca", access=access, binary=binary) as process:
        yield process


def ping(at: Server, host: str = "localhost", **fields: object) -> None:
    async def scenario() -> None:
        files = {name: at.folder / value for name, value in fields.items() if name.endswith("_file")}
        client = connect(RedisConfig(url=f"rediss://{host}:{at.port}", **{**fields, **files}))
        try:
            assert await client.ping()
        finally:
            await client.aclose()

    asyncio.run(scenario())


OURS = {"tls_cert_file": "client.pem", "tls_key_file": "client.key"}


def test_mutual_tls(tls_server: Server) -> None:
    ping(tls_server, tls_ca_file="ca.pem", **OURS)


def test_a_server_that_asks_for_a_certificate_gets_none(tls_server: Server) -> None:
    with pytest.raises(ConnectionError):
        ping(tls_server, tls_ca_file="ca.pem")


def test_an_unknown_authority_is_refused(tls_server: Server) -> None:
    with pytest.raises(ConnectionError, match="certificate verify failed"):
        ping(tls_server, **OURS)


def test_another_host_is_refused(tls_server: Server) -> None:
    with pytest.raises(ConnectionError, match=r"certificate is not valid for '127.0.0.1'"):
        ping(tls_server, "127.0.0.1", tls_ca_file="ca.pem", **OURS)
    ping(tls_server, "127.0.0.1", tls_ca_file="ca.pem", tls_check_hostname=False, **OURS)


def test_verification_can_be_switched_off(tls_server: Server) -> None:
    ping(tls_server, "127.0.0.1", tls_verify=False, **OURS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tls_ca_file": "/none"}, r"redis\.tls_ca_file: /none cannot be read"),
        ({"tls_ca_file": __file__}, r"redis\.tls_ca_file: .* holds no PEM certificates"),
        ({"tls_cert_file": __file__}, r"redis\.tls_cert_file, redis\.tls_key_file: .* are no PEM"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(fields: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        connect(RedisConfig(url="rediss://localhost", **fields))


# --- Sentinel and Cluster, by TLS with passwords --------------------------------------------------------------------

# The names that Sentinels and nodes tell are addresses.
ADDRESSES = "localhost,IP:127.0.0.1"
# Of the first of a cluster's masters, which has the replica.
KEY = "wr:{3}"


def secured(url: str, folder: Path, **fields: object) -> RedisConfig:
    files = {"tls_ca_file": folder / "ca.pem", **{name: folder / file for name, file in OURS.items()}}
    return RedisConfig(url=url, **files, **fields)


async def survives(config: RedisConfig, master: Server, replica: Server) -> None:
    """Reads, writes and listens; reads again when the replica has taken over."""
    client = connect(config)
    try:
        await client.set(KEY, "1", nx=True, get=True)
        async with client.subscription(f"{KEY}:flight") as subscription:
            await client.execute_command("SPUBLISH", f"{KEY}:flight", b"heard")
            assert await subscription.read() == b"heard"
        await eventually(lambda: replica.call("DBSIZE"))
        master.kill()

        async def read() -> bytes | None:
            with suppress(RedisError):
                return await client.get(KEY)
            return None

        assert await eventually(read, within=30) == b"1"
    finally:
        await client.aclose()


async def refused(config: RedisConfig) -> str:
    client = connect(config)
    try:
        with pytest.raises((AuthenticationError, ConnectionError)) as caught:
            await client.ping()
    finally:
        await client.aclose()
    return str(caught.value)


def test_sentinel_by_tls_with_passwords(binary: str, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "ca", ADDRESSES)
    access = Access(folder, "for-servers")
    ours = {"password": "for-servers", "sentinel_password": "for-sentinels"}

    async def scenario() -> None:
        wrong = await refused(secured(group.url, folder, **{**ours, "sentinel_password": "wr0ng"}))
        assert "redis.sentinel_password" in wrong
        assert "wr0ng" not in wrong
        assert "wr0ng" not in await refused(secured(group.url, folder, **{**ours, "password": "wr0ng"}))
        await survives(secured(group.url, folder, **ours), group.first, group.second)

    with sentinel_group(tmp_path, access=access, sentinel_password="for-sentinels", binary=binary) as group:
        asyncio.run(scenario())


def test_a_cluster_by_tls_with_a_password(binary: str, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "ca", ADDRESSES)
    access = Access(folder, "for-servers")

    async def scenario() -> None:
        assert "wr0ng" not in await refused(secured(servers.url, folder, password="wr0ng"))
        await survives(secured(servers.url, folder, password="for-servers"), servers.masters[0], servers.replica)

    with server_cluster(tmp_path, access=access, binary=binary) as servers:
        asyncio.run(scenario())
