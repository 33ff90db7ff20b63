"""TLS and the shared token over real handshakes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from gateway.discovery.load_reports import LoadReports
from gateway.discovery.metrics import DiscoveryMetrics
from tests.certificates import Authority, openssl
from tests.indexer.support import POOL, engine, indexer, running
from tests.support import eventually
from warmroute.config.grpc import GrpcConfig
from warmroute.process.watched_files import SecurityError
from warmroute.rpc.security import ClientSecurity, ServerSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

TOKEN = "0123456789abcdef-the-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger") / "ca")


def server_config(authority: Authority, *, mutual: bool, **more: object) -> GrpcConfig:
    cert, key = authority.sign("server")
    return GrpcConfig(tls_ca_file=authority.ca if mutual else None, tls_cert_file=cert, tls_key_file=key, **more)


def client_config(authority: Authority, certified_by: Authority | None = None, **more: object) -> GrpcConfig:
    cert, key = certified_by.sign("client") if certified_by is not None else (None, None)
    settings = {"tls_server_name": "indexer.test", **more}
    return GrpcConfig(tls_ca_file=authority.ca, tls_cert_file=cert, tls_key_file=key, **settings)


async def describe(address: str, config: GrpcConfig) -> grpc.StatusCode:
    security = ClientSecurity(config)
    async with security.channel(address) as channel:
        try:
            await index_pb2_grpc.IndexServiceStub(channel).Describe(
                pb.DescribeRequest(format_version=1), metadata=grpc.aio.Metadata(*security.metadata()), timeout=10
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_mutual_tls_lets_in_who_the_authority_knows(redis_url: str, authority: Authority, stranger: Authority) -> None:
    async def scenario() -> None:
        async with indexer(redis_url, grpc_config=server_config(authority, mutual=True)) as index:
            unavailable = grpc.StatusCode.UNAVAILABLE
            assert await describe(index.address, client_config(authority, authority)) is grpc.StatusCode.OK
            assert await describe(index.address, client_config(authority)) is unavailable
            assert await describe(index.address, client_config(authority, stranger)) is unavailable
            assert await describe(index.address, client_config(stranger, authority)) is unavailable
            assert await describe(index.address, GrpcConfig()) is unavailable
            other_name = client_config(authority, authority, tls_server_name="another.test")
            assert await describe(index.address, other_name) is unavailable

    asyncio.run(scenario())


def test_workers_publish_and_gateways_listen_over_tls(redis_url: str, authority: Authority) -> None:
    async def scenario() -> None:
        server, client = server_config(authority, mutual=False, token=TOKEN), client_config(authority, token=TOKEN)
        async with indexer(redis_url, grpc_config=server) as index:
            worker = engine(index.address, "w", grpc_config=client)
            reports = LoadReports(
                [index.address], [POOL], DiscoveryMetrics(CollectorRegistry()), ClientSecurity(client)
            )
            async with running(worker.publisher.run(), reports.run()):
                await eventually(lambda: worker.count("snapshots"))
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()))

    asyncio.run(scenario())


def test_a_rotated_certificate_serves_the_next_handshake(redis_url: str, authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> None:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

        def install(name: str, host: str) -> None:
            for source, target in zip(authority.sign(name, host), (cert, key), strict=True):
                shutil.copyfile(source, target)

        install("old", "old.test")
        old, new = (client_config(authority, tls_server_name=name) for name in ("old.test", "new.test"))
        async with indexer(redis_url, grpc_config=GrpcConfig(tls_cert_file=cert, tls_key_file=key)) as index:
            assert await describe(index.address, old) is grpc.StatusCode.OK
            assert await describe(index.address, new) is grpc.StatusCode.UNAVAILABLE
            key.write_text("half way through a rotation\n")
            assert await describe(index.address, old) is grpc.StatusCode.OK
            install("new", "new.test")
            assert await describe(index.address, new) is grpc.StatusCode.OK
            assert await describe(index.address, old) is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_calls_without_the_token_are_refused_with_the_remedy(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "tokens"
        file.write_text(f"{TOKEN}\n")
        async with indexer(redis_url, grpc_config=GrpcConfig(token_file=file)) as index:
            for config in (GrpcConfig(), GrpcConfig(token="another-token")):
                assert await describe(index.address, config) is grpc.StatusCode.UNAUTHENTICATED
            assert await describe(index.address, GrpcConfig(token=TOKEN)) is grpc.StatusCode.OK
            async with grpc.aio.insecure_channel(index.address) as channel:
                stub = index_pb2_grpc.IndexServiceStub(channel)
                for stream in (stub.Publish(), stub.Loads(pb.LoadsRequest(format_version=1))):
                    with pytest.raises(grpc.aio.AioRpcError, match=r"authorization: .*grpc\.token_file"):
                        await stream.read()
            file.write_text(f"the-new-token\n{TOKEN}\n")
            for token in (TOKEN, "the-new-token"):
                assert await describe(index.address, GrpcConfig(token=token)) is grpc.StatusCode.OK
            file.write_text("the-new-token\n")
            assert await describe(index.address, GrpcConfig(token=TOKEN)) is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(scenario())


def test_a_worker_with_the_wrong_token_says_so_and_publishes_once_it_is_right(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "token"
        file.write_text("the-wrong-token")
        async with indexer(redis_url, grpc_config=GrpcConfig(token=TOKEN)) as index:
            worker = engine(index.address, "w", grpc_config=GrpcConfig(token_file=file))
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.trouble.startswith("unauthenticated: authorization:"))
                file.write_text(TOKEN)
                await eventually(lambda: worker.publisher.connected)

    asyncio.run(scenario())


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("::1", False), ("10.0.0.7", True)])
def test_a_token_without_tls_beyond_loopback_is_warned_of(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ServerSecurity(GrpcConfig(token=TOKEN)).warn_if_exposed(host)
    assert ("without TLS" in caplog.text) is warned
    assert TOKEN not in caplog.text


def test_what_cannot_work_is_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("one")
    _, other_key = authority.sign("two")
    missing, garbage = tmp_path / "missing", tmp_path / "garbage"
    garbage.write_text("no PEM")
    cases = [
        (ServerSecurity, {"tls_cert_file": cert}, "grpc.tls_cert_file"),
        (ServerSecurity, {"tls_key_file": key}, "grpc.tls_key_file"),
        (ServerSecurity, {"tls_ca_file": authority.ca}, "grpc.tls_ca_file"),
        (ServerSecurity, {"tls_cert_file": missing, "tls_key_file": key}, "grpc.tls_cert_file"),
        (ServerSecurity, {"tls_cert_file": cert, "tls_key_file": other_key}, "grpc.tls_key_file"),
        (ServerSecurity, {"tls_cert_file": garbage, "tls_key_file": key}, "grpc.tls_key_file"),
        (ClientSecurity, {"tls_ca_file": garbage}, "grpc.tls_ca_file"),
        (ClientSecurity, {"tls_cert_file": cert, "tls_key_file": key}, "grpc.tls_cert_file"),
        (ClientSecurity, {"token_file": missing}, "grpc.token_file"),
        (ClientSecurity, {"token": "short"}, "grpc.token"),
        (ClientSecurity, {"token": TOKEN, "token_file": garbage}, "grpc.token_file"),
    ]
    for side, settings, field in cases:
        with pytest.raises(SecurityError) as error:
            side(GrpcConfig(**settings))
        assert str(error.value).startswith(f"{field}: ")
        assert TOKEN not in str(error.value)


def test_an_encrypted_key_is_refused_and_not_asked_for(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("locked")
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    with pytest.raises(SecurityError, match=r"grpc\.tls_key_file: .*not encrypted"):
        ServerSecurity(GrpcConfig(tls_cert_file=cert, tls_key_file=locked))


def test_the_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(GrpcConfig(token=TOKEN))
