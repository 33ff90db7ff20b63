"""TLS and a key towards workers, over real handshakes."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.discovery.health import HealthChecks
from gateway.http.outcome import Outcome
from gateway.http.upstream_security import UpstreamSecurity
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import State, Worker
from tests.certificates import Authority
from tests.gateway.http.support import (
    LAST_CHUNK,
    SSE_HEAD,
    Link,
    chunk,
    client,
    gateway,
    plain,
    replying,
    request,
    run,
    worker,
)
from tests.gateway.process.test_gateway import REQUEST, healthy_then
from tests.gateway.process.test_gateway import gateway as process_of
from tests.indexer.support import running
from tests.support import eventually
from warmroute.config.pool import PoolConfig, UpstreamTlsConfig
from warmroute.process.lifecycle import StartupError

NAME = "engine.test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger") / "ca")


def serving(authority: Authority, clients: Authority | None = None) -> ssl.SSLContext:
    """A worker's TLS; with `clients` it wants a certificate that this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("engine", NAME))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.ca)
    return context


def security(upstream_key_file: Path | None = None, **tls: Any) -> UpstreamSecurity:
    return UpstreamSecurity(
        PoolConfig(
            model="m",
            upstream_tls=UpstreamTlsConfig(**tls) if tls else None,
            upstream_key_file=upstream_key_file,
        )
    )


