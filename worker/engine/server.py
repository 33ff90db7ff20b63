"""The engine's OpenAI API over aiohttp."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from warmroute.chat_template import ChatTemplateError
from worker.engine.errors import EngineStoppedError, PromptTooLongError, QueueFullError
from worker.engine.metrics import EngineMetrics
from worker.engine.protocol import (
    BodyT,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    InvalidRequestError,
    TokenizeRequest,
    parse,
)
from worker.engine.replies import ChatReply, CompletionReply, Reply
from worker.engine.runner import EngineRunner
from worker.engine.text import Generation, TextPiece
from worker.engine.tokenizer import EngineTokenizer

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8_388_608
"""Larger than any prompt that fits into a context of 100,000 tokens."""
BODY_SECONDS = 30.0
WRITE_SECONDS = 60.0
INLINE_BODY_BYTES = 16_384
"""Bodies above it are rendered and tokenised on a thread: 1 MB takes half a second, which would stall the others."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(
    runner: EngineRunner, tokenizer: EngineTokenizer, *, model: str, token_timeout_seconds: float = 600.0
) -> web.Application:
    """The OpenAI API of one engine: `EngineTokenizer.from_folder(model_path)` gives the tokenizer, `config.model` the
    name. A request that waits longer than `token_timeout_seconds` for a token is aborted.

    The app neither starts nor stops the runner. Serve it with `serve`, or with
    `web.AppRunner(app, handler_cancellation=True)`: a disconnect aborts a request by cancelling its handler.
    """
    server = _Server(runner, tokenizer, model, token_timeout_seconds)
    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post("/v1/chat/completions", server.chat),
            web.post("/v1/completions", server.completions),
            web.post("/tokenize", server.tokenize),
            web.get("/v1/models", server.models),
            web.get("/health", server.health),
            web.get("/metrics", server.metrics),
            web.post("/reset_prefix_cache", server.reset_prefix_cache),
        ]
    )
    return app


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner, whose `cleanup()` stops it, and the bound port. Raises OSError where it cannot."""
    app_runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    await app_runner.setup()
    try:
        await web.TCPSite(app_runner, host, port).start()
    except BaseException:
        await app_runner.cleanup()
        raise
    bound: int = app_runner.addresses[0][1]
    return app_runner, bound


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one place where errors become HTTP."""
    try:
        return await handler(request)
    except (
        InvalidRequestError,
        web.HTTPException,
        ChatTemplateError,
        QueueFullError,
        EngineStoppedError,
        TimeoutError,
    ) as error:
        answer = _describe(error)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        answer = InvalidRequestError(
            "the engine failed to answer this request", status=500, kind="server_error", code="internal"
        )
    headers = {"Retry-After": "1"} if answer.status == 503 else None
    return _json(answer.body(), answer.status, headers)


def _describe(error: Exception) -> InvalidRequestError:
    match error:
        case InvalidRequestError():
            return error
        case web.HTTPException():
            return InvalidRequestError(error.reason, status=error.status, code="http_error")
        case ChatTemplateError():
            return InvalidRequestError(str(error), param="messages")
        case QueueFullError():
            return InvalidRequestError(str(error), status=503, kind="server_error", code="queue_full")
        case EngineStoppedError():
            return InvalidRequestError(str(error), status=503, kind="server_error", code="engine_stopped")
        case _:
            return InvalidRequestError(
                "the engine did not answer in time", status=504, kind="server_error", code="timeout"
            )


