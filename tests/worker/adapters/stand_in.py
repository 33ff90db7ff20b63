"""An engine's outside, with sockets and HTTP of its own: publishes captures or made-up events as vLLM does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgpack
import zmq
import zmq.asyncio
from aiohttp import web
from aiohttp.typedefs import Handler

METRICS = """process_start_time_seconds {started}
vllm:num_requests_running{{engine="{rank}"}} {running}
vllm:num_requests_waiting{{engine="{rank}"}} 0
vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.5
vllm:cache_config_info{{block_size="{block}",engine="{rank}",num_gpu_blocks="4096",enable_prefix_caching="True"}} 1
"""


class RankSockets:
    """PUB and ROUTER of one rank; keeps the last `keep` messages for replays."""

    def __init__(self, context: zmq.asyncio.Context, *, keep: int = 1000, topic: bytes = b"kv@x/y", framing: int = 4):
        self.number = 0
        self.clock = 0.0
        self.asked: list[int] = []
        self.topic, self.framing = topic, framing
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._context = context
        self.publisher = context.socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        for socket in (self.publisher, self._router):
            socket.setsockopt(zmq.LINGER, 0)

    def bind(self) -> tuple[str, str]:
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.publisher, self._router)]
        return f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"

    def connect(self, endpoint: str) -> None:
        self.publisher.connect(endpoint)

    async def publish(self, payload: bytes, *, lost: bool = False, number: int | None = None) -> None:
        if number is not None:
            self.number = number
        message = (self.number, payload)
        self.number += 1
        self.kept.append(message)
        if not lost:
            await self.publisher.send_multipart([self.topic, message[0].to_bytes(8, "big"), payload])

    async def publish_events(self, *events: dict[str, Any], **how: Any) -> None:
        self.clock += 1.0
        await self.publish(msgpack.packb([self.clock, list(events), 0]), **how)

    def restart(self) -> None:
        self.number = 0
        self.kept.clear()

    async def serve_replays(self) -> None:
        while True:
            client, *_, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, payload in list(self.kept):
                if number >= int.from_bytes(start, "big"):
                    frames = [client, b"", self.topic, number.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(frames if self.framing == 4 else [*frames[:2], *frames[3:]])
            end = [client, b"", b"", b"\xff" * 8, b""]
            await self._router.send_multipart(end if self.framing == 4 else [*end[:2], *end[3:]])

    def close(self) -> None:
        self.publisher.close(0)
        self._router.close(0)


@asynccontextmanager
async def rank_sockets(**how: Any) -> AsyncIterator[RankSockets]:
    """Sockets of a rank, not bound yet, with a task that answers replays."""
    context = zmq.asyncio.Context()
    sockets = RankSockets(context, **how)
    task = asyncio.get_running_loop().create_task(sockets.serve_replays())
    try:
        yield sockets
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sockets.close()
        context.term()


def kv_event_source(events: str, replay: str | None) -> dict[str, Any]:
    """One rank's entry of `GET /kv_event_sources`."""
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "topic": "t"}
    return {**config, "replay_endpoint": replay, "buffer_steps": 1000}


class Asked(NamedTuple):
    """A completion that came; `rank` is the header that names a data-parallel rank."""

    body: dict[str, Any]
    rank: str | None


class EngineHttp:
    """The engine's HTTP: what an agent asks it for, and completions of prompts of token ids."""

    def __init__(self) -> None:
        self.sources: Any = {}
        self.server_info: Any = None
        self.started = 1000.0
        self.running = 1
        self.healthy = True
        self.broken: set[str] = set()
        self.missing: set[str] = set()
        self.block = 16
        self.ranks = 1
        self.models = [{"id": "tiny", "root": "/nowhere", "parent": None}]
        self.drained: deque[list[Any]] = deque()
        self.keys: list[str | None] = []
        self.asked: list[Asked] = []
        self.cached = 0
        """Tokens that the next completion reports as cached."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(middlewares=[self._fail])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/{path:.*}", self._facts)
        app.router.add_post("/kv_cache_events", self._drain)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _fail(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in self.broken or request.path in self.missing:
            return web.Response(status=500 if request.path in self.broken else 404)
        return await handler(request)

    async def _facts(self, request: web.Request) -> web.Response:
        answers = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"object": "list", "data": self.models},
            "/kv_event_sources": self.sources,
            "/server_info": self.server_info,
        }
        answer = answers.get(request.path)
        return web.json_response(answer) if answer is not None else web.Response(status=404)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(Asked(body, request.headers.get("X-Data-Parallel-Rank")))
        usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        return web.json_response({"object": "text_completion", "choices": [choice], "usage": usage})

    async def _drain(self, _: web.Request) -> web.Response:
        return web.json_response(self.drained.popleft() if self.drained else [])

    async def _health(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.Response(status=200 if self.healthy else 500)

    async def _metrics(self, _: web.Request) -> web.Response:
        text = "".join(
            METRICS.format(started=self.started, rank=rank, running=self.running, block=self.block)
            for rank in range(self.ranks)
        )
        return web.Response(text=text)


@asynccontextmanager
async def engine_http(**facts: Any) -> AsyncIterator[EngineHttp]:
    engine = EngineHttp()
    for name, value in facts.items():
        setattr(engine, name, value)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
