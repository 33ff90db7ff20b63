"""The gateway as a process: pools, their mirrors and workers, the public port, the admin port."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from gateway.admin.explain import Explainer
from gateway.admin.routes import add_routes
from gateway.discovery.health import HealthChecks
from gateway.discovery.load_reports import LoadReports
from gateway.discovery.peer_channel import CALL_SECONDS, PeerChannel
from gateway.discovery.static import static_targets
from gateway.http.server import CONNECTION_LIMIT, Server
from gateway.http.upstream import ConnectionBudget, UpstreamPool
from gateway.http.upstream_security import UpstreamSecurity
from gateway.process import compiled
from gateway.process.metrics import GatewayMetrics
from gateway.prompts.engine_tokens import EngineTokens
from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.pool_prompts import KeyerSupply
from gateway.requests.access import OPEN, Access
from gateway.requests.app import App
from gateway.requests.head_check import HeadCheck
from gateway.requests.models import Pool
from gateway.requests.paths import ERROR_SHAPES
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import State, Worker
from gateway.routing.gauges import publish_gauges
from gateway.routing.router import PoolRouter
from gateway.tenants.limiter import Limiter
from gateway.tenants.salts import Salts
from gateway.tenants.tenants import Tenants
from indexer.layout import MAX_PARTS
from indexer.reader.pool_index import PoolIndex
from warmroute.config.gateway import GatewayConfig
from warmroute.config.grpc import GrpcConfig
from warmroute.config.pool import PoolConfig
from warmroute.config.redis import RedisConfig
from warmroute.config.tenants import TenantsConfig
from warmroute.process.addresses import address
from warmroute.process.admin import AdminServer
from warmroute.process.bearer_tokens import Tokens
from warmroute.process.descriptors import raise_limit
from warmroute.process.lifecycle import StartupError, cannot_listen, freeze_garbage, until_signal
from warmroute.redis.client import Client, connect
from warmroute.rpc.security import ClientSecurity

if TYPE_CHECKING:
    from gateway.discovery.kubernetes import KubernetesDiscovery

logger = logging.getLogger(__name__)


DEFAULT_OPEN_FILES: Final = 1024


def shared_out(open_files: int) -> int:
    """Most connections to clients, and as many to workers. A quarter as many are refused clients', which read their
    503; a quarter of the open files is for all else."""
    return max(1, (open_files - max(64, open_files // 4)) * 4 // 9)


class Gateway:
    """Owns everything of one gateway process."""

    def __init__(
        self,
        config: GatewayConfig,
        redis: Client,
        grpc_config: GrpcConfig | None = None,
        tenants_config: TenantsConfig | None = None,
        limits_redis: Client | None = None,
        peers_redis: Client | None = None,
        *,
        name: str = "",
        open_files: int = DEFAULT_OPEN_FILES,
    ) -> None:
        """Raises StartupError. `limits_redis`: a client of its own for limits and stored responses, `peers_redis`: one
        for what gateways tell each other, so that calls that hang take no connection from the index's reader; `redis`
        when left out. `name`: of this process among all gateways, the same after a restart; host and port when left
        out. `open_files`: how many the process may have, which bounds its connections."""
        self.config = config
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry)
        self.draining = False
        self._reports = LoadReports(
            config.indexers,
            [pool.name for pool in config.pools],
            self.metrics,
            ClientSecurity(grpc_config or GrpcConfig()),
        )
        self.name = name or f"{socket.gethostname()}:{config.port}"
        self._peers_redis = peers_redis or redis
        self._peer_channels: list[PeerChannel] = []
        self.pools: dict[str, Pool] = {}
        self.health: dict[str, HealthChecks] = {}
        """By pool."""
        self._indexes: dict[str, PoolIndex] = {}
        self._supplies: list[KeyerSupply] = []
        self._securities: list[UpstreamSecurity] = []
        connection_limit = min(CONNECTION_LIMIT, shared_out(open_files))
        self.metrics.client_connections_limit.set(connection_limit)
        self._budget = ConnectionBudget(shared_out(open_files))
        self.upstreams = UpstreamPool(config, budget=self._budget)
        for pool in config.pools:
            self.pools[pool.model] = self._pool(pool, redis)
        self.access = self._access(tenants_config or TenantsConfig(), limits_redis or redis)
        self._app = app = App(config, self.pools, self.upstreams, self.metrics, self.access, limits_redis or redis)
        self.server = Server(
            app,
            config,
            on_refusal=app.count,
            on_log_drop=self.metrics.access_log_dropped.inc,
            on_full=lambda outcome, count: self.metrics.full_connections.labels(outcome).inc(count),
            on_body_refusal=lambda reason: self.metrics.refused_bodies.labels(reason).inc(),
            check_head=HeadCheck(self.access),
            error_shapes=ERROR_SHAPES,
            connection_limit=connection_limit,
        )
        self.admin = AdminServer(
            self.registry,
            self.readiness,
            before_scrape=self._set_gauges,
            body_limit_bytes=config.body_limit_bytes,
            tokens=Tokens("gateway.admin_token", config.admin_token, config.admin_token_file),
        )
        add_routes(self.admin.app, Explainer(app), app.decisions)
        self._discoveries: list[KubernetesDiscovery] = []

    def _pool(self, config: PoolConfig, redis: Client) -> Pool:
        index = PoolIndex(redis, config.name, self.metrics)
        self._indexes[config.name] = index
        router = PoolRouter(config, index, self._reports, self.metrics, clock=time.monotonic)
        self._peer_channels.append(
            PeerChannel(self._peers_redis, config.name, router.state.peers, self.metrics, name=self.name)
        )
        supply = KeyerSupply(
            config,
            self.metrics,
            redis=redis,
            workers=lambda: router.census.current().worker_facts,
            use_tokenizer=router.census.use_tokenizer,
            make=partial(PromptKeyer.from_folder, budget_seconds=self.config.prompt_budget_seconds, media=config.media),
        )
        self._supplies.append(supply)
        security: UpstreamSecurity | None = None
        if config.upstream_tls is not None or config.upstream_key_file is not None:
            security = UpstreamSecurity(config)
            self._securities.append(security)
        upstreams = None if security is None else UpstreamPool(self.config, security, budget=self._budget)
        give_up = partial(self._give_up, router, upstreams or self.upstreams)
        self.health[config.name] = HealthChecks(lambda: router.census.workers.all, security, give_up)
        return Pool(router, supply.prompts, upstreams, EngineTokens(security))

    def _access(self, config: TenantsConfig, redis: Client) -> Access:
        if config.keys_file is None:
            return OPEN
        limiter = Limiter(redis, self.metrics, wait_seconds=config.limit_wait_seconds)
        allowed = frozenset(config.allowed_engine_fields) if config.engine_fields == "strip" else None
        tenants = Tenants(config.keys_file, self.metrics)
        return Access(Salts.load(config), tenants, limiter, config.allow_unsalted, allowed)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Everything that runs in the background; whoever runs them notices when one ends."""
        tasks: list[Coroutine[Any, Any, None]] = [
            self._reports.run(),
            *(checks.run() for checks in self.health.values()),
            *(supply.run() for supply in self._supplies),
            *(security.run() for security in self._securities),
            *self.access.tasks(),
            *self._app.tasks(),
            *(channel.run() for channel in self._peer_channels),
        ]
        for pool in self.pools.values():
            config = pool.router.config
            tasks.append(self._indexes[pool.name].run())
            take_targets = partial(self._take_targets, pool.router)
            take_targets(static_targets(config.workers))
            if config.kubernetes is not None:
                # Here, since the Kubernetes client costs a second and 80 MB that fixed addresses need not pay.
                from gateway.discovery.kubernetes import KubernetesDiscovery

                discovery = KubernetesDiscovery(config.kubernetes, take_targets)
                self._discoveries.append(discovery)
                tasks.append(discovery.run())
        return tasks

    def _take_targets(self, router: PoolRouter, targets: tuple[Target, ...]) -> None:
        static = static_targets(router.config.workers)
        names = {target.uid for target in targets}
        gone = router.census.set_targets([*targets, *(target for target in static if target.uid not in names)])
        for worker in gone:
            logger.info("worker %s of pool %s is gone", worker.name, router.config.name)
            self.health[router.config.name].left(worker)

    def _give_up(self, router: PoolRouter, upstreams: UpstreamPool, worker: Worker) -> None:
        """A worker does not answer its health checks: what waits for it goes to another one, if there is one."""
        if any(other.healthy for other in router.census.workers.all):
            target = worker.target
            if count := upstreams.give_up(target.host, target.port):
                logger.warning("worker %s: %d requests without a reply are sent elsewhere", worker.name, count)

    def _set_gauges(self) -> None:
        self.metrics.client_connections.set(self.server.connections)
        self.metrics.in_flight_requests.clear()
        self.metrics.pending_tokens.clear()
        self.metrics.body_bytes.set(self.server.body_bytes)
        for pool in self.pools.values():
            publish_gauges(pool.router)

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Ready while a worker can be asked, ejected ones included, since they are asked when there is no other; at the
        start once the tokenizers that workers offer are there, or something is wrong with them. A gateway that has
        lost its index still routes, and says so."""
        now = time.monotonic()
        serving = False
        pools = {}
        for pool in self.pools.values():
            router = pool.router
            census, peers = router.census.current(), router.state.peers
            states = Counter(worker.state(now) for worker in census.workers.all)
            serving = serving or states[State.READY] + states[State.EJECTED] > 0
            pools[pool.name] = {
                "ready_workers": states[State.READY],
                "workers": len(census.workers),
                "approximate_workers": census.approximate,
                "index": "connected" if self._indexes[pool.name].connected else "out of reach",
                "routing": pool.routing,
                "tokenizer": pool.prompts.describe(),
                "refused_files": pool.prompts.refused,
                "encoder": "none" if pool.keyer is None else pool.keyer.tokenizer.encoder,
                "bookings": "of all gateways" if peers.shared(now) else "own, and workers' reports",
                "other_gateways": peers.gateways,
            }
        synced = all(discovery.synced for discovery in self._discoveries)
        settled = not any(supply.settling for supply in self._supplies)
        return serving and synced and settled and not self.draining, {
            "draining": self.draining,
            "code": compiled.description(),
            "pools": pools,
        }

    async def stop(self) -> None:
        await self.server.drain(0)
        await self._app.decisions.stop()
        await self.upstreams.close()
        await self.admin.stop()
        for pool in self.pools.values():
            if pool.upstreams is not None:
                await pool.upstreams.close()
            await pool.engine_tokens.close()
        for supply in self._supplies:
            supply.close()


async def serve(
    config: GatewayConfig,
    redis_config: RedisConfig,
    grpc_config: GrpcConfig | None = None,
    tenants_config: TenantsConfig | None = None,
    *,
    admin_socket: Path | None = None,
) -> None:
    """Run until SIGINT or SIGTERM, then drain. Raises StartupError. `admin_socket`: this process is one of several that
    share the public port, and serves its admin paths there (`gateway.process.processes`)."""
    compiled.check()
    if not config.pools:
        raise StartupError("gateway.pools: at least one pool is needed, with its model and workers")
    # A follower keeps a connection while it waits for the log.
    redis = connect(redis_config, connections=16 + MAX_PARTS * len(config.pools))
    limits_redis = connect(redis_config)
    peers_redis = connect(redis_config.model_copy(update={"timeout_seconds": CALL_SECONDS}))
    name = f"{socket.gethostname()}:{config.port}" + ("" if admin_socket is None else f"/{admin_socket.stem}")
    try:
        open_files = raise_limit()
        gateway = Gateway(
            config, redis, grpc_config, tenants_config, limits_redis, peers_redis, name=name, open_files=open_files
        )
        try:
            try:
                if admin_socket is None:
                    await gateway.admin.start(config.admin_host, config.admin_port)
                else:
                    await gateway.admin.start_unix(admin_socket)
            except OSError as error:
                raise cannot_listen("gateway.admin_port", config.admin_host, config.admin_port, error) from error
            try:
                await gateway.server.start(reuse_port=admin_socket is not None)
            except OSError as error:
                raise cannot_listen("gateway.port", config.host, config.port, error) from error
            where = address(config.host, gateway.server.port)
            logger.info("listening on %s; %s; %d open files", where, compiled.description(), open_files)
            freeze_garbage()
            await until_signal(*gateway.tasks(), before_end=partial(_drain, gateway))
        finally:
            await gateway.stop()
    finally:
        await peers_redis.aclose()
        await limits_redis.aclose()
        await redis.aclose()


async def _drain(gateway: Gateway) -> None:
    """Fail readiness, give load balancers time to see it, stop listening, let streams finish within the grace."""
    gateway.draining = True
    await asyncio.sleep(gateway.config.unready_seconds)
    await gateway.server.drain()
