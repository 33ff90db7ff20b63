"""The indexer as a process: rollouts hand the workers over, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc

from tests.certificates import Authority
from tests.indexer.support import Engine, engine, follower, hello, in_step, last_status, run, running
from tests.ports import free_ports
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

WORKERS = 5
START_SECONDS = 30.0
# drain_seconds is 5: an indexer whose workers all leave ends well before.
END_SECONDS = 4.0
LARGE_KEYS = 500_000
OTHERS_SECONDS = 1.5


@dataclass
class Process:
    port: int
    admin_port: int
    process: asyncio.subprocess.Process

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def readiness(self) -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=2) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    async def ready(self) -> bool:
        status, _ = await asyncio.to_thread(self.readiness)
        return status == 200

    async def end(self) -> float:
        """SIGTERM; how long it took to exit, which it must with status 0."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_SECONDS):
            assert await self.process.wait() == 0
        return loop.time() - started_at


@asynccontextmanager
async def process(redis_url: str, port: int, admin_port: int, *more: str) -> AsyncIterator[Process]:
    """`warmroute indexer` on these ports, ready."""
    arguments = ["--port", port, "--admin-port", admin_port, "--redis-url", redis_url, "--open", "true", *more]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmroute", "indexer", *map(str, arguments), stdin=asyncio.subprocess.DEVNULL
    )
    running = Process(port, admin_port, child)
    try:
        await eventually(running.ready, within=START_SECONDS)
        yield running
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def change_for_ever(engines: list[Engine]) -> None:
    """Every worker stores a block and removes an older one, again and again."""
    for block in count():
        for worker in engines:
            worker.store(block)
            if block >= 20:
                worker.remove(block - 20)
        await asyncio.sleep(0.01)


def test_a_rollout_loses_no_update_and_needs_no_snapshot(redis_url: str) -> None:
    async def scenario() -> None:
        ports = free_ports(4)
        places = [(ports[0], ports[1]), (ports[2], ports[3])]
        names = ",".join(f"127.0.0.1:{port}" for port, _ in places)
        engines = [engine(names, f"w{number}") for number in range(WORKERS)]
        async with AsyncExitStack() as stack, follower(redis_url) as mirror:
            current = await stack.enter_async_context(process(redis_url, *places[0]))
            async with running(*(worker.publisher.run() for worker in engines)):
                await eventually(lambda: all(worker.count("snapshots") == 1 for worker in engines))
                async with running(change_for_ever(engines)):
                    for place in (places[1], places[0]):
                        following = await stack.enter_async_context(process(redis_url, *place))
                        assert await current.end() < END_SECONDS
                        current = following
                        deltas = [worker.count("deltas") for worker in engines]
                        await eventually(
                            lambda deltas=deltas: all(
                                worker.count("deltas") > before for worker, before in zip(engines, deltas, strict=True)
                            )
                        )
                await eventually(lambda: in_step(mirror, *engines))
                assert [worker.count("snapshots") for worker in engines] == [1] * WORKERS
                for worker in engines:
                    assert "leave" in set(worker.reconnects())
                    # A replica may be asked that is not there yet, or not any more.
                    assert set(worker.reconnects()) <= {"leave", "unavailable"}

    run(scenario())


def test_readiness_fails_first_and_new_streams_are_sent_elsewhere(redis_url: str) -> None:
    async def scenario() -> None:
        port, admin_port = free_ports(2)
        async with (
            process(redis_url, port, admin_port, "--drain-seconds", "30") as index,
            grpc.aio.insecure_channel(index.address) as channel,
        ):
            stub = index_pb2_grpc.IndexServiceStub(channel)
            # A worker that does not leave keeps the indexer for its drain_seconds.
            stays = stub.Publish()
            await stays.write(pb.PublishRequest(hello=hello()))
            assert isinstance(await stays.read(), pb.PublishResponse)
            index.process.send_signal(signal.SIGTERM)

            async def failing() -> bool:
                status, details = await asyncio.to_thread(index.readiness)
                return status == 503 and details["draining"] is True and details["streams"] == 1

            await eventually(failing)
            error = await last_status(index.address, pb.PublishRequest(hello=hello(worker_id="second")))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "connect to another" in error.details()
            await stays.write(pb.PublishRequest(load=pb.Load(epoch=1)))
            assert (await stays.read()).WhichOneof("body") == "leave"
            stays.cancel()
            async with asyncio.timeout(END_SECONDS):
                assert await index.process.wait() == 0

    run(scenario())


def test_a_large_snapshot_holds_up_nobody_else(redis_url: str) -> None:
    async def scenario() -> None:
        async with process(redis_url, *free_ports(2)) as index:
            engines = [engine(index.address, f"w{number}") for number in range(20)]
            large = engine(index.address, "large", capacity_keys=LARGE_KEYS)
            large.hold({number * 2**40 for number in range(LARGE_KEYS)})
            async with running(*(worker.publisher.run() for worker in engines), change_for_ever(engines)):
                await eventually(lambda: all(worker.count("deltas") for worker in engines), within=20)
                ages: list[float] = []
                async with running(large.publisher.run()):

                    def finished() -> bool:
                        ages.append(max(w.publisher.state.unpublished_seconds(time.monotonic()) for w in engines))
                        return large.count("snapshots") == 1

                    await eventually(finished, within=40)
                # Deltas leave every 100 ms; one that waited for the snapshot would be seconds old.
                assert max(ages) < OTHERS_SECONDS
                assert all(not set(worker.reconnects()) for worker in engines)

    run(scenario())


def refusal(redis_url: str, *more: str) -> tuple[int, str]:
    """How `warmroute indexer` ends that does not start, and what it says."""
    ports = [str(port) for port in free_ports(2)]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "warmroute", "indexer", "--port", ports[0], "--admin-port", ports[1]),
            *("--redis-url", redis_url, *more),
        ],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stderr


def test_an_indexer_that_asks_nobody_for_anything_must_be_told_so(redis_url: str, tmp_path: Path) -> None:
    code, said = refusal(redis_url)
    assert code == 2
    assert said.startswith("warmroute indexer: indexer.open: false is refused")
    assert "grpc.token_file" in said
    assert "indexer.open: true" in said
    # TLS of the indexer alone says who it is, not who comes.
    assert refusal(redis_url, *tls_flags(Authority(tmp_path / "ca"), mutual=False))[0] == 2


def test_a_token_or_mutual_tls_is_enough(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        for more in (("--grpc-token", "0123456789abcdef"), tls_flags(Authority(tmp_path / "ca"), mutual=True)):
            async with process(redis_url, *free_ports(2), "--open", "false", *more):
                pass

    run(scenario())


def tls_flags(authority: Authority, *, mutual: bool) -> tuple[str, ...]:
    cert, key = authority.sign("server")
    own = ("--grpc-tls-cert-file", str(cert), "--grpc-tls-key-file", str(key))
    return (*own, "--grpc-tls-ca-file", str(authority.ca)) if mutual else own
