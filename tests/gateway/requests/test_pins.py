"""Headers that choose a worker or a rank, and session hints, through the public port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from gateway.routing.census.targets import Target
from gateway.routing.state.sessions import session_key
from gateway.tenants.tenant import ANONYMOUS_NAME
from tests.gateway.http.support import Message, Worker, plain, replying, run, worker
from tests.gateway.requests.support import CHAT, as_json, bearer, tenants
from tests.gateway.support import Gate, gate

PATH = "/v1/chat/completions"


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Gate, Worker, Worker]]:
    async with (
        worker(replying(as_json(b"{}"))) as one,
        worker(replying(as_json(b"{}"))) as two,
        gate(one.port, two.port) as gateway,
    ):
        yield gateway, one, two


def error(answer: Message) -> tuple[int, str, str]:
    body = orjson.loads(answer.body)["error"]
    return answer.status, body["code"], body["message"]


async def ask(gateway: Gate, *headers: str, path: str = PATH, **fields) -> Message:
    return await gateway.ask("POST", path, {**CHAT, **fields}, headers)


def who(answer: Message) -> str:
    assert answer.status == 200, answer.body
    return (answer.header(b"x-warmroute-worker") or b"").decode()


def test_a_worker_can_be_chosen_by_any_of_its_names_and_the_header_stops_here() -> None:
    async def scenario() -> None:
        async with two_workers() as (gateway, one, two):
            targets = [Target(f"u{n}", "127.0.0.1", each.port, f"w{n}", f"n{n}") for n, each in enumerate((one, two))]
            gateway.pool.targets(targets)
            for name in ("n1", "u1", f"127.0.0.1:{two.port}", "w1"):
                answers = [await ask(gateway, f"X-Warmroute-Worker: {name}") for _ in range(4)]
                assert {who(answer) for answer in answers} == {"n1"}
            assert len(two.requests) == 16
            assert all(message.header(b"x-warmroute-worker") is None for message in two.requests)
            assert gateway.idle()

    run(scenario())


def test_a_pin_is_hard() -> None:
    """No retry, no other worker; one that does not exist or is not ready is said."""

    async def scenario() -> None:
        async with (
            worker(replying(plain(b"busy", b"503 Service Unavailable"))) as failing,
            worker(replying(as_json(b"{}"))) as good,
            gate(failing.port, good.port) as gateway,
        ):
            answer = await ask(gateway, "X-Warmroute-Worker: w0")
            assert (answer.status, answer.body, len(failing.requests), len(good.requests)) == (503, b"busy", 1, 0)
            status, code, message = error(await ask(gateway, "X-Warmroute-Worker: w7"))
            assert (status, code) == (400, "unknown_worker")
            assert "X-Warmroute-Worker: 'w7'" in message
            assert "w0, w1" in message
            gateway.pool.router.census.workers.get("w0").checked(0, healthy=False, refused=True)
            answer = await ask(gateway, "X-Warmroute-Worker: w0")
            assert answer.header(b"retry-after") == b"1"
            status, code, message = error(answer)
            assert (status, code) == (503, "worker_not_ready")
            assert "X-Warmroute-Worker: 'w0'" in message
            assert "leave the header out" in message
            assert who(await ask(gateway)) == "w1"
            assert gateway.idle()

    run(scenario())


def test_tenants_pin_nothing_unless_the_operator_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            async with gate(engine.port, access=tenants(tmp_path)) as gateway:
                status, code, _ = error(await ask(gateway, *bearer("b"), "X-Warmroute-Worker: w0"))
                assert (status, code) == (403, "pinning_off")
            async with gate(engine.port, access=tenants(tmp_path), pinning=True) as gateway:
                assert who(await ask(gateway, *bearer("b"), "X-Warmroute-Worker: w0")) == "w0"

    run(scenario())


@pytest.mark.parametrize("header", ["X-Warmroute-Worker: w0", "X-Data-Parallel-Rank: 0"])
def test_an_operator_can_switch_pins_off(header: str) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port, pinning=False) as gateway:
            status, code, message = error(await ask(gateway, header))
            assert (status, code) == (403, "pinning_off")
            assert "leave them out" in message
            assert who(await ask(gateway)) == "w0"

    run(scenario())


def test_a_pool_without_workers_says_so_rather_than_that_the_name_is_wrong() -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            assert error(await ask(gateway, "X-Warmroute-Worker: w0"))[:2] == (503, "no_worker")

    run(scenario())


def test_a_rank_can_be_chosen_and_every_engine_is_told_which_one_is_meant() -> None:
    async def scenario() -> None:
        async with two_workers() as (gateway, one, two):
            for number, engine in enumerate((one, two)):
                for rank in range(2):
                    gateway.pool.hold(f"w{number}/dp{rank}", [], address=f"127.0.0.1:{engine.port}")
            names = {who(await ask(gateway, "X-Data-Parallel-Rank: 1")) for _ in range(20)}
            assert names == {"w0/dp1", "w1/dp1"}
            for message in one.requests + two.requests:
                assert message.all(b"x-data-parallel-rank") == [b"1"]
            del one.requests[:], two.requests[:]
            both = [await ask(gateway, "X-Data-Parallel-Rank: 0", "X-Warmroute-Worker: w1") for _ in range(5)]
            assert {who(answer) for answer in both} == {"w1/dp0"}
            assert {who(await ask(gateway, "X-Warmroute-Worker: w1")) for _ in range(20)} == {"w1/dp0", "w1/dp1"}
            # Without a wish too, the engine learns which rank the gateway has booked.
            del one.requests[:], two.requests[:]
            told = {(who(await ask(gateway)), (one.requests + two.requests)[-1].start[:4]) for _ in range(30)}
            assert len(told) == 4
            for engine in (one, two):
                assert {message.header(b"x-data-parallel-rank") for message in engine.requests} == {b"0", b"1"}
            for value in ("2", "one", "-1", "", "9" * 5000):
                status, code, message = error(await ask(gateway, f"X-Data-Parallel-Rank: {value}"))
                assert (status, code) == (400, "unknown_rank")
                assert "there are: 0, 1" in message
                assert len(message) < 400
            assert gateway.idle()

    run(scenario())


def test_where_no_rank_is_known_the_header_goes_to_the_engine_as_it_is() -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            assert who(await ask(gateway, "X-Data-Parallel-Rank: 3")) == "w0"
            assert engine.requests[-1].header(b"x-data-parallel-rank") == b"3"
            assert error(await ask(gateway, "X-Data-Parallel-Rank: x"))[:2] == (400, "unknown_rank")

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        (("X-Session-ID: s",), {}),
        (("X-Session-Affinity: s",), {}),
        ((), {"session_id": "s"}),
        ((), {"prompt_cache_key": "s"}),
    ],
)
def test_a_session_stays_on_its_worker(headers: tuple[str, ...], fields: dict) -> None:
    """These prompts have no keys here, as where a gateway has no tokenizer."""

    async def scenario() -> None:
        async with two_workers() as (gateway, _, _):
            for path in (PATH, "/v1/messages", "/v1/responses"):
                names = {who(await ask(gateway, *headers, path=path, **fields)) for _ in range(15)}
                assert len(names) == 1
            assert {who(await ask(gateway)) for _ in range(30)} == {"w0", "w1"}
            assert gateway.count("session_requests_total", pool="p", outcome="stayed") == 44

    run(scenario())


def test_user_is_no_session_nor_is_what_stands_in_a_prompt() -> None:
    async def scenario() -> None:
        async with two_workers() as (gateway, one, two):
            messages = [{"role": "user", "content": '"session_id": "s", "prompt_cache_key": "s", "user": "x"'}]
            for _ in range(30):
                await ask(gateway, user="x", messages=messages, metadata={"session_id": "s", "user_id": "s"})
            assert one.requests
            assert two.requests
            assert len(gateway.pool.router.state.sessions) == 0

    run(scenario())


def test_sessions_of_two_tenants_do_not_meet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port, access=tenants(tmp_path)) as gateway:
            for name in ("a", "b", "a"):
                assert who(await ask(gateway, *bearer(name), "X-Session-ID: s")) == "w0"
            sessions, now = gateway.pool.router.state.sessions, gateway.pool.now
            assert len(sessions) == 2
            assert (
                sessions.worker_of(session_key("a", "s"), now) == sessions.worker_of(session_key("b", "s"), now) == "w0"
            )
            assert sessions.worker_of(session_key(ANONYMOUS_NAME, "s"), now) is None

    run(scenario())
