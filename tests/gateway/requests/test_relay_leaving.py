"""Clients that leave and handlers that are cancelled, in every phase of a request."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.requests.relay import relay
from tests.gateway.http.support import (
    SSE_HEAD,
    CountingAssigner,
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
from tests.gateway.requests.test_relay import error_of
from tests.support import eventually

PHASES: dict[str, tuple[bytes, int]] = {
    "before the head": (b"", 499),
    "after the head": (SSE_HEAD, 499),
    "after a comment": (SSE_HEAD + chunk(b": ping\n\n"), 499),
    "in the stream": (SSE_HEAD + chunk(b"data: 1\n\n"), 200),
    "in a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", 200),
    "in a refusal": (b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nabc", 499),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("politely", [False, True])
def test_a_client_that_leaves_ends_the_workers_request_at_once(phase: str, politely: bool) -> None:
    sent, status = PHASES[phase]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiting = asyncio.Event()
        cut_at: list[float] = []

        async def script(link: Link) -> None:
            await link.request()
            await link.send(sent)
            waiting.set()
            await link.peer_gone()
            cut_at.append(loop.time())

        async with worker(script) as engine, gateway(engine.port, engine.port) as gate, gate.client() as client:
            client.send(request())
            await waiting.wait()
            if status == 200:
                await client.head()
            left_at = loop.time()
            if politely:
                client.writer.close()
            else:
                client.leave()
            result = await gate.result()
            assert (result.status, result.outcome, result.attempts) == (status, Outcome.CLIENT_GONE, 1)
            await eventually(lambda: cut_at)
            assert cut_at[0] - left_at < 0.1 + 0.4  # the promise, and what a busy test machine may add

    run(main())


def test_a_client_that_leaves_while_its_worker_is_being_connected() -> None:
    async def main() -> None:
        # A listener that never accepts, with a full backlog: connecting hangs.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            try:
                async with gateway(port, port, connect_seconds=30) as gate, gate.client() as client:
                    client.send(request())
                    await eventually(lambda: gate.assigner.open)
                    client.leave()
                    result = await asyncio.wait_for(gate.result(), 1)
                    assert (result.status, result.outcome, result.attempts) == (499, Outcome.CLIENT_GONE, 1)
                async with gateway(port, port, connect_seconds=0.1) as gate:
                    answer = await gate.ask(request())
                    assert (answer.status, error_of(answer)["code"]) == (504, "worker_timeout")
                    assert gate.assigner.outcomes == [Outcome.UNREACHABLE] * 2
            finally:
                for filler in fillers:
                    filler.close()

    run(main())


@pytest.mark.parametrize("phase", PHASES)
def test_a_handler_that_is_cancelled_leaves_nothing_behind(phase: str) -> None:
    sent, _ = PHASES[phase]

    async def main() -> None:
        cut = asyncio.Event()
        waiting = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(sent)
            waiting.set()
            await link.peer_gone()
            cut.set()

        async with worker(script) as engine:
            assigner = CountingAssigner(engine.port)
            upstreams = UpstreamPool(config())

            async def handler(request: Request, reply: Reply) -> None:
                relaying = asyncio.ensure_future(relay(request, request.body, reply, assigner, upstreams))
                await waiting.wait()
                relaying.cancel()
                await asyncio.wait({relaying})
                assert relaying.cancelled()
                if not reply.started:
                    reply.send_error(RequestError(418, "changed its mind"))

            async with serving(handler) as server, client(server.port) as user:
                user.send(request())
                await asyncio.wait_for(cut.wait(), 5)
                assert assigner.outcomes == [Outcome.CLIENT_GONE]
                assert upstreams.idle == 0

    run(main())


def test_the_grace_ends_with_requests_in_every_phase() -> None:
    async def main() -> None:
        waiting = 0

        async def script(link: Link) -> None:
            nonlocal waiting
            await link.request()
            await link.send(list(PHASES.values())[waiting % len(PHASES)][0])
            waiting += 1
            await link.peer_gone()

        async with worker(script) as engine, gateway(engine.port) as gate:
            clients = [gate.client() for _ in range(12)]
            for entered in [await client.__aenter__() for client in clients]:
                entered.send(request())
            await eventually(lambda: waiting == 12)
            await gate.server.drain(0.05)
            assert gate.assigner.open == 0
            assert gate.assigner.outcomes == [Outcome.CLIENT_GONE] * 12
            await eventually(lambda: engine.open == 0)
            for client in clients:
                await client.__aexit__(None, None, None)

    run(main())
