"""The indexer as a process: gRPC service, admin server, heartbeats."""

from __future__ import annotations

import logging

import grpc
from prometheus_client import CollectorRegistry

from indexer.server.ledger import UnsuitableRedisError
from indexer.server.message_parser import MessageParser
from indexer.server.metrics import IndexerMetrics
from indexer.server.service import IndexService
from warmroute.config.grpc import GrpcConfig
from warmroute.config.indexer import IndexerConfig
from warmroute.config.redis import RedisConfig
from warmroute.process.addresses import address
from warmroute.process.admin import AdminServer
from warmroute.process.lifecycle import StartupError, cannot_listen, freeze_garbage, until_signal
from warmroute.redis.client import connect
from warmroute.rpc.security import ServerSecurity
from warmroute.v1 import index_pb2_grpc

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
HEARTBEAT_CONNECTIONS = 2
STREAMS_A_CONNECTION = 128
METADATA_BYTES = 16_384
CONNECTION_AGE_MS = 45 * 60_000
WINDOW_BYTES = 65_535


def server_options(config: IndexerConfig) -> list[tuple[str, int]]:
    """Bounds and liveness of connections; workers and gateways ping every 10 s."""
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Every worker and gateway has a connection of its own; a mesh that shares connections opens more of them.
        ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION),
        ("grpc.max_metadata_size", METADATA_BYTES),
        # Workers come anew at an age of 36 minutes at most; this ends what never reads and never leaves.
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", 60_000),
        # Without probing, the window that a flooding peer may fill ahead of the reader stays at this size.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ]


async def serve(config: IndexerConfig, redis_config: RedisConfig, grpc_config: GrpcConfig | None = None) -> None:
    """Run until SIGINT or SIGTERM, then send the workers elsewhere. Raises StartupError."""
    registry = CollectorRegistry()
    metrics = IndexerMetrics(registry)
    security = ServerSecurity(grpc_config or GrpcConfig())
    _check_open(config, security)
    redis, heartbeats = connect(redis_config), connect(redis_config, connections=HEARTBEAT_CONNECTIONS)
    service = IndexService(redis, config, metrics, heartbeats=heartbeats)
    admin = AdminServer(registry, lambda: _readiness(service))
    server = grpc.aio.server(options=server_options(config), interceptors=(*security.interceptors, MessageParser()))
    index_pb2_grpc.add_IndexServiceServicer_to_server(service, server)
    try:
        try:
            security.add_port(server, config.host, config.port)
        except RuntimeError as error:
            raise cannot_listen("indexer.port", config.host, config.port, OSError(str(error))) from error
        try:
            await admin.start(config.admin_host, config.admin_port)
        except OSError as error:
            raise cannot_listen("indexer.admin_port", config.admin_host, config.admin_port, error) from error
        await server.start()
        logger.info("listening on %s", address(config.host, config.port))
        freeze_garbage()
        try:
            # Redis may come later: /readyz says so until then, and workers are told to come again.
            await until_signal(service.run(), service.files.run(), service.leases.run(), before_end=service.drain)
        except UnsuitableRedisError as error:
            raise StartupError(f"redis.url: {error}") from error
    finally:
        await server.stop(GRACE_SECONDS)
        await service.ended(GRACE_SECONDS)
        await admin.stop()
        await redis.aclose()
        await heartbeats.aclose()


def _check_open(config: IndexerConfig, security: ServerSecurity) -> None:
    """Raises StartupError: what workers say decides where prompts go, so nobody serves it to all by oversight."""
    if security.asks_clients:
        return
    if not config.open:
        raise StartupError(
            "indexer.open: false is refused without grpc.token_file and grpc.tls_ca_file: whoever reaches the port "
            "could publish as any worker. Give all parts the same grpc.token_file (openssl rand -hex 32 > token), or "
            "mutual TLS (grpc.tls_ca_file, grpc.tls_cert_file, grpc.tls_key_file); or set indexer.open: true"
        )
    logger.warning(
        "indexer.open is true, and clients show neither token nor certificate: whoever reaches %s can publish as any "
        "worker; set grpc.token_file on all parts to close it",
        address(config.host, config.port),
    )


def _readiness(service: IndexService) -> tuple[bool, dict[str, object]]:
    ledger = "up" if service.ledger_up else f"out of reach: {service.trouble}" if service.trouble else "out of reach"
    ready = service.ledger_up and not service.draining
    return ready, {"draining": service.draining, "streams": service.streams, "ledger": ledger}
