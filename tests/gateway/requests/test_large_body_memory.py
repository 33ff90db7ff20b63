"""What large bodies cost: memory while they wait for their worker, and the time of others meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from gateway.prompts.body import BadRequestError
from gateway.requests.large_body import read_steps
from tests.gateway.http.support import Link, client, plain, run, worker
from tests.gateway.support import gate

BODIES = int(os.environ.get("WARMROUTE_TEST_BODIES", "12"))
SIZE = int(os.environ.get("WARMROUTE_TEST_BODY_BYTES", "8000000"))
MIB = 1 << 20
KINDS = {
    "floats": (b"[", b"0.12345,", b"0]"),
    "text": (b'"', b"once upon a time, [", b'"'),
    "wide": (b'"', "été 😀 ".encode(), b'"'),
    "escapes": (b'"', b'\\n\\"\\u00e9', b'"'),
    "lists": (b"[", b"[1,2],", b"0]"),
    "deep": (b"[" * 900, b"1,", b"0" + b"]" * 900),
    "messages": (b"[", b'{"role":"user","content":"%s"},' % (b"word " * 200), b"0]"),
    "numbers": (b"[", b"1" * 900 + b",", b"0]"),
}


def body(kind: str, size: int) -> bytes:
    first, unit, last = KINDS[kind]
    return (
        b'{"model":"m","stream_options":{},"stream":true,"prompt":' + first + unit * (size // len(unit)) + last + b"}"
    )


def resident() -> int:
    """Of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def holding() -> None:
    """Send BODIES bodies that all wait for their worker, then let it answer."""
    go = asyncio.Event()
    arrived = 0

    async def script(link: Link) -> None:
        nonlocal arrived
        while True:
            head = await link.reader.readuntil(b"\r\n\r\n")
            size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            for _ in range(size // 65_536):
                await link.reader.readexactly(65_536)
            await link.reader.readexactly(size % 65_536)
            arrived += 1
            await asyncio.wait_for(go.wait(), 300)
            await link.send(plain(b"{}"))

    kinds, random = list(KINDS), Random(1)
    async with worker(script) as engine, gate(engine.port, settings={"first_byte_seconds": 300.0}) as gateway:
        before, peak, sent = resident(), 0, 0

        async def send(kind: str) -> int:
            async with client(gateway.server.port) as connection:
                # A file is what a client would send from; this process must not hold the bodies of clients too.
                data = body(kind, SIZE)
                head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(data)
                connection.send(head)
                for start in range(0, len(data), 262_144):
                    connection.send(data[start : start + 262_144])
                    await connection.writer.drain()
                del data
                reader = connection.reader
                return int((await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)).split(b" ")[1])

        async def watch() -> None:
            nonlocal peak
            while True:
                await asyncio.sleep(0.002)
                peak = max(peak, resident())

        watching = asyncio.create_task(watch())
        tasks: list[asyncio.Task[int]] = []
        for number in range(BODIES):
            kind = kinds[number % len(kinds)] if number < len(kinds) else random.choice(kinds)
            tasks.append(asyncio.create_task(send(kind)))
            sent += SIZE
            await asyncio.sleep(0)
        refused = sum(number % len(kinds) == kinds.index("lists") for number in range(len(kinds)))
        while arrived + sum(task.done() for task in tasks) < BODIES:
            await asyncio.sleep(0.01)
        go.set()
        statuses = await asyncio.gather(*tasks)
        watching.cancel()
        assert set(statuses) <= {200, 400}, statuses
        assert statuses.count(400) >= refused
    print(f"{(peak - before) / MIB:.0f} MiB for {sent / MIB:.0f} MiB of bodies")
    assert peak - before <= 3 * sent + 300 * MIB


def test_waiting_bodies_take_three_times_their_size_at_most() -> None:
    """In a process of its own, whose address space ends where the memory should."""
    program = (
        "import resource; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({2000 * MIB + 4 * BODIES * SIZE},) * 2); "
        "from tests.gateway.requests.test_large_body_memory import holding; "
        "from tests.gateway.http.support import run; run(holding(), 400)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_of_reading_takes_long(kind: str) -> None:
    steps = read_steps(body(kind, SIZE))
    longest = total = 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except (StopIteration, BadRequestError):
            break
        finally:
            took = time.thread_time() - began
            longest, total = max(longest, took), total + took
    assert longest < 0.05  # some milliseconds, on a machine that others use too
    assert total < 2.0


def test_another_request_is_served_meanwhile() -> None:
    async def main() -> None:
        async def script(link: Link) -> None:
            while True:
                await link.request()
                await link.send(plain(b"{}"))

        async with worker(script) as engine, gate(engine.port) as gateway:
            large = [asyncio.create_task(gateway.ask("POST", "/v1/completions", body(kind, SIZE))) for kind in KINDS]
            served = 0
            while not all(task.done() for task in large):
                answer = await gateway.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"})
                assert answer.status == 200
                served += 1
            assert {(await task).status for task in large} <= {200, 400}
            assert served > 2 * len(KINDS)

    run(main())
