"""A worker with the built-in engine as a process: engine, its OpenAI API, publisher, admin server."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

import warmroute
from warmroute.config.grpc import GrpcConfig
from warmroute.config.worker import WorkerConfig
from warmroute.process.addresses import address
from warmroute.process.admin import AdminServer
from warmroute.process.lifecycle import StartupError, cannot_listen, until_signal
from warmroute.rpc.security import ClientSecurity
from worker.engine.errors import ModelError
from worker.engine.runner import EngineRunner, create_engine
from worker.engine.server import create_app
from worker.engine.server import serve as serve_engine
from worker.engine.tokenizer import EngineTokenizer
from worker.events import CacheEvent
from worker.metrics import WorkerMetrics
from worker.model_cache import ModelCacheError, ensure_model
from worker.publish.index_blocks import capacity_keys
from worker.publish.offered_files import ModelFiles
from worker.publish.publisher import Identity, Publisher

logger = logging.getLogger(__name__)

ENGINE_WATCH_SECONDS = 1.0


class EngineDiedError(Exception):
    """The engine's thread ended by itself; only a restart of the process helps."""


async def serve(config: WorkerConfig, grpc_config: GrpcConfig | None = None) -> None:
    """Run until SIGINT or SIGTERM. Raises StartupError, or EngineDiedError when the engine fails."""
    loop = asyncio.get_running_loop()
    security = ClientSecurity(grpc_config or GrpcConfig())
    publisher: Publisher | None = None

    def take_events(events: Sequence[CacheEvent]) -> None:
        """On the engine's thread."""
        if publisher is not None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(publisher.apply, events)

    model_path = _model_path(config)
    try:
        runner = create_engine(config, model_path, take_events)
        tokenizer = EngineTokenizer.from_folder(model_path)
    except ModelError as error:
        prefix = "" if str(error).startswith("worker.") else "worker.model_path: "
        raise StartupError(f"{prefix}{error}") from error
    registry = CollectorRegistry()
    if config.indexer is not None:
        publisher = _publisher(config, model_path, runner, WorkerMetrics(registry), security)
    admin = AdminServer(registry, lambda: _readiness(runner, publisher))
    http: web.AppRunner | None = None
    try:
        runner.start()
        try:
            http, _ = await serve_engine(create_app(runner, tokenizer, model=config.model), config.host, config.port)
        except OSError as error:
            raise cannot_listen("worker.port", config.host, config.port, error) from error
        try:
            await admin.start(config.admin_host, config.admin_port)
        except OSError as error:
            raise cannot_listen("worker.admin_port", config.admin_host, config.admin_port, error) from error
        logger.info("listening on %s, serving %s", address(config.host, config.port), config.model)
        await until_signal(_watch(runner), *([publisher.run()] if publisher is not None else []))
    finally:
        if http is not None:
            await http.cleanup()
        await admin.stop()
        await runner.stop()


def _model_path(config: WorkerConfig) -> Path:
    if config.model_path is not None:
        return config.model_path
    try:
        return ensure_model()
    except ModelCacheError as error:
        raise StartupError(f"worker.model_path: {error}") from error


def _publisher(
    config: WorkerConfig, model_path: Path, runner: EngineRunner, metrics: WorkerMetrics, security: ClientSecurity
) -> Publisher:
    try:
        files = ModelFiles.from_folder(model_path)
    except OSError as error:
        raise StartupError(f"worker.model_path: {error}") from error
    identity = Identity(
        pool=config.pool,
        worker_id=config.worker_id or uuid.uuid4().hex,
        address=config.advertise_address or address(config.host, config.port),
        model=config.model,
        engine="builtin",
        engine_version=warmroute.__version__,
        engine_block_tokens=runner.block_tokens,
        index_block_tokens=config.index_block_tokens,
        capacity_keys=capacity_keys(
            cache_tokens=runner.capacity_blocks * runner.block_tokens, index_block_tokens=config.index_block_tokens
        ),
        files=files,
        max_running_requests=config.max_batch_requests,
    )
    try:
        return Publisher(config.indexer or "", identity, runner.load, metrics, security)
    except ValueError as error:
        raise StartupError(f"worker.index_block_tokens: {error}") from error


async def _watch(runner: EngineRunner) -> None:
    while runner.healthy:  # noqa: ASYNC110 - the engine's thread cannot set an asyncio.Event while it dies
        await asyncio.sleep(ENGINE_WATCH_SECONDS)
    raise EngineDiedError(f"the engine failed: {runner.error!r}")


def _readiness(runner: EngineRunner, publisher: Publisher | None) -> tuple[bool, dict[str, object]]:
    """An engine without its indexer still serves; it is then routed by load."""
    index = "off" if publisher is None else "connected" if publisher.connected else publisher.trouble
    return runner.healthy, {"engine": "running" if runner.healthy else "failed", "index": index}
