"""The gateway's process: what it starts with, and how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import urllib.request
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, client, full_pipe, plain, run, worker
from tests.ports import free_ports
from tests.support import eventually
from warmroute.cli.stack import get_json

REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 29\r\n\r\n{"model": "m", "messages": 1}'


@asynccontextmanager
async def gateway(
    tmp_path: Path,
    worker_port: int,
    tenants: dict | None = None,
    redis_url: str | None = None,
    stdout: int | None = None,
    open_files: int | None = None,
    **fields,
):
    """The process, its public port and its admin port, once it is ready. Redis, unless given, and indexer are not
    there."""
    port, admin, nothing = free_ports(3)
    section = {
        "port": port,
        "admin_port": admin,
        "indexers": [f"127.0.0.1:{nothing}"],
        "pools": [{"model": "m", "workers": [f"127.0.0.1:{worker_port}"]}],
        **fields,
    }
    path = tmp_path / "gateway.yaml"
    redis = {"url": redis_url or f"redis://127.0.0.1:{nothing}"}
    sections = {"redis": redis, "gateway": section, "tenants": tenants or {}}
    path.write_text(yaml.safe_dump(sections))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute", "gateway", "--config", str(path)),
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")},
    )
    if open_files is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_files // 2, open_files))
    try:
        ready = f"http://127.0.0.1:{admin}/readyz"
        await eventually(lambda: asyncio.to_thread(is_ready, ready), within=30)
        yield process, port, ready
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def is_ready(url: str) -> bool:
    return (get_json(url) or {}).get("ready", False)


async def healthy_then(link: Link, reply) -> None:
    """Answer health checks at once and everything else with `reply`."""
    while True:
        request = await link.request()
        if b"/health" in request.start:
            await link.send(plain(b""))
        else:
            await reply(link)


def test_an_access_log_that_nobody_reads_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def reply(link: Link) -> None:
        await link.send(plain(b"{}"))

    async def scenario(writer: int) -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            gateway(tmp_path, engine.port, stdout=writer, access_log="json") as (process, port, _),
        ):
            async with client(port) as connected:
                assert (await connected.ask(REQUEST)).status == 200
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0

    with full_pipe() as pipe:
        run(scenario(pipe))


def test_requests_without_a_reply_leave_an_engine_that_stops_answering(tmp_path: Path) -> None:
    """The connection stays open: nothing else would tell before `first_byte_seconds`, 300 s."""

    async def scenario() -> None:
        frozen: list[int] = []

        async def script(link: Link, number: int) -> None:
            while True:
                request = await link.request()
                if number in frozen:
                    await asyncio.Event().wait()
                elif b"/health" in request.start:
                    await link.send(plain(b""))
                elif frozen:
                    await link.send(plain(b"{}"))
                else:
                    frozen.append(number)
                    await asyncio.Event().wait()

        async with worker(lambda link: script(link, 1)) as one, worker(lambda link: script(link, 2)) as two:
            workers = [f"127.0.0.1:{engine.port}" for engine in (one, two)]
            pools = [{"model": "m", "workers": workers}]
            async with gateway(tmp_path, one.port, pools=pools) as (process, port, ready):
                await eventually(lambda: asyncio.to_thread(ready_workers, ready, 2))
                async with client(port) as connected:
                    reply = await asyncio.wait_for(connected.ask(REQUEST), 20)
                    assert (reply.status, reply.body) == (200, b"{}")
                process.terminate()
                _, log = await process.communicate()
                assert b"1 requests without a reply are sent elsewhere" in log

    run(scenario())


def ready_workers(url: str, number: int) -> bool:
    return [pool["ready_workers"] for pool in (get_json(url) or {"pools": {}})["pools"].values()] == [number]


def test_a_signal_fails_readiness_first_and_lets_streams_finish(tmp_path: Path) -> None:
    async def scenario() -> None:
        released = asyncio.Event()

        async def stream(link: Link) -> None:
            await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
            await released.wait()
            await link.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

        async with (
            worker(lambda link: healthy_then(link, stream)) as engine,
            gateway(tmp_path, engine.port, unready_seconds=2.0) as (process, port, ready),
            client(port) as streaming,
        ):
            streaming.send(REQUEST)
            await streaming.reader.readuntil(b"data: 1\n\n")
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: asyncio.to_thread(lambda: not is_ready(ready)), within=2)
            # Not ready, and still accepting: load balancers need a moment to see it.
            async with client(port) as late:
                answer = await late.ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert answer.status == 200

            async def refused() -> bool:
                try:
                    async with client(port):
                        return False
                except ConnectionError:
                    return True

            await eventually(refused, within=10)
            assert process.returncode is None
            released.set()
            assert (await streaming.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert await asyncio.wait_for(process.wait(), 10) == 0

    run(scenario())


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def forever(link: Link) -> None:
            await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
            await asyncio.Event().wait()

        async with (
            worker(lambda link: healthy_then(link, forever)) as engine,
            gateway(tmp_path, engine.port) as (process, port, ready),
            client(port) as streaming,
        ):
            streaming.send(REQUEST)
            await streaming.reader.readuntil(b"data: 1\n\n")
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: asyncio.to_thread(lambda: not is_ready(ready)), within=5)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0

    run(scenario())


@pytest.mark.parametrize("section", [{}, {"pools": []}])
def test_a_gateway_without_pools_says_so(tmp_path: Path, section: dict) -> None:
    async def scenario() -> None:
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml.safe_dump({"gateway": section}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "warmroute", "gateway", "--config", str(path)), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 2
        assert b"gateway.pools: at least one pool is needed" in errors
        assert b"Traceback" not in errors

    run(scenario())


def test_keys_and_limits_hold_without_redis(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    digest = sha256(b"secret").hexdigest()
    keys.write_text(
        yaml.safe_dump({"tenants": [{"name": "a", "keys": [digest], "limits": {"requests_per_minute": 2}}]})
    )
    tenants = {"keys_file": str(keys), "salt_secret": "s" * 32}

    async def scenario() -> None:
        async def answer(link: Link) -> None:
            await link.send(plain(b"{}"))

        async with (
            worker(lambda link: healthy_then(link, answer)) as engine,
            gateway(tmp_path, engine.port, tenants) as (_, port, _),
        ):
            key = b"\r\nAuthorization: Bearer secret"
            asked = [REQUEST, *[REQUEST.replace(b"\r\nHost: x", b"\r\nHost: x" + key)] * 3]
            statuses = []
            for request in asked:
                async with client(port) as connected:
                    statuses.append((await connected.ask(request)).status)
            assert statuses == [401, 200, 200, 429]
            bodies = [message.body for message in engine.requests if message.body]
            assert len(bodies) == 2
            assert all(body.startswith(b'{"cache_salt":"') for body in bodies)

    run(scenario())


def test_few_descriptors_and_many_idle_clients_cut_no_request(tmp_path: Path) -> None:
    """Idle connections make room, and whoever finds none is told."""

    async def reply(link: Link) -> None:
        await link.send(plain(b"{}"))

    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            gateway(tmp_path, engine.port, open_files=256) as (process, port, ready),
            AsyncExitStack() as stack,
        ):
            for _ in range(400):
                await stack.enter_async_context(client(port))
            metrics = ready.replace("readyz", "metrics")
            assert "warmroute_gateway_client_connections_limit 85.0" in await asyncio.to_thread(get_text, metrics)

            async def is_served() -> bool:
                async with client(port) as connected:
                    status = (await connected.ask(REQUEST)).status
                assert status in {200, 503}  # never cut
                return status == 200

            await eventually(is_served, within=10)  # the idle ones are young at first
            for _ in range(40):  # a client without room tries again, and finds it
                await asyncio.gather(*(eventually(is_served, within=10) for _ in range(50)))
            assert 'warmroute_gateway_full_connections_total{outcome="closed"}' in await asyncio.to_thread(
                get_text, metrics
            )
            process.terminate()
            _, log = await process.communicate()
            assert b"raise the limit of open files" in log
            assert b"Too many open files" not in log

    run(scenario())


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  loopback
        return response.read().decode()
