"""Accepting, limits, draining."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack

import pytest

from gateway.http.message import Request
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.server import Server
from tests.gateway.http.support import (
    LAST_CHUNK,
    SSE_HEAD,
    TICK_SECONDS,
    Client,
    Link,
    chunk,
    client,
    config,
    gateway,
    request,
    run,
    serving,
    worker,
)
from tests.support import eventually


async def ok(request: Request, reply: Reply) -> None:
    reply.send(200, (), b"ok")


def test_a_stream_in_progress_finishes_while_the_server_drains() -> None:
    async def main() -> None:
        finish = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
            await finish.wait()
            await link.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user, gate.client() as idle:
            await idle.ask(request("GET", "/health", b""))
            user.send(request())
            await eventually(lambda: gate.assigner.given and gate.assigner.given[0].first_bytes)
            draining = asyncio.ensure_future(gate.server.drain(20))
            assert await idle.at_end()
            with pytest.raises(ConnectionRefusedError):
                async with gate.client():
                    pass
            assert not draining.done()
            finish.set()
            assert (await user.answer()).body == b"data: 1\n\ndata: [DONE]\n\n"
            assert await user.at_end()
            await asyncio.wait_for(draining, 5)
            assert gate.assigner.outcomes == [Outcome.COMPLETED]

    run(main())


def test_a_reply_that_begins_while_draining_says_that_the_connection_closes() -> None:
    async def main() -> None:
        release = asyncio.Event()
        begun = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            begun.set()
            await release.wait()
            await ok(request, reply)

        async with serving(handler) as server, client(server.port) as user, client(server.port) as uploading:
            user.send(request())
            uploading.send(request()[:-1])
            await begun.wait()
            await eventually(lambda: server.connections == 2)
            draining = asyncio.ensure_future(server.drain(20))
            await asyncio.sleep(0)
            release.set()
            assert (await user.answer()).header(b"connection") == b"close"
            assert (await uploading.ask(b"}")).header(b"connection") == b"close"
            await asyncio.wait_for(draining, 5)

    run(main())


def test_what_has_not_ended_after_the_grace_is_cut_and_a_handler_that_hangs_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.http.server.CUT_SECONDS", 0.1)

    async def main() -> None:
        begun = asyncio.Event()
        cancelled = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with serving(handler) as server, client(server.port) as user:
            user.send(request())
            await begun.wait()
            await asyncio.wait_for(server.drain(0.05), 5)
            assert cancelled.is_set()
            assert server.connections == 0

    run(main())


def test_connections_beyond_the_limit_are_refused_and_those_within_it_go_on() -> None:
    async def main() -> None:
        server = Server(ok, config(), connection_limit=2, tick_seconds=TICK_SECONDS)
        await server.start()
        async with client(server.port) as one, client(server.port) as two:
            assert (await one.ask(request())).body == b"ok"
            assert (await two.ask(request())).body == b"ok"
            async with client(server.port) as three:
                assert (await three.answer()).status == 503
                assert await three.at_end()
            assert (await one.ask(request())).body == b"ok"
        await eventually(lambda: server.connections == 0)
        async with client(server.port) as again:
            assert (await again.ask(request())).body == b"ok"
        await server.drain(0)

    run(main())


def test_a_full_server_closes_the_longest_idle_and_refuses_nobody_while_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.http.server.SHED_IDLE_SECONDS", 0.0)
    told: list[tuple[str, int]] = []

    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def handler(http: Request, reply: Reply) -> None:
            if http.path == "/slow":
                entered.set()
                await go_on.wait()
            reply.send(200, (), b"ok")

        server = Server(
            handler,
            config(),
            on_full=lambda outcome, count: told.append((outcome, count)),
            connection_limit=3,
            tick_seconds=TICK_SECONDS,
        )
        await server.start()
        async with client(server.port) as busy, client(server.port) as oldest, client(server.port) as newer:
            busy.send(request(path="/slow"))
            await entered.wait()
            assert (await oldest.ask(request())).body == b"ok"
            loop = asyncio.get_running_loop()
            answered_at = loop.time()
            await eventually(lambda: loop.time() > answered_at)  # uvloop's clock has milliseconds
            assert (await newer.ask(request())).body == b"ok"
            async with client(server.port) as fourth:
                assert (await fourth.ask(request())).body == b"ok"
                assert await oldest.at_end()
                assert (await newer.ask(request())).body == b"ok"
                assert told == [("closed", 1)]
                assert server.connections == 3
            go_on.set()
            assert (await busy.answer()).body == b"ok"
        await server.drain(0)

    run(main())
    assert "raise the limit of open files" in caplog.text


def test_a_storm_of_new_clients_on_a_full_server_is_served_by_what_was_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.server.SHED_IDLE_SECONDS", 0.0)

    async def main() -> None:
        server = Server(ok, config(), connection_limit=64, tick_seconds=TICK_SECONDS)
        await server.start()
        async with AsyncExitStack() as stack:
            for _ in range(64):
                idle = await stack.enter_async_context(client(server.port))
                assert (await idle.ask(request())).body == b"ok"
            for _ in range(200):  # each of them leaves: a new one finds a place at once
                async with client(server.port) as user:
                    assert (await user.ask(request())).status == 200
            assert server.connections <= 64
        await server.drain(0)

    run(main())


def test_two_servers_can_share_a_port() -> None:
    async def main() -> None:
        first = Server(ok, config())
        await first.start(reuse_port=True)
        second = Server(ok, config().model_copy(update={"port": first.port}))
        await second.start(reuse_port=True)
        assert first.port == second.port
        await first.drain(0)
        async with client(second.port) as user:
            assert (await user.ask(request())).body == b"ok"
        await second.drain(0)

    run(main())


def test_at_the_end_of_the_grace_a_request_without_a_reply_is_told() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hangs(http: Request, reply: Reply) -> None:
            begun.set()
            while not reply.closed:
                await asyncio.sleep(0.01)

        async with serving(hangs) as server, client(server.port) as user:
            user.send(request())
            await begun.wait()
            await is_told(server, user)

    run(main())


def test_at_the_end_of_the_grace_a_request_that_a_worker_has_is_told() -> None:
    async def main() -> None:
        taken = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            taken.set()
            await link.peer_gone()

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            user.send(request())
            await taken.wait()
            await is_told(gate.server, user)

    run(main())


def test_at_the_end_of_the_grace_a_request_whose_worker_does_not_answer_the_phone_is_told() -> None:
    async def main() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            port = listener.getsockname()[1]
            with ExitStack() as stack:
                for _ in range(4):  # fill the queue, so that the next waits to be connected
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(("127.0.0.1", port))
                async with gateway(port, connect_seconds=30) as gate, gate.client() as user:
                    user.send(request())
                    await eventually(lambda: gate.assigner.given)
                    await asyncio.sleep(0)
                    await is_told(gate.server, user)

    run(main())


async def is_told(server: Server, user: Client) -> None:
    draining = asyncio.ensure_future(server.drain(0.05))
    answer = await user.answer()
    assert (answer.status, answer.header(b"connection")) == (503, b"close")
    assert b"gateway_stopped" in answer.body
    await asyncio.wait_for(draining, 5)
