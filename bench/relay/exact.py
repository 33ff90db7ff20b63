"""What the gateway that routes by cache and load has to know: an index, in which the upstream has seen the prompts."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from bench.relay.load import API_KEY, MODEL, told
from bench.relay.servers import SALT_SECRET, TENANT, Gateway
from gateway.prompts.body import BodyKind, Unkeyed, parse_body
from gateway.prompts.keyer import KeySpace, PromptKeyer
from gateway.tenants.salts import Salts
from gateway.tenants.tenant import Tenant
from indexer.keys import pool_fingerprint
from indexer.layout import Part, WorkerFacts
from indexer.server.ledger import Ledger
from indexer.server.metrics import IndexerMetrics
from warmroute.config.redis import RedisConfig
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS
from warmroute.redis.client import connect
from worker.model_cache import ModelCacheError, ensure_model

ROUTING: Final = "by cache and load"
ENGINE_BLOCK_TOKENS: Final = 16
KEY_SECONDS: Final = 60.0
READY_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05


class NotExactError(RuntimeError):
    """The gateway does not route by what the index has; the figure would be another's."""


def model_folder() -> Path | None:
    """The built-in model's, for its tokenizer and chat template; None where its package is not installed."""
    try:
        return ensure_model()
    except ModelCacheError as error:
        print(f"no figure of exact routing: {error}")
        return None


def publish(redis_port: int, pool: str, upstream_port: int, model: Path, payloads: Sequence[bytes]) -> list[bytes]:
    """Write the upstream into the pool's index, with the keys of the payloads, as an indexer does for a worker. Returns
    the payloads, of which the upstream tells as many tokens as they have."""
    return asyncio.run(_publish(redis_port, pool, upstream_port, model, payloads))


async def _publish(
    redis_port: int, pool: str, upstream_port: int, model: Path, payloads: Sequence[bytes]
) -> list[bytes]:
    keyer = PromptKeyer.from_folder(model, budget_seconds=KEY_SECONDS)
    space = KeySpace(
        pool_fingerprint(
            index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS, base_model=MODEL, tokenizer=keyer.tokenizer.digest
        ),
        DEFAULT_INDEX_BLOCK_TOKENS,
    )
    salt = Salts(SALT_SECRET.encode()).salt(Tenant(TENANT, TENANT), None) or ""
    keys: list[int] = []
    counted: list[bytes] = []
    try:
        for payload in payloads:
            prompt = await keyer.key(replace(parse_body(payload, BodyKind.CHAT), salt=salt), space)
            if isinstance(prompt, Unkeyed):
                raise NotExactError(f"a prompt has no keys: {prompt.reason}")
            keys += prompt.keys
            counted.append(told(payload, prompt.tokens))
    finally:
        keyer.close()
    facts = WorkerFacts(
        address=f"127.0.0.1:{upstream_port}",
        model=MODEL,
        engine="builtin",
        engine_version="0",
        engine_block_tokens=ENGINE_BLOCK_TOKENS,
        index_block_tokens=space.index_block_tokens,
        fingerprint=space.fingerprint,
        publishes_events=True,
        capacity={"device": len(keys)},
    )
    redis = connect(RedisConfig(url=f"redis://127.0.0.1:{redis_port}/0"))
    try:
        ledger = Ledger(redis, Part(pool), IndexerMetrics(CollectorRegistry()))
        owner, _ = await ledger.hello("upstream", 1, facts)
        await ledger.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": sorted(set(keys))})
    finally:
        await redis.aclose()
    return counted


def wait_exact(proxy: Gateway) -> None:
    """Wait until /readyz says that requests go by cache and load. Raises NotExactError."""
    until = time.monotonic() + READY_SECONDS
    while (routing := _routing(proxy)) != ROUTING:
        if time.monotonic() > until:
            raise NotExactError(f"/readyz of {proxy.name} says that requests go {routing}")
        time.sleep(POLL_SECONDS)


def _routing(proxy: Gateway) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.admin_port, timeout=READY_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return str(json.loads(connection.getresponse().read())["pools"][proxy.name]["routing"])
    finally:
        connection.close()


def matched_tokens(proxy: Gateway, payloads: Sequence[bytes]) -> float:
    """The mean of what the replies' headers say to have matched. Raises NotExactError for one without a match.

    The first request of a prompt can match by the index alone, later ones also by what the gateway itself predicts.
    """
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=READY_SECONDS)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY.decode()}"}
    matched: list[int] = []
    try:
        for payload in payloads:
            connection.request("POST", "/v1/chat/completions", payload, headers)
            reply = connection.getresponse()
            reply.read()
            matched.append(int(reply.headers.get("x-warmroute-matched-tokens", "0")))
    finally:
        connection.close()
    if min(matched) <= 0:
        raise NotExactError(f"{proxy.name} matched {min(matched)} tokens of a prompt that the index has")
    return sum(matched) / len(matched)
