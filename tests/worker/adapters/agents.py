"""An agent between an engine's outside and a gateway's mirror, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from indexer.keys import pool_fingerprint, prompt_keys
from indexer.reader.pool_index import PoolIndex
from tests.indexer.support import POOL, Indexer, follower, indexer, running
from tests.support import eventually
from tests.worker.adapters.stand_in import EngineHttp, RankSockets, engine_http, kv_event_source, rank_sockets
from warmroute.config.agent import AgentConfig
from warmroute.config.grpc import GrpcConfig
from warmroute.rpc.security import ClientSecurity
from worker.adapters.agent import Agent

INDEX_TOKENS = 16


def fingerprint(model: str = "tiny") -> str:
    return pool_fingerprint(index_block_tokens=INDEX_TOKENS, base_model=model, tokenizer="")


def keys(tokens: list[int], **root: str) -> set[int]:
    return set(prompt_keys(tokens, fingerprint(), block_tokens=INDEX_TOKENS, **root))


def stored(number: int, **fields: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": [number * 10, number * 10 + 1], "parent_block_hash": None}
    return {**event, "token_ids": [number] * 32, "block_size": 16, "medium": "GPU", **fields}


def settings(index: Indexer, http: EngineHttp, **changes: Any) -> AgentConfig:
    facts = {"engine_url": http.url, "indexer": index.address, "pool": POOL, "worker_id": "pod"}
    return AgentConfig(**{**facts, "index_block_tokens": INDEX_TOKENS, "load_interval_seconds": 0.1, **changes})


@asynccontextmanager
async def agent(index: Indexer, http: EngineHttp, **changes: Any) -> AsyncIterator[Agent]:
    subject = Agent(settings(index, http, **changes), ClientSecurity(GrpcConfig()))
    async with running(subject.run()):
        yield subject


class Line:
    """Everything between an engine's sockets and a gateway's mirror."""

    def __init__(self, index: Indexer, http: EngineHttp, ranks: list[RankSockets], mirror: PoolIndex) -> None:
        self.index, self.http, self.ranks, self.mirror = index, http, ranks, mirror

    async def holds(self, worker: str, expected: set[int], *, tier: str = "device") -> None:
        """Wait until the mirror has exactly these keys of the worker."""

        def same() -> bool:
            found = self.mirror.mirror
            return worker in found.workers and set(found.held(worker, tier)) == expected

        await eventually(same, within=20)


@asynccontextmanager
async def line(redis_url: str, *, ranks: int = 1, **facts: Any) -> AsyncIterator[Line]:
    async with AsyncExitStack() as stack:
        index = await stack.enter_async_context(indexer(redis_url))
        http = await stack.enter_async_context(engine_http(ranks=ranks, **facts))
        sockets = [await stack.enter_async_context(rank_sockets()) for _ in range(ranks)]
        http.sources = {str(rank): kv_event_source(*engine.bind()) for rank, engine in enumerate(sockets)}
        mirror = await stack.enter_async_context(follower(redis_url))
        yield Line(index, http, sockets, mirror)
