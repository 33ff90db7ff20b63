"""TLS to Redis, one-sided and mutual, over a real server; its Debian package has TLS, the bundled one has not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's name

from tests.certificates import Authority
from tests.redis_servers import Server, free_port
from warmroute.config.redis import RedisConfig
from warmroute.process.lifecycle import StartupError
from warmroute.redis.client import connect


@dataclass
class TlsServer:
    port: int
    folder: Path


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    binary = os.environ.get("WARMROUTE_TEST_REDIS_SERVER")
    if not binary:
        pytest.skip("WARMROUTE_TEST_REDIS_SERVER names no redis-server with TLS: source .ci/services.sh")
    folder = tmp_path_factory.mktemp("tls") / "ca"
    authority = Authority(folder)
    authority.sign("server", "localhost")
    authority.sign("client", "client")
    port = free_port()
    files = ("--tls-ca-cert-file", "ca.pem", "--tls-cert-file", "server.pem", "--tls-key-file", "server.key")
    options = {
        "ssl": True,
        "ssl_ca_certs": str(folder / "ca.pem"),
        "ssl_certfile": str(folder / "client.pem"),
        "ssl_keyfile": str(folder / "client.key"),
        "ssl_check_hostname": False,
    }
    arguments = ("--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", "", *files)
    process = Server(port, arguments, folder, binary=binary, client_options=options)
    try:
        process.start()
        yield TlsServer(port, folder)
    finally:
        process.kill()


def ping(at: TlsServer, host: str = "localhost", **fields: object) -> None:
    async def scenario() -> None:
        files = {name: at.folder / value for name, value in fields.items() if name.endswith("_file")}
        client = connect(RedisConfig(url=f"rediss://{host}:{at.port}", **{**fields, **files}))
        try:
            assert await client.ping()
        finally:
            await client.aclose()

    asyncio.run(scenario())


OURS = {"tls_cert_file": "client.pem", "tls_key_file": "client.key"}


def test_mutual_tls(tls_server: TlsServer) -> None:
    ping(tls_server, tls_ca_file="ca.pem", **OURS)


def test_a_server_that_asks_for_a_certificate_gets_none(tls_server: TlsServer) -> None:
    with pytest.raises(ConnectionError):
        ping(tls_server, tls_ca_file="ca.pem")


def test_an_unknown_authority_is_refused(tls_server: TlsServer) -> None:
    with pytest.raises(ConnectionError, match="certificate verify failed"):
        ping(tls_server, **OURS)


def test_another_host_is_refused(tls_server: TlsServer) -> None:
    with pytest.raises(ConnectionError, match=r"certificate is not valid for '127.0.0.1'"):
        ping(tls_server, "127.0.0.1", tls_ca_file="ca.pem", **OURS)
    ping(tls_server, "127.0.0.1", tls_ca_file="ca.pem", tls_check_hostname=False, **OURS)


def test_verification_can_be_switched_off(tls_server: TlsServer) -> None:
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
