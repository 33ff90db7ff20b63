"""Raw bytes through a socket: nothing crashes, nothing is a 5xx, nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from random import Random

import pytest

from tests.gateway.http.raw_requests import damaged
from tests.gateway.http.support import Gateway, client, gateway, plain, replying, request, run, worker
from tests.support import eventually

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
AT_ONCE = 200
STATUS = re.compile(rb"(?:\A|\n|\})HTTP/1\.1 (\d\d\d) ")
ALLOWED_5XX = {501, 505}
"""RFC 9110's answers to a transfer coding and to a version that a server does not know."""


async def answers(gate: Gateway, data: bytes) -> list[int]:
    """Statuses of all replies until the gateway ends the connection, which it must do by itself."""
    async with client(gate.server.port) as user:
        # In two pieces at times: where reads end must not matter.
        user.send(data[: len(data) // 2])
        await asyncio.sleep(0)
        user.send(data[len(data) // 2 :])
        received = await asyncio.wait_for(user.reader.read(-1), 20)
    return [int(status) for status in STATUS.findall(received)]


@pytest.mark.parametrize("seed", [4])
def test_damaged_requests(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(seed)
    statuses: set[int] = set()

    async def one_after_another(gate: Gateway, count: int) -> None:
        for _ in range(count):
            data = damaged(random)
            got = await answers(gate, data)
            assert all(status < 500 or status in ALLOWED_5XX for status in got), data
            statuses.update(got)

    async def main() -> None:
        async with (
            worker(replying(plain(b"{}"))) as engine,
            gateway(engine.port, client_read_seconds=0.05, client_idle_seconds=0.05) as gate,
        ):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(one_after_another(gate, INPUTS // AT_ONCE))
            await eventually(lambda: gate.server.connections == 0)
            await eventually(lambda: gate.upstreams.connections == gate.upstreams.idle)
            assert gate.assigner.open == 0
            assert (await gate.ask(request())).body == b"{}"
            assert {200, 400} <= statuses

    run(main(), within=60 + INPUTS / 100)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
