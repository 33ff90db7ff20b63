"""A fleet that is broken off, at whatever moment, leaves nothing open; nor does one whose clean-up fails."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.fleet import Engine, Fleet, fleet
from tests.gateway.http.support import LAST_CHUNK, Link, request, run
from tests.ports import free_ports

SEEDS = range(6)


class BrokenOffError(Exception):
    """A failure of the test that uses the fleet."""


async def ask(port: int) -> None:
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(request())
                await reader.readuntil(LAST_CHUNK)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_killed_at_any_moment_leaves_nothing_open(seed: int) -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        draw = random.Random(seed)
        engine = Engine(free_ports(1)[0], draw)
        for _ in range(8):
            await engine.start()
            clients = [asyncio.ensure_future(ask(engine.port)) for _ in range(24)]
            await asyncio.sleep(draw.uniform(0, 0.1))
            await engine.kill()
            assert not engine.is_open
            await asyncio.gather(*clients)
        assert asyncio.all_tasks() <= before

    run(scenario())


def test_a_link_that_cannot_be_reset_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        engine = Engine(free_ports(1)[0], random.Random(1))
        await engine.start()
        clients = [asyncio.ensure_future(ask(engine.port)) for _ in range(8)]
        while len(engine.links) < len(clients):
            await asyncio.sleep(0)
        broken = next(iter(engine.links))

        def die(link: Link) -> None:
            usual(link)
            if link is broken:
                raise AttributeError("no socket")

        usual = Link.die
        monkeypatch.setattr(Link, "die", die)
        with pytest.raises(AttributeError, match="no socket"):
            await engine.kill()
        assert not engine.is_open
        await asyncio.gather(*clients)
        assert asyncio.all_tasks() <= before

    run(scenario())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_broken_off_early_leaves_nothing_open(
    seed: int, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its start or soon after. `unclosed` fails the test when the loop is left with a socket."""
    engines: list[Engine] = []
    start = Engine.start

    async def started(engine: Engine) -> None:
        engines.append(engine)
        await start(engine)

    monkeypatch.setattr(Engine, "start", started)

    async def breaks_off(made: Fleet, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(made.load(5))
            await asyncio.sleep(seconds)
            raise BrokenOffError

    async def scenario() -> None:
        before = asyncio.all_tasks()
        draw = random.Random(seed)
        # The first: as its clients are there. All others: while its parts start.
        limit = draw.uniform(0, 1.5) if seed else 60
        with pytest.raises((BrokenOffError, TimeoutError, ExceptionGroup)):
            async with asyncio.timeout(limit), fleet(redis_url, tmp_path, draw, engines=2) as made:
                await breaks_off(made, draw.uniform(0, 0.2))
        assert engines
        assert not any(engine.is_open for engine in engines)
        for engine in engines:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", engine.port))
        assert asyncio.all_tasks() <= before

    run(scenario())
