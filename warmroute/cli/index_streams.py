"""What only the indexers' open streams know of workers: load, publication lag, orphaned blocks. Asked with Describe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from warmroute.process.addresses import resolve
from warmroute.rpc.security import ClientSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

FORMAT_VERSION: Final = 1
ANSWER_SECONDS: Final = 3.0
# Replicas asked at once, however many addresses a name has.
REPLICA_LIMIT: Final = 64
# Names that a request may carry.
POOL_LIMIT: Final = 1024

WorkerKey = tuple[str, str]
"""(pool, worker_id)"""


@dataclass(frozen=True, slots=True)
class StreamView:
    """One worker's stream. What its load says is None before the first one. Ages in seconds."""

    indexer: str
    stream_seconds: float
    load_age_seconds: float | None
    running_requests: int | None
    waiting_requests: int | None
    waiting_tokens: int | None
    kv_cache_usage: float | None
    unpublished_keys: int | None
    publication_lag_seconds: float | None
    orphaned_blocks: int | None


@dataclass(frozen=True, slots=True)
class IndexerView:
    """One replica; `error` says why it did not answer."""

    address: str
    version: str | None
    ledger_up: bool | None
    streams: int | None
    error: str | None


async def describe(
    indexers: Iterable[str], pools: Iterable[str], security: ClientSecurity
) -> tuple[list[IndexerView], dict[WorkerKey, StreamView]]:
    """Ask every replica behind the names at once, within ANSWER_SECONDS each.

    One that does not answer is listed with its error. Raises SecurityError where files cannot be read any more.
    """
    names = list(dict.fromkeys(indexers))
    replicas: list[IndexerView] = []
    streams: dict[WorkerKey, StreamView] = {}
    addresses: dict[str, str] = {}
    for name, found in zip(names, await asyncio.gather(*map(_resolve, names)), strict=True):
        if isinstance(found, str):
            replicas.append(IndexerView(name, None, None, None, found))
        else:
            addresses |= dict.fromkeys(found, name)
    wanted = list(pools)
    if len(wanted) > POOL_LIMIT:
        wanted = []  # all of them
    asked = list(addresses.items())[:REPLICA_LIMIT]
    for replica, workers in await asyncio.gather(*(_ask(*each, wanted, security) for each in asked)):
        replicas.append(replica)
        for worker, view in workers.items():
            known = streams.get(worker)
            # A worker that has just moved is listed twice for a moment: its younger stream counts.
            if known is None or view.stream_seconds < known.stream_seconds:
                streams[worker] = view
    return replicas, streams


async def _resolve(name: str) -> list[str] | str:
    """All addresses behind host:port, or why there are none."""
    try:
        return await resolve(name, ANSWER_SECONDS)
    except (OSError, TimeoutError) as error:
        return f"does not resolve: {getattr(error, 'strerror', None) or 'timeout'}"


async def _ask(
    address: str, name: str, pools: list[str], security: ClientSecurity
) -> tuple[IndexerView, Mapping[WorkerKey, StreamView]]:
    """`name`: the host:port that the address was resolved from, which a certificate may name."""
    request = pb.DescribeRequest(format_version=FORMAT_VERSION, pools=pools)
    try:
        async with security.channel(address, name=name) as channel:
            stub = index_pb2_grpc.IndexServiceStub(channel)
            metadata = grpc.aio.Metadata(*security.metadata(address))
            response = await stub.Describe(request, timeout=ANSWER_SECONDS, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        reason = f"{error.code().name.lower()}: {security.explained(error.details() or '')}"
        return IndexerView(address, None, None, None, reason), {}
    workers = {(worker.pool, worker.worker_id): _stream(address, worker) for worker in response.workers}
    return IndexerView(address, response.version, response.ledger_up, len(workers), None), workers


def _stream(address: str, worker: pb.WorkerDescription) -> StreamView:
    if not worker.HasField("load"):
        return StreamView(address, worker.stream_seconds, None, None, None, None, None, None, None, None)
    load = worker.load
    return StreamView(
        indexer=address,
        stream_seconds=worker.stream_seconds,
        load_age_seconds=worker.load_age_ms / 1000,
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        waiting_tokens=load.waiting_tokens,
        kv_cache_usage=load.kv_cache_usage,
        unpublished_keys=load.unpublished_keys,
        publication_lag_seconds=load.unpublished_ms / 1000,
        orphaned_blocks=load.orphaned_blocks,
    )