class _Server:
    def __init__(
        self, runner: EngineRunner, tokenizer: EngineTokenizer, model: str, token_timeout_seconds: float
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._model = model
        self._token_timeout_seconds = token_timeout_seconds
        self._metrics = EngineMetrics(runner, model)
        self._created = int(time.time())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        started = time.perf_counter()
        raw, body = await self._read(request, ChatRequest)
        token_ids = await _run(
            raw,
            lambda: self._tokenizer.encode_chat(
                body.messages,
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                variables=body.chat_template_kwargs,
            ),
        )
        generation = self._submit(token_ids, body, "messages")
        return await self._answer(request, body, generation, ChatReply(self._model), started)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        started = time.perf_counter()
        raw, body = await self._read(request, CompletionRequest)
        token_ids = body.prompt
        if isinstance(token_ids, str):
            text = token_ids
            token_ids = await _run(raw, lambda: self._tokenizer.encode(text, add_special_tokens=True))
        generation = self._submit(token_ids, body, "prompt")
        return await self._answer(request, body, generation, CompletionReply(self._model), started)

    async def tokenize(self, request: web.Request) -> web.Response:
        raw, body = await self._read(request, TokenizeRequest)

        def encode() -> list[int]:
            if body.prompt is not None:
                special = True if body.add_special_tokens is None else body.add_special_tokens
                return self._tokenizer.encode(body.prompt, add_special_tokens=special)
            return self._tokenizer.encode_chat(
                body.messages or [],
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                variables=body.chat_template_kwargs,
            )

        token_ids = await _run(raw, encode)
        return _json({"count": len(token_ids), "max_model_len": self._runner.max_context_tokens, "tokens": token_ids})

    async def models(self, _request: web.Request) -> web.Response:
        entry = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "warmroute",
            "max_model_len": self._runner.max_context_tokens,
        }
        return _json({"object": "list", "data": [entry]})

    async def health(self, _request: web.Request) -> web.Response:
        if not self._runner.healthy:
            raise EngineStoppedError(f"the engine is not running: {self._runner.error or 'it was stopped'}")
        return web.Response()

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        await self._runner.reset_prefix_cache()
        return web.Response()

    async def _read(self, request: web.Request, kind: type[BodyT]) -> tuple[bytes, BodyT]:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                raw = await request.read()
        except TimeoutError as error:
            raise InvalidRequestError(f"the body did not arrive within {BODY_SECONDS:.0f} s", status=408) from error
        body = parse(raw, kind)
        if body.model not in (None, self._model):
            raise InvalidRequestError(
                f"the model {body.model!r} does not exist; this engine serves {self._model!r}",
                status=404,
                kind="not_found_error",
                param="model",
                code="model_not_found",
            )
        return raw, body

    def _submit(self, token_ids: Sequence[int], body: GenerationRequest, param: str) -> Generation:
        """Queue the prompt; a limit that the request does not set itself gives way to the context."""
        room = max(1, self._runner.max_context_tokens - len(token_ids))
        limit = body.token_limit or min(room, body.default_token_limit)
        try:
            stream = self._runner.submit(token_ids, body.sampling(limit), salt=body.cache_salt or "")
        except PromptTooLongError as error:
            raise InvalidRequestError(str(error), param=param, code="context_length_exceeded") from error
        except ValueError as error:
            raise InvalidRequestError(f"{param}: {error}", param=param) from error
        return Generation(stream, self._tokenizer.detokenizer(), body.stops)

    async def _answer(
        self, request: web.Request, body: GenerationRequest, generation: Generation, reply: Reply, started: float
    ) -> web.StreamResponse:
        try:
            pieces = self._pieces(generation, started)
            if body.stream:
                return await _stream(request, pieces, generation, reply, include_usage=body.include_usage)
            parts: list[TextPiece] = [piece async for piece in pieces]
            text = "".join(piece.text for piece in parts)
            return _json(reply.whole(text, parts[-1].finish_reason or "stop", generation))
        finally:
            generation.abort()

    async def _pieces(self, generation: Generation, started: float) -> AsyncIterator[TextPiece]:
        first = True
        async for piece in generation.pieces(self._token_timeout_seconds):
            if first:
                self._metrics.observe_first_token(time.perf_counter() - started)
                first = False
            yield piece


async def _stream(
    request: web.Request, pieces: AsyncIterator[TextPiece], generation: Generation, reply: Reply, *, include_usage: bool
) -> web.StreamResponse:
    """Send server-sent events. The head goes out at once, the first event with the first token."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        async for event in _events(pieces, generation, reply, include_usage=include_usage):
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(b"data: " + event + b"\n\n")
        await response.write_eof()
    except ConnectionResetError:
        pass  # the client is gone; the caller aborts the request
    except TimeoutError:
        # The client does not read: it must not hold its blocks for good, nor aiohttp wait for its socket to drain.
        if request.transport is not None:
            request.transport.abort()
    return response


async def _events(
    pieces: AsyncIterator[TextPiece], generation: Generation, reply: Reply, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """The events' payloads. A failure is an event too, as the status is sent already."""
    opening = reply.opening()
    try:
        async for piece in pieces:
            for event in opening:
                yield orjson.dumps(event)
            opening = []
            if piece.text or piece.finish_reason is not None:
                yield orjson.dumps(reply.chunk(piece))
        if include_usage:
            yield orjson.dumps(reply.usage_chunk(generation))
    except (EngineStoppedError, TimeoutError) as error:
        yield orjson.dumps(_describe(error).body())
    yield b"[DONE]"


async def _run(raw: bytes, work: Callable[[], list[int]]) -> list[int]:
    return await asyncio.to_thread(work) if len(raw) > INLINE_BODY_BYTES else work()


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)