def test_requests_streams_and_health_checks_of_a_gateway(authority: Authority, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("the-engines-key\n")
    pool = {
        "model": "m",
        "upstream_tls": {"ca_file": str(authority.ca), "server_name": NAME},
        "upstream_key_file": str(key_file),
    }

    async def stream(link: Link) -> None:
        await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await link.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

    async def main() -> None:
        async with worker(lambda link: healthy_then(link, stream), serving(authority)) as engine:
            pools = [pool | {"workers": [f"127.0.0.1:{engine.port}"]}]
            async with process_of(tmp_path, engine.port, pools=pools) as (_, port, _):
                mine = b"\r\nAuthorization: Bearer mine\r\nX-Api-Key: mine\r\nHost: x"
                async with client(port) as connected:
                    for _ in range(2):
                        answer = await connected.ask(REQUEST.replace(b"\r\nHost: x", mine))
                        assert answer.body == b"data: 1\n\ndata: [DONE]\n\n"
            assert {message.header(b"authorization") for message in engine.requests} == {b"Bearer the-engines-key"}
            assert any(b"/health" in message.start for message in engine.requests)
            assert all(message.header(b"x-api-key") is None for message in engine.requests)

    run(main())


def test_a_large_body_and_a_kept_connection(authority: Authority) -> None:
    async def main() -> None:
        async with (
            worker(replying(plain(bytes(300_000))), serving(authority)) as engine,
            gateway(engine.port, security=security(ca_file=authority.ca, server_name=NAME)) as gate,
        ):
            for _ in range(3):
                assert (await gate.ask(request(body=bytes(500_000)))).body == bytes(300_000)
            assert engine.accepted == 1
            assert [len(message.body) for message in engine.requests] == [500_000] * 3

    run(main())


@pytest.mark.parametrize("wrong", ["authority", "name", "plain"])
def test_a_worker_that_cannot_be_trusted_gets_nothing(wrong: str, authority: Authority, stranger: Authority) -> None:
    tls = {"ca_file": (stranger if wrong == "authority" else authority).ca}
    if wrong != "name":  # else the certificate would have to name 127.0.0.1
        tls["server_name"] = NAME
    reached = security(**tls)

    async def refuse(link: Link) -> None:
        await link.reader.read(1)
        await link.send(plain(b"", b"400 Bad Request"))

    async def main() -> None:
        scripted = refuse if wrong == "plain" else replying(plain(b""))
        context = None if wrong == "plain" else serving(authority)
        async with (
            worker(scripted, context) as engine,
            gateway(engine.port, security=reached, attempts=1) as gate,
        ):
            answer = await gate.ask(request())
            assert (answer.status, gate.assigner.outcomes) == (502, [Outcome.UNREACHABLE])
            assert b"worker_unreachable" in answer.body
            target = Worker(Target("w", "127.0.0.1", engine.port))
            async with running(HealthChecks(lambda: [target], reached).run()):
                await eventually(lambda: target.failed_checks)
                assert target.state(0) is State.UNHEALTHY
            assert not engine.requests

    run(main())


def test_workers_that_want_a_certificate_get_the_pools(
    authority: Authority, stranger: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests and health checks; the files are read again when they change, both or neither."""
    cert, key = tmp_path / "client.pem", tmp_path / "client.key"

    def show(signer: Authority) -> None:
        for target, made in zip((cert, key), signer.sign("gateway", "gateway.test"), strict=True):
            target.write_bytes(made.read_bytes())

    async def main() -> None:
        async with worker(replying(plain(b"fine")), serving(authority, clients=authority)) as engine:

            async def asked(reached: UpstreamSecurity) -> int:
                async with gateway(engine.port, security=reached, attempts=1) as gate:
                    return (await gate.ask(request())).status

            trusted = {"ca_file": authority.ca, "server_name": NAME}
            assert await asked(security(**trusted)) == 502  # shows none
            show(stranger)
            reached = security(**trusted, cert_file=cert, key_file=key)
            assert await asked(reached) == 502
            target = Worker(Target("w", "127.0.0.1", engine.port))
            async with running(HealthChecks(lambda: [target], reached).run()):
                await eventually(lambda: target.failed_checks)
                assert not engine.requests
                key.write_bytes(b"half written")
                reached.refresh()
                assert "upstream_tls.cert_file" in caplog.text
                show(authority)
                reached.refresh()
                assert await asked(reached) == 200
                await eventually(lambda: target.state(0) is State.READY)

    run(main())


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cert_file and key_file go together"):
        UpstreamTlsConfig(cert_file=tmp_path / "cert.pem")
    with pytest.raises(StartupError, match=r"upstream_tls\.cert_file, upstream_tls\.key_file of default: .*PEM"):
        security(cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")


def test_verify_false_trusts_everyone(authority: Authority) -> None:
    async def main() -> None:
        reached = security(verify=False)
        async with (
            worker(replying(plain(b"fine")), serving(authority)) as engine,
            gateway(engine.port, security=reached) as gate,
        ):
            assert (await gate.ask(request())).body == b"fine"
            target = Worker(Target("w", "127.0.0.1", engine.port))
            async with running(HealthChecks(lambda: [target], reached).run()):
                await eventually(lambda: target.state(0) is State.READY)

    run(main())


def test_a_worker_that_never_shakes_hands_is_given_up_in_time() -> None:
    async def silent(link: Link) -> None:
        await link.peer_gone()

    async def main() -> None:
        reached = security(verify=False)
        async with worker(silent) as engine, gateway(engine.port, security=reached, connect_seconds=0.2) as gate:
            answer = await gate.ask(request())
            assert (answer.status, gate.assigner.outcomes) == (504, [Outcome.UNREACHABLE])
            await eventually(lambda: engine.open == 0)

    run(main())


def test_files_that_change(
    authority: Authority, stranger: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authorities, key = tmp_path / "ca.pem", tmp_path / "key"
    authorities.write_bytes(stranger.ca.read_bytes())
    key.write_text("first")
    reached = security(key, ca_file=authorities, server_name=NAME)

    async def main() -> None:
        async with (
            worker(replying(plain(b"fine")), serving(authority)) as engine,
            gateway(engine.port, security=reached) as gate,
        ):
            assert (await gate.ask(request())).status == 502
            authorities.write_bytes(authority.ca.read_bytes())
            key.write_text("two words")
            with caplog.at_level(logging.INFO):
                reached.refresh()
            assert "upstream_key_file of default" in caplog.text
            assert (await gate.ask(request())).status == 502  # all or nothing
            key.write_text("second\n")
            reached.refresh()
            assert (await gate.ask(request())).body == b"fine"
            assert engine.requests[0].header(b"authorization") == b"Bearer second"

    run(main())


@pytest.mark.parametrize("text", [b"", b"two words", b"a\r\nx: y", b"k" * 5000, "schlüssel".encode()])
def test_a_key_that_is_none_ends_the_start_and_is_not_shown(text: bytes, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(text)
    with pytest.raises(StartupError, match=r"upstream_key_file of default: .*visible ASCII") as caught:
        security(key)
    assert not text or text.decode() not in str(caught.value)


def test_other_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"upstream_key_file of default: .*cannot be read"):
        security(tmp_path / "missing")
    none = tmp_path / "ca.pem"
    none.write_text("no certificate")
    for file in (none, tmp_path / "missing"):
        with pytest.raises(StartupError, match=r"upstream_tls\.ca_file of default: .*cannot be used"):
            security(ca_file=file)
    with pytest.raises(ValueError, match="verify: false checks nothing"):
        security(ca_file=none, verify=False)
