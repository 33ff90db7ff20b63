"""`python -m bench.routing_live.engine_process PORT NUMBER INDEXER MODEL_FOLDER`: one simulated engine as a worker.

It speaks OpenAI's chats over HTTP, streamed and not, and publishes its cache and load with the production publisher.
`GET /simulation` tells how it is, `PUT /simulation {"cache_tokens": N, "running_requests": M}` makes
it start over with an empty cache.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from bench.routing_live.simulated_engine import Generation, Machine, SimulatedEngine
from bench.routing_live.tokens import Tokens
from warmroute.cli.children import end_with_parent
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS
from worker.engine.protocol import ChatRequest, InvalidRequestError, parse
from worker.events import CacheCleared
from worker.metrics import WorkerMetrics
from worker.publish.index_blocks import capacity_keys
from worker.publish.offered_files import ModelFiles
from worker.publish.publisher import Identity, Publisher

POOL: Final = "bench"
MODEL: Final = "bench"
MACHINE: Final = Machine()
CACHE_TOKENS: Final = 65_536
"""At the start; each workload has its own."""
DEFAULT_REPLY_TOKENS: Final = 16
MAX_BODY_BYTES: Final = 8_388_608


def engine_name(number: int) -> str:
    """The worker's id, which replies have as `system_fingerprint`, so that any gateway's client knows who answered."""
    return f"engine-{number}"


class EngineServer:
    """The HTTP side of one engine, and its publisher."""

    def __init__(self, number: int, address: str, indexer: str, folder: Path) -> None:
        self._name = engine_name(number)
        self._tokens = Tokens(folder)
        self._identity = Identity(
            pool=POOL,
            worker_id=self._name,
            address=address,
            model=MODEL,
            engine="builtin",
            engine_version="0",
            engine_block_tokens=MACHINE.block_tokens,
            index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS,
            capacity_keys=_capacity_keys(CACHE_TOKENS),
            files=ModelFiles.from_folder(folder),
        )
        metrics = WorkerMetrics(CollectorRegistry())
        self._publisher = Publisher(indexer, self._identity, lambda: self._engine.load(), metrics)
        self._engine = SimulatedEngine(MACHINE, self._publisher.apply, cache_tokens=CACHE_TOKENS)

    async def run(self, port: int) -> None:
        """Serve until killed, or until the engine or its publisher fails."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/simulation", self._state),
                web.put("/simulation", self._start_over),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._engine.run())
            tasks.create_task(self._publisher.run())

    # --- OpenAI's API ------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = parse(await request.read(), ChatRequest)
            prompt_ids = self._tokens.prompt(body.messages)
            reply = self._tokens.reply(prompt_ids, body.token_limit or DEFAULT_REPLY_TOKENS)
            generation = self._engine.submit(
                prompt_ids, [token_id for _, token_id in reply], salt=body.cache_salt or ""
            )
        except (InvalidRequestError, ValueError) as error:
            return _json({"error": {"message": str(error), "type": "invalid_request_error"}}, 400)
        try:
            texts = [text for text, _ in reply]
            if body.stream:
                return await self._stream(request, generation, texts, with_usage=body.include_usage)
            for _ in texts:
                await generation.outputs.get()
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(texts)},
                "finish_reason": "length",
            }
            return _json({**self._head("chat.completion"), "choices": [choice], "usage": _usage(generation)})
        finally:
            self._engine.abort(generation)

    async def _stream(
        self, request: web.Request, generation: Generation, texts: Sequence[str], *, with_usage: bool
    ) -> web.StreamResponse:
        """The head goes out at once, as engines send it; one event a token."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = self._head("chat.completion.chunk")
        role: dict[str, str] = {"role": "assistant"}
        for text in texts:
            output = await generation.outputs.get()
            choice = {"index": 0, "delta": {**role, "content": text}, "finish_reason": output.finish_reason}
            await response.write(_event({**head, "choices": [choice]}))
            role = {}
        if with_usage:
            await response.write(_event({**head, "choices": [], "usage": _usage(generation)}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": "chatcmpl-bench",
            "object": kind,
            "created": int(time.time()),
            "model": MODEL,
            "system_fingerprint": self._name,
        }

    async def _models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    # --- the bench's -------------------------------------------------------------------------------------------------

    async def _state(self, _: web.Request) -> web.Response:
        return _json(
            {
                "idle": self._engine.idle,
                "published": self._publisher.connected and not self._publisher.state.unpublished,
                "late_seconds": self._engine.late_seconds,
            }
        )

    async def _start_over(self, request: web.Request) -> web.Response:
        if not self._engine.idle:
            return _json({"error": {"message": "the engine is not idle"}}, 409)
        asked = await request.json()
        cache_tokens = int(asked["cache_tokens"])
        running_requests = int(asked["running_requests"])
        self._engine.start_over(cache_tokens, running_requests)
        # As a restarted worker says Hello again: the index's sets are laid out for the capacity.
        self._publisher.identity = replace(
            self._identity, capacity_keys=_capacity_keys(cache_tokens), max_running_requests=running_requests
        )
        self._publisher.apply([CacheCleared()])
        return web.Response()


def _capacity_keys(cache_tokens: int) -> int:
    return capacity_keys(cache_tokens=cache_tokens, index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS)


def _usage(generation: Generation) -> dict[str, Any]:
    request = generation.request
    return {
        "prompt_tokens": request.num_prompt_tokens,
        "completion_tokens": request.num_generated_tokens,
        "total_tokens": request.num_tokens,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens or 0},
    }


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def main(port: str, number: str, indexer: str, folder: str) -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    uvloop.run(EngineServer(int(number), f"127.0.0.1:{port}", indexer, Path(folder)).run(int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
