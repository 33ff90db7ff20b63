"""Which worker is tried when, what reaches the client, and that bookings are freed exactly once."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.http.outcome import Outcome
from tests.gateway.http.support import (
    SSE_HEAD,
    Link,
    Message,
    Script,
    chunk,
    gateway,
    plain,
    replying,
    request,
    run,
    worker,
)
from tests.gateway.requests.support import CHAT, as_json
from tests.gateway.support import Gate, gate


def error_of(message: Message) -> dict[str, str | None]:
    assert message.header(b"content-type") == b"application/json"
    error = json.loads(message.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


async def refuse_to_read(link: Link) -> None:
    link.die()


async def close_after_request(link: Link) -> None:
    await link.request()


async def die_after_request(link: Link) -> None:
    await link.request()
    link.die()


async def die_within_head(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\nContent-Le")


async def die_after_head(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD)


async def die_after_comment(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD + chunk(b": ping\n\n"))


async def stall(link: Link) -> None:
    await link.request()
    await link.peer_gone()


async def stall_after_head(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD + chunk(b": ping\n\n"))
    await link.peer_gone()


async def garbage(link: Link) -> None:
    await link.request()
    await link.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await link.peer_gone()


async def endless_head(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await link.send(b"X-Filler: " + b"x" * 1000 + b"\r\n")


async def two_framings(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    await link.peer_gone()


async def long_refusal(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
    await link.peer_gone()


async def switch_protocols(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n")
    await link.peer_gone()


FAILURES: list[tuple[Script, Outcome, int, str]] = [
    (refuse_to_read, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (close_after_request, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_request, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_within_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_comment, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (garbage, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (endless_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (two_framings, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (switch_protocols, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (stall, Outcome.UNREACHABLE, 504, "worker_timeout"),
    (stall_after_head, Outcome.UNREACHABLE, 504, "worker_timeout"),
    (long_refusal, Outcome.SERVER_ERROR, 503, "worker_refused"),
]


@pytest.mark.parametrize(("script", "outcome", "status", "code"), FAILURES)
def test_before_the_first_byte_the_next_worker_is_tried(
    script: Script, outcome: Outcome, status: int, code: str
) -> None:
    async def main() -> None:
        async with (
            worker(script) as bad,
            worker(replying(plain(b"hello"))) as good,
            gateway(bad.port, good.port, first_byte_seconds=0.3) as gate,
        ):
            answer = await gate.ask(request(body=b'{"a": 1}'))
            assert (answer.status, answer.body) == (200, b"hello")
            assert answer.header(b"x-warmroute-worker") == b"w1"
            result = await gate.result()
            assert gate.assigner.outcomes == [outcome, Outcome.COMPLETED]
            assert gate.assigner.excluded == [set(), {"w0"}]
            assert (result.status, result.worker_id, result.attempts) == (200, "w1", 2)
            assert good.requests[0].body == b'{"a": 1}'

    run(main())


@pytest.mark.parametrize(("script", "outcome", "status", "code"), FAILURES)
def test_when_none_is_left_the_client_gets_an_error_in_openai_shape(
    script: Script, outcome: Outcome, status: int, code: str
) -> None:
    async def main() -> None:
        async with worker(script) as bad, gateway(bad.port, bad.port, first_byte_seconds=0.2) as gate:
            answer = await gate.ask(request())
            assert answer.status == status
            assert error_of(answer)["code"] == code
            assert answer.header(b"x-request-id")
            result = await gate.result()
            assert gate.assigner.outcomes == [outcome, outcome]
            assert (result.status, result.outcome, result.attempts) == (status, outcome, 2)
            assert result.first_byte_at is None
            assert result.tail == b""

    run(main())


def test_a_port_that_nobody_listens_on() -> None:
    async def main() -> None:
        async with worker(stall) as gone:
            pass
        async with gateway(gone.port) as gate:
            assert error_of(await gate.ask(request()))["code"] == "worker_unreachable"
            assert gate.assigner.outcomes == [Outcome.UNREACHABLE]

    run(main())


def test_no_worker_at_all() -> None:
    async def main() -> None:
        async with gateway() as gate:
            answer = await gate.ask(request())
            assert (answer.status, error_of(answer)["code"]) == (503, "no_worker")
            assert answer.header(b"retry-after") == b"1"
            result = await gate.result()
            assert (result.status, result.outcome, result.worker_id, result.attempts) == (503, None, None, 0)

    run(main())


def test_attempts_are_bounded() -> None:
    async def main() -> None:
        async with worker(die_after_request) as bad, gateway(*[bad.port] * 5, attempts=2) as gate:
            assert (await gate.ask(request())).status == 502
            assert gate.assigner.outcomes == [Outcome.UNREACHABLE] * 2

    run(main())


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_worker_that_is_overloaded_is_followed_by_the_next_and_passed_through_when_it_is_the_last(
    status: int,
) -> None:
    refusal = plain(b'{"detail": "busy"}', b"%d Busy" % status, b"Retry-After: 7\r\n")

    async def main() -> None:
        async with (
            worker(replying(refusal)) as busy,
            worker(replying(plain(b"hello"))) as good,
            worker(die_after_request) as dead,
        ):
            async with gateway(busy.port, good.port) as gate:
                assert (await gate.ask(request())).body == b"hello"
                assert gate.assigner.outcomes == [Outcome.SERVER_ERROR, Outcome.COMPLETED]
            async with gateway(dead.port, busy.port) as gate:
                answer = await gate.ask(request())
                assert (answer.status, answer.body) == (status, b'{"detail": "busy"}')
                assert answer.header(b"retry-after") == b"7"
                assert answer.header(b"x-warmroute-worker") == b"w1"
                assert gate.assigner.outcomes == [Outcome.UNREACHABLE, Outcome.SERVER_ERROR]
                assert [given.first_bytes for given in gate.assigner.given] == [0, 0]
            async with gateway(busy.port, dead.port) as gate:
                assert error_of(await gate.ask(request()))["code"] == "worker_unreachable"

    run(main())


@pytest.mark.parametrize(
    ("status", "outcome"), [(400, Outcome.REFUSED), (429, Outcome.REFUSED), (500, Outcome.SERVER_ERROR)]
)
def test_other_errors_of_a_worker_pass_through_without_another_attempt(status: int, outcome: Outcome) -> None:
    async def main() -> None:
        async with worker(replying(plain(b"no", b"%d No" % status))) as bad, gateway(bad.port, bad.port) as gate:
            answer = await gate.ask(request())
            assert (answer.status, answer.body) == (status, b"no")
            result = await gate.result()
            assert (result.status, result.outcome, result.attempts) == (status, outcome, 1)

    run(main())


async def failing(gateway: Gate, times: int) -> list[int]:
    return [(await gateway.ask("POST", "/v1/chat/completions", CHAT)).status for _ in range(times)]


def test_a_worker_that_cannot_be_reached_costs_no_request() -> None:
    async def scenario() -> None:
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        async with worker(replying(as_json(b"{}"))) as engine, gate(port, engine.port) as gateway:
            assert set(await failing(gateway, 20)) == {200}
            assert gateway.count("retries_total", pool="p") >= 1
            assert gateway.idle()

    run(scenario())


def test_an_exhausted_budget_answers_with_the_first_failure() -> None:
    async def scenario() -> None:
        refusing = replying(as_json(b'{"error":{}}', b"503 Service Unavailable"))
        async with worker(refusing) as one, worker(refusing) as two:
            async with gate(one.port, two.port, retry_ratio=0, retries_per_second=0) as gateway:
                assert await failing(gateway, 4) == [503] * 4
                assert len(one.requests) + len(two.requests) == 4
                assert gateway.count("refused_retries_total", pool="p") == 4
            async with gate(one.port, two.port) as gateway:
                assert await failing(gateway, 1) == [503]
                assert len(one.requests) + len(two.requests) == 4 + 2

    run(scenario())


def test_ten_refusals_eject_nobody() -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b'{"error":{}}', b"400 Bad Request"))) as engine,
            gate(engine.port, 1, 2) as gateway,
        ):
            for name in ("w1", "w2"):
                gateway.pool.router.census.workers.get(name).checked(0, healthy=False, refused=True)
            assert await failing(gateway, 10) == [400] * 10
            assert gateway.pool.router.census.workers.get("w0").ejections == 0

    run(scenario())
