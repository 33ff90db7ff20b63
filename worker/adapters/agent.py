"""`warmroute agent`: beside a foreign engine, which it makes one worker for each data-parallel rank."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from warmroute.config.agent import AgentConfig
from warmroute.config.grpc import GrpcConfig
from warmroute.process.addresses import address
from warmroute.process.admin import AdminServer
from warmroute.process.lifecycle import StartupError, cannot_listen, until_signal
from warmroute.rpc.security import ClientSecurity
from worker.adapters.engine_client import EngineClient, EngineError, engine_client
from worker.adapters.engines.base import Finding
from worker.adapters.engines.registry import engine_named
from worker.adapters.monitor import EngineChangedError, Monitor
from worker.adapters.profile import Profile, model_files, probe
from worker.adapters.rank_worker import RankedMetrics, RankWorker
from worker.metrics import AgentMetrics

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.5
SAY_SECONDS: Final = 30.0


async def serve(config: AgentConfig, grpc_config: GrpcConfig | None = None) -> None:
    """Run until SIGINT or SIGTERM. Raises StartupError."""
    agent = Agent(config, ClientSecurity(grpc_config or GrpcConfig()))
    admin = AdminServer(agent.registry, agent.readiness)
    try:
        try:
            await admin.start(config.admin_host, config.admin_port)
        except OSError as error:
            raise cannot_listen("agent.admin_port", config.admin_host, config.admin_port, error) from error
        await until_signal(agent.run())
    finally:
        await admin.stop()


class Agent:
    """`run` is the one task; its owner cancels and watches it."""

    def __init__(self, config: AgentConfig, security: ClientSecurity) -> None:
        self.registry = CollectorRegistry()
        self.profile: Profile | None = None
        self.workers: list[RankWorker] = []
        self.monitor: Monitor | None = None
        self._config = config
        self._security = security
        self._metrics = AgentMetrics(self.registry)
        self._ranked: list[tuple[int, CollectorRegistry]] = []
        self._worker_id = config.worker_id or uuid.uuid4().hex
        self._waiting_for = "not tried yet"
        self.registry.register(RankedMetrics(lambda: self._ranked))

    async def run(self) -> None:
        """Serve until cancelled; an engine that is not there is waited for."""
        config = self._config
        key = _key(config)
        if config.model_path is not None and not config.model_path.is_dir():
            raise StartupError(f"agent.model_path: {config.model_path} is no folder: give the model's, or leave it out")
        with zmq.asyncio.Context() as context:
            async with engine_client(
                config.engine_url, timeout_seconds=config.engine_timeout_seconds, key=key
            ) as client:
                while True:
                    profile = await self._await_engine(client)
                    try:
                        await self._serve(profile, client, context)
                    except* EngineChangedError:
                        logger.warning("the engine is another one than it was: starting over with it")

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """An engine without its indexer still serves; it is then routed by load."""
        if self.profile is None or self.monitor is None:
            return False, {"engine": self._waiting_for}
        return self.monitor.up, {
            "engine": "running" if self.monitor.up else self.monitor.trouble,
            "index": {worker.publisher.identity.worker_id: _index_state(worker) for worker in self.workers},
            "events": "approximate" if self.profile.approximate else "exact",
            "troubles": [worker.source.trouble for worker in self.workers if worker.source and worker.source.trouble],
            "findings": [str(finding) for finding in self.profile.findings],
        }

    async def _await_engine(self, client: EngineClient) -> Profile:
        loop = asyncio.get_running_loop()
        said_at = -SAY_SECONDS
        while True:
            try:
                profile = await probe(client, self._config)
            except EngineError as error:
                self._waiting_for = f"waiting: {error}"
                if loop.time() - said_at >= SAY_SECONDS:
                    logger.info("waiting for the engine: %s", error)
                    said_at = loop.time()
                await asyncio.sleep(WAIT_SECONDS)
                continue
            self._say(profile)
            return profile

    def _say(self, profile: Profile) -> None:
        names = ", ".join((profile.model, *sorted(profile.adapters)))
        logger.info("%s %s serves %s", self._config.engine, profile.version, names)
        for finding in profile.findings:
            logger.log(logging.ERROR if finding.blind else logging.WARNING, "%s", finding)
        if profile.approximate:
            logger.warning("no cache events: gateways guess what this engine holds")
        self._metrics.approximate.set(profile.approximate)

    async def _serve(self, profile: Profile, client: EngineClient, context: zmq.asyncio.Context) -> None:
        """Run the workers of an engine as it is now."""
        files = await asyncio.to_thread(model_files, self._config, profile)
        if files.tokenizer is None:
            what = "no tokenizer.json is at hand, so that gateways with one match nothing here"
            missing = Finding(what, "give --model-path, the model's folder")
            logger.warning("%s", missing)
            profile = replace(profile, findings=(*profile.findings, missing))
        self._ranked, self.workers = [], []
        try:
            for rank in profile.ranks:
                registry = CollectorRegistry()
                worker_id = f"{self._worker_id}/dp{rank.number}" if len(profile.ranks) > 1 else self._worker_id
                self.workers.append(
                    RankWorker(self._config, profile, rank, worker_id, self._address, files, registry, self._security)
                )
                self._ranked.append((rank.number, registry))
            self.profile = profile
            self.monitor = Monitor(client, self._config, profile, self.workers, self._metrics)
            async with asyncio.TaskGroup() as tasks:
                for worker in self.workers:
                    tasks.create_task(worker.publisher.run())
                if not profile.blind:
                    sources = {source.rank: source for source in profile.sources}
                    for worker in self.workers:
                        if worker.rank in sources:
                            tasks.create_task(worker.attach(sources[worker.rank], context).run())
                    drain = engine_named(self._config.engine).drain(profile.ranks[0].block_tokens)
                    if drain is not None and not profile.sources:
                        tasks.create_task(self.monitor.drain(drain))
                tasks.create_task(self.monitor.run())
        finally:
            self.profile, self.monitor, self._waiting_for = None, None, "starting over"

    @property
    def _address(self) -> str:
        if self._config.advertise_address is not None:
            return self._config.advertise_address
        parts = urlsplit(self._config.engine_url)
        return address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def _index_state(worker: RankWorker) -> str:
    return "connected" if worker.publisher.connected else worker.publisher.trouble


def _key(config: AgentConfig) -> str | None:
    if config.engine_key_file is None:
        return None
    try:
        key = config.engine_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"agent.engine_key_file: {config.engine_key_file} cannot be read: {error}") from error
    if not key or not key.isascii() or not key.isprintable():
        raise StartupError(f"agent.engine_key_file: {config.engine_key_file} must hold the key alone, in ASCII")
    return key
