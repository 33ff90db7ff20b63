"""`python -m bench.chaos.engine_process '{...}'`: an engine without a model, on one port.

A prompt is a list of token ids; it is cached whole, and the one that was used longest ago leaves where there is no
room. So what it holds is known exactly: `GET /held` tells. With `indexer` it publishes by itself with the production
publisher, as a worker; with `events_port` it says so as vLLM does, to an agent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import msgpack
import orjson
import uvloop
import zmq
import zmq.asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry

from warmroute.cli.children import end_with_parent
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS
from worker.events import BlocksRemoved, BlocksStored, EngineLoad
from worker.metrics import WorkerMetrics
from worker.publish.index_blocks import capacity_keys
from worker.publish.offered_files import ModelFiles
from worker.publish.publisher import Identity, Publisher

POOL: Final = "chaos"
MODEL: Final = "chaos"
BLOCK_TOKENS: Final = 16
PROMPT_TOKENS: Final = 4 * DEFAULT_INDEX_BLOCK_TOKENS
"""That are cached; a request has a few more."""
CACHED_PROMPTS: Final = 12
PREFILL_SECONDS: Final = 0.02
TOKEN_SECONDS: Final = 0.03
REPLAYED: Final = 1000
"""Latest messages kept for an agent that missed some."""
METRICS: Final = """process_start_time_seconds {started}
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} 0
vllm:kv_cache_usage_perc{{engine="0"}} 0.1
vllm:cache_config_info{{block_size="{block}",engine="0",num_gpu_blocks="{blocks}",enable_prefix_caching="True"}} 1
"""
CACHE_BLOCKS: Final = CACHED_PROMPTS * PROMPT_TOKENS // BLOCK_TOKENS


class Settings(TypedDict):
    """The argument. `address`: where gateways reach it."""

    host: str
    port: int
    name: str
    address: str
    model_folder: str
    indexer: NotRequired[str]
    events_port: NotRequired[int]
    replay_port: NotRequired[int]


class Events:
    """Cache events as vLLM publishes them over ZMQ, with replays."""

    def __init__(self, events_port: int, replay_port: int) -> None:
        self.ports = events_port, replay_port
        self._numbers = itertools.count()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=REPLAYED)
        context = zmq.asyncio.Context.instance()
        self._events, self._replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for socket, port in ((self._events, events_port), (self._replay, replay_port)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"tcp://127.0.0.1:{port}")

    async def publish(self, events: list[BlocksStored | BlocksRemoved]) -> None:
        """One message."""
        message = msgpack.packb([time.time(), [_vllm_event(event) for event in events], 0])
        number = next(self._numbers)
        self._kept.append((number, message))
        await self._events.send_multipart([b"", number.to_bytes(8, "big"), message])

    async def serve_replays(self) -> None:
        while True:
            client, *_, start = await self._replay.recv_multipart()
            for number, message in list(self._kept):
                if number >= int.from_bytes(start, "big"):
                    await self._replay.send_multipart([client, b"", number.to_bytes(8, "big"), message])
            await self._replay.send_multipart([client, b"", b"\xff" * 8, b""])

    def sources(self) -> dict[str, Any]:
        """The answer of `GET /kv_event_sources`."""
        events, replay = (f"tcp://*:{port}" for port in self.ports)
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "topic": ""}
        return {"0": {**config, "replay_endpoint": replay, "buffer_steps": REPLAYED}}


def _vllm_event(event: BlocksStored | BlocksRemoved) -> dict[str, Any]:
    if isinstance(event, BlocksRemoved):
        return {"type": "BlockRemoved", "block_hashes": list(event.block_hashes), "medium": "GPU"}
    return {
        "type": "BlockStored",
        "block_hashes": list(event.block_hashes),
        "parent_block_hash": None,
        "token_ids": list(event.token_ids),
        "block_size": BLOCK_TOKENS,
        "medium": "GPU",
    }


class Engine:
    """The HTTP side and the cache."""

    def __init__(self, settings: Settings) -> None:
        self._name = settings["name"]
        self._started = time.time()
        self._running = 0
        self._hashes = itertools.count(1)
        self._held: OrderedDict[int, list[int]] = OrderedDict()
        self._publisher: Publisher | None = None
        self._events: Events | None = None
        if "events_port" in settings:
            self._events = Events(settings["events_port"], settings["replay_port"])
        else:
            self._publisher = self._new_publisher(settings)

    def _new_publisher(self, settings: Settings) -> Publisher:
        identity = Identity(
            pool=POOL,
            worker_id=self._name,
            address=settings["address"],
            model=MODEL,
            engine="builtin",
            engine_version="0",
            engine_block_tokens=BLOCK_TOKENS,
            index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS,
            capacity_keys=capacity_keys(
                cache_tokens=CACHE_BLOCKS * BLOCK_TOKENS, index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS
            ),
            files=ModelFiles.from_folder(Path(settings["model_folder"])),
        )
        metrics = WorkerMetrics(CollectorRegistry())
        return Publisher(settings["indexer"], identity, lambda: EngineLoad(running_requests=self._running), metrics)

    async def run(self, host: str, port: int) -> None:
        """Serve until killed, or until the publisher fails."""
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        for path in ("/health", "/metrics", "/held", "/version", "/v1/models", "/kv_event_sources"):
            app.router.add_get(path, self._tell)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port, backlog=1024).start()
        if self._publisher is not None:
            await self._publisher.run()
        elif self._events is not None:
            await self._events.serve_replays()

    # --- the cache ---------------------------------------------------------------------------------------------------

    async def _use(self, prompt: list[int]) -> int:
        """Cached tokens of a prompt, which is cached whole now."""
        first, ids = prompt[0], prompt[:PROMPT_TOKENS]
        if first in self._held:
            self._held.move_to_end(first)
            return PROMPT_TOKENS
        events: list[BlocksStored | BlocksRemoved] = []
        if len(self._held) == CACHED_PROMPTS:
            events.append(BlocksRemoved(self._held.popitem(last=False)[1]))
        hashes = self._held[first] = [next(self._hashes) for _ in range(len(ids) // BLOCK_TOKENS)]
        events.append(BlocksStored(hashes, None, ids))
        if self._publisher is not None:
            self._publisher.apply(events)
        elif self._events is not None:
            await self._events.publish(events)
        return 0

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def _tell(self, request: web.Request) -> web.Response:
        if request.path == "/metrics":
            facts = {"started": self._started, "running": self._running, "block": BLOCK_TOKENS, "blocks": CACHE_BLOCKS}
            return web.Response(text=METRICS.format(**facts))
        answers: dict[str, Any] = {
            "/health": {},
            "/held": {"held": list(self._held)},
            "/version": {"version": "0.32.0"},
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "root": "/", "parent": None}]},
            "/kv_event_sources": {} if self._events is None else self._events.sources(),
        }
        return web.json_response(answers[request.path])

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self._running += 1
        try:
            cached = await self._use(body["prompt"])
            tokens = int(body["max_tokens"])
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
            usage["total_tokens"] = sum(usage.values())
            full = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
            await asyncio.sleep(0.0 if cached else PREFILL_SECONDS)
            if not body.get("stream"):
                await asyncio.sleep(tokens * TOKEN_SECONDS)
                choice = {"index": 0, "text": "x" * tokens, "finish_reason": "length"}
                return web.json_response({**self._head(), "choices": [choice], "usage": full})
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(tokens):
                await asyncio.sleep(TOKEN_SECONDS)
                reason = "length" if number == tokens - 1 else None
                await self._send(response, {"choices": [{"index": 0, "text": "x", "finish_reason": reason}]})
            await self._send(response, {"choices": [], "usage": full})
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
            return response
        finally:
            self._running -= 1

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + orjson.dumps({**self._head(), **event}) + b"\n\n")

    def _head(self) -> dict[str, Any]:
        return {"id": "cmpl-chaos", "object": "text_completion", "created": 0, "model": MODEL}


def main(argument: str) -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    settings: Settings = json.loads(argument)

    async def run() -> None:  # sockets and publisher belong to the loop
        await Engine(settings).run(settings["host"], settings["port"])

    uvloop.run(run())


if __name__ == "__main__":
    main(sys.argv[1])
