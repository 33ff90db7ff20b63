"""The gateway as a process of its own under many clients: it answers others meanwhile, and its memory stays flat."""

from __future__ import annotations

import asyncio
import resource
import statistics
from pathlib import Path

import pytest

from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Client, Link, chunk, client, plain, request, run
from tests.gateway.http.support import worker as engine
from tests.gateway.process.test_gateway import gateway, healthy_then
from tests.support import eventually

STREAMS = 2000
CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "%b"}]}'


def test_health_is_answered_at_once_among_two_thousand_streams(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * STREAMS + 200:
        pytest.skip(f"needs {2 * STREAMS + 200} file descriptors, the limit is {soft}")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        finish = asyncio.Event()

        async def stream(link: Link) -> None:
            await link.send(SSE_HEAD + chunk(b"data: 0\n\n"))
            number = 0
            while not finish.is_set():
                number += 1
                await asyncio.sleep(1)
                await link.send(chunk(b"data: %d\n\n" % number))
            await link.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

        async def ask(port: int) -> bytes:
            async with client(port) as user:
                return (await user.ask(request(path=CHAT, body=BODY % b"hello"))).body

        async with (
            engine(lambda link: healthy_then(link, stream)) as worker,
            gateway(tmp_path, worker.port) as (_, port, _),
        ):
            asking = [loop.create_task(ask(port)) for _ in range(STREAMS)]
            await eventually(lambda: worker.open >= STREAMS, within=90)
            async with client(port) as probe:
                # The burst of 2,000 requests is answered on this loop too: it has passed once a probe is quick.
                began = loop.time()
                await eventually(lambda: is_quick(probe), within=60)
                blocked = loop.time() - began
                waits = [await health_seconds(probe) for _ in range(200)]
            finish.set()
            bodies = await asyncio.gather(*asking)
            assert all(body.startswith(b"data: 0\n\n") and body.endswith(b"data: [DONE]\n\n") for body in bodies)
            # The promise is 50 ms; the clients and the worker share a loop with this probe, and wait for it themselves.
            assert blocked < 30, "the burst held the gateway up"
            assert statistics.median(waits) < 0.05
            assert max(waits) < 1.0

    run(main(), within=240)


async def is_quick(probe: Client) -> bool:
    return await health_seconds(probe) < 0.05


async def health_seconds(probe: Client) -> float:
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    assert (await probe.ask(request("GET", "/health", b""))).status == 200
    return loop.time() - asked_at


def test_memory_is_flat_over_ten_thousand_prompts(tmp_path: Path) -> None:
    async def main() -> None:
        async def reply(link: Link) -> None:
            await link.send(plain(b"{}"))

        async def ask(port: int, numbers: range) -> None:
            async with client(port) as user:
                for number in numbers:
                    text = b"%08d" % number * 4096
                    assert (await user.ask(request(path=CHAT, body=BODY % text))).status == 200

        async def ask_all(port: int, start: int, end: int) -> None:
            await asyncio.gather(*(ask(port, range(first, end, 8)) for first in range(start, start + 8)))

        async with (
            engine(lambda link: healthy_then(link, reply)) as worker,
            gateway(tmp_path, worker.port) as (process, port, _),
        ):
            await ask_all(port, 0, 2000)
            before = resident_bytes(process.pid)
            await ask_all(port, 2000, 12_000)
            assert resident_bytes(process.pid) - before < 16 << 20  # the prompts are 320 MB

    run(main())


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]
    return int(pages) * resource.getpagesize()
