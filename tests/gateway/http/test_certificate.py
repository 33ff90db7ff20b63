"""TLS towards clients over real handshakes, and the Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.http.certificate import Certificate
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.server import Server
from tests.certificates import Authority
from tests.gateway.http.support import Client, config, gateway, plain, replying, request, run, worker
from tests.support import eventually
from warmroute.config.gateway import GatewayConfig
from warmroute.process.lifecycle import StartupError

HOST = "gateway.test"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


async def connect(port: int, authority: Authority) -> Client:
    context = ssl.create_default_context(cafile=str(authority.ca))
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST))


def serial(client: Client) -> str:
    return str(client.writer.get_extra_info("peercert")["serialNumber"])


async def echo_scheme(request: Request, reply: Reply) -> None:
    reply.send(200, (), request.scheme.encode() + b" " + request.body)


def test_requests_over_tls_and_a_certificate_that_changes(authority: Authority) -> None:
    cert, key = authority.sign("one", HOST)
    next_cert, next_key = authority.sign("two", HOST)

    async def main() -> None:
        settings = config(tls_cert_file=cert, tls_key_file=key)
        server = Server(echo_scheme, settings, certificate_seconds=0.02)
        await server.start()
        former = await connect(server.port, authority)
        body = bytes(100_000)
        assert (await former.ask(request(body=body))).body == b"https " + body

        cert.write_bytes(b"no certificate")
        latest = await connect(server.port, authority)
        assert serial(latest) == serial(former)  # what is in use stays
        cert.write_bytes(next_cert.read_bytes())
        key.write_bytes(next_key.read_bytes())
        clients = [former, latest]

        async def changed() -> bool:
            clients.append(await connect(server.port, authority))
            return serial(clients[-1]) != serial(former)

        await eventually(changed)
        for client in clients:
            assert (await client.ask(request(body=b"x"))).body == b"https x"

        # A refusal reaches a TLS client too, and ends the connection.
        refused = await former.ask(b"GET / HTTP/1.1\r\n\r\n")
        assert refused.status == 400
        assert await former.at_end()
        for client in clients:
            client.writer.close()
        await server.drain(1.0)
        assert server.connections == 0

    run(main())


def test_the_worker_is_told_that_the_client_came_over_tls(authority: Authority) -> None:
    cert, key = authority.sign("one", HOST)

    async def main() -> None:
        async with (
            worker(replying(plain(b"fine"))) as engine,
            gateway(engine.port, tls_cert_file=cert, tls_key_file=key) as gate,
        ):
            client = await connect(gate.server.port, authority)
            assert (await client.ask(request())).body == b"fine"
            client.writer.close()
            assert engine.requests[0].header(b"x-forwarded-proto") == b"https"

    run(main())


def test_files_that_do_not_fit_end_the_start(authority: Authority, tmp_path: Path) -> None:
    cert, _ = authority.sign("one", HOST)
    _, key = authority.sign("two", HOST)
    for wrong in (key, tmp_path / "missing"):
        with pytest.raises(StartupError, match=r"gateway\.tls_cert_file"):
            Certificate(cert, wrong)
    with pytest.raises(ValueError, match="go together"):
        GatewayConfig(tls_cert_file=cert)


def test_a_unix_socket_also_one_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def main() -> None:
        for _ in range(2):
            server = Server(echo_scheme, config(unix_socket=path))
            await server.start()
            client = Client(*await asyncio.open_unix_connection(str(path)))
            assert (await client.ask(request(body=b"x"))).body == b"http x"
            client.writer.close()
            await server.drain(1.0)
        server = Server(echo_scheme, config(unix_socket=tmp_path / "missing" / "socket"))
        with pytest.raises(StartupError, match=r"gateway\.unix_socket"):
            await server.start()
        await server.drain(0.1)

    run(main())
