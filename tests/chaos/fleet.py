"""Gateways to be troubled: engines that misbehave and are killed, a gateway in this process, one that is killed, and
clients that leave."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import yaml

from gateway.process.gateway import Gateway
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, plain
from tests.gateway.process.test_gateway import is_ready
from tests.indexer.support import running
from tests.ports import free_ports
from tests.support import eventually, redis_client
from warmroute.config.gateway import GatewayConfig
from worker.model_cache import ensure_model

POOL = "p"
EVENT = b'data: {"choices": [{"text": "x"}]}\n\n'
LAST_EVENTS = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 4000, "completion_tokens": 4, "total_tokens": 4004, '
    b'"prompt_tokens_details": {"cached_tokens": 0}}}\n\ndata: [DONE]\n\n'
)


class Engine:
    """Answers health checks; what it does with a request is drawn. `kill` resets all of its connections."""

    def __init__(self, port: int, draw: random.Random) -> None:
        self.port = port
        self._random = draw
        self._server: asyncio.Server | None = None
        self.links: dict[Link, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def kill(self) -> None:
        """Whatever fails of it, the rest is done."""
        async with AsyncExitStack() as ending:
            ending.push_async_callback(asyncio.gather, *self.links.values(), return_exceptions=True)
            for link, task in self.links.items():
                ending.callback(task.cancel)
                ending.callback(link.die)
            if self._server is not None:
                ending.callback(self._server.close)
                self._server = None

    @property
    def is_open(self) -> bool:
        """Whether it listens or has a connection."""
        return self._server is not None or bool(self.links)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer, [])
        task = self.links[link] = asyncio.get_running_loop().create_task(self._serve(link))
        task.add_done_callback(lambda _: self.links.pop(link))

    async def _serve(self, link: Link) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                request = await link.request()
                if b"/health" in request.start:
                    await link.send(plain(b""))
                elif not await self._reply(link):
                    link.die()
                    return
        link.writer.close()

    async def _reply(self, link: Link) -> bool:
        """Whether the connection goes on."""
        draw = self._random.random()
        await self._while()
        if draw < 0.05:
            await link.send(plain(b"busy", b"503 Service Unavailable"))
        elif draw < 0.08:
            await link.send(plain(b"{}", b"500 Internal Server Error"))
        elif draw < 0.13:
            await link.send(plain(b"{}", b"400 Bad Request"))
        elif draw < 0.18:
            return False
        else:
            await link.send(SSE_HEAD)
            for _ in range(4):
                await self._while()
                await link.send(chunk(EVENT))
            if draw < 0.24:
                return False
            await link.send(chunk(LAST_EVENTS) + LAST_CHUNK)
        return True

    async def _while(self) -> None:
        await asyncio.sleep(self._random.expovariate(50))


@dataclass
class Fleet:
    """`clients` counts what they saw of either gateway."""

    engines: list[Engine]
    survivor: Gateway
    victim: asyncio.subprocess.Process
    victim_port: int
    random: random.Random
    clients: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def ask(self, number: int) -> None:
        """One client: a prompt of one of eight families, to either gateway, left at some moment by every fourth."""
        port = self.random.choice([self.survivor.server.port, self.victim_port])
        which = "survivor" if port == self.survivor.server.port else "victim"
        family = self.random.randrange(8) * 5000
        ids = [*range(family, family + 3000), *range(40_000 + number, 41_000 + number)]
        body = orjson.dumps({"model": "m", "prompt": ids[: self.random.randrange(1, 4001)], "stream": True})
        lines = ["POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
        if self.random.random() < 0.3:
            lines.append(f"X-Session-ID: {number % 20}")
        if self.random.random() < 0.1:
            lines.append(f"X-Warmroute-Worker: 127.0.0.1:{self.random.choice(self.engines).port}")
        patience = self.random.expovariate(10) if self.random.random() < 0.25 else 30.0
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            self.clients["refused", which] += 1
            return
        try:
            async with asyncio.timeout(patience):
                writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
                answer = await reader.read()
            self.clients[answer[9:12].decode() or "cut", which] += 1
        except TimeoutError:
            self.clients["left", which] += 1
        except ConnectionError:
            self.clients["cut", which] += 1
        finally:
            writer.transport.abort()

    async def load(self, seconds: float, clients: int = 24) -> None:
        """So many clients at a time, each with one request after the other."""
        ends_at = asyncio.get_running_loop().time() + seconds

        async def client(number: int) -> None:
            while asyncio.get_running_loop().time() < ends_at:
                await self.ask(number)
                number += clients
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(number))

    def gauge(self, name: str, **labels: str) -> float | None:
        self.survivor._set_gauges()
        return self.survivor.registry.get_sample_value(f"warmroute_{name}", {"pool": POOL, **labels})

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of a metric of the survivor's, by their labels' values but the pool."""
        self.survivor._set_gauges()
        return {
            tuple(value for label, value in sorted(sample.labels.items()) if label != "pool"): sample.value
            for metric in self.survivor.registry.collect()
            for sample in metric.samples
            if sample.name == f"warmroute_{name}"
        }


@asynccontextmanager
async def fleet(redis_url: str, folder: Path, draw: random.Random, engines: int = 4) -> AsyncIterator[Fleet]:
    """Ready, with both gateways knowing each other. At the end all of it is ended, whatever fails of that."""
    *ports, port, admin, nothing = free_ports(engines + 3)
    pool = {"name": POOL, "model": "m", "model_path": str(ensure_model())}
    pool |= {"workers": [f"127.0.0.1:{each}" for each in ports]}
    section = {"indexers": [f"127.0.0.1:{nothing}"], "pools": [pool], "first_byte_seconds": 5}
    path = folder / "gateway.yaml"
    sections = {"redis": {"url": redis_url}, "gateway": {**section, "port": port, "admin_port": admin}}
    path.write_text(yaml.safe_dump(sections))
    async with AsyncExitStack() as stack:
        all_engines = [Engine(each, draw) for each in ports]
        for engine in all_engines:
            stack.push_async_callback(engine.kill)
            await engine.start()
        # Shielded: a start that is broken off would leave the process to nobody.
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "warmroute", "gateway", "--config", str(path)),
                stderr=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")},
            )
        )
        stack.push_async_callback(ended, starting)
        victim = await asyncio.shield(starting)
        redis, peers_redis = [await stack.enter_async_context(redis_client(redis_url)) for _ in range(2)]
        settings = GatewayConfig.model_validate({**section, "port": 0})
        survivor = Gateway(settings, redis, peers_redis=peers_redis, name="survivor")
        stack.push_async_callback(survivor.stop)
        await stack.enter_async_context(running(*survivor.tasks()))
        await survivor.server.start()
        await eventually(lambda: asyncio.to_thread(is_ready, f"http://127.0.0.1:{admin}/readyz"), within=30)
        await eventually(lambda: survivor.readiness()[0], within=30)
        made = Fleet(all_engines, survivor, victim, port, draw)
        await eventually(lambda: made.gauge("gateway_flight_gateways") == 1)
        yield made


async def ended(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Kill it, if it runs."""
    process = await starting
    if process.returncode is None:
        process.kill()
    await process.wait()
