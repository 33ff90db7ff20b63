"""What the service accepts from workers. Every refusal names the field, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import grpc

from indexer.keys import pool_fingerprint
from indexer.layout import Tier, WorkerFacts
from warmroute.v1 import index_pb2 as pb

FORMAT_VERSION: Final = 1
NAME_LIMIT: Final = 256
INSTANCE_BYTES: Final = (16, 64)
LIST_LIMIT: Final = 1024
# 25 ms of the event loop; workers of this release send a quarter of it.
KEYS_LIMIT: Final = 16_384
COUNT_LIMIT: Final = 1 << 53
# 640 million tokens at 64 a block. Every gateway walks a worker's buckets when its keys are read.
CAPACITY_LIMIT: Final = 10_000_000
_DIGEST: Final = re.compile("([0-9a-f]{64})?")
# The script does arithmetic on sequence numbers, and Lua's numbers are doubles.
SEQ_LIMIT: Final = 1 << 53

TIER_NUMBERS: Final[dict[Tier, pb.Tier.ValueType]] = {"device": pb.TIER_DEVICE, "host": pb.TIER_HOST}
_TIERS: Final[dict[int, Tier]] = {number: tier for tier, number in TIER_NUMBERS.items()}


class RefusedError(Exception):
    """A message that ends its stream with this status."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


def invalid(field: str, value: object, remedy: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {str(value)[:200]!r} is refused: {remedy}")


def check_hello(hello: pb.Hello) -> WorkerFacts:
    """The worker's facts. Raises RefusedError."""
    if hello.format_version != FORMAT_VERSION:
        raise invalid("hello.format_version", hello.format_version, f"this indexer speaks version {FORMAT_VERSION}")
    for field in ("pool", "worker_id", "model"):
        _check_name(f"hello.{field}", getattr(hello, field))
    for field in ("address", "engine", "engine_version", "pool_fingerprint"):
        _check_length(f"hello.{field}", getattr(hello, field))
    if hello.epoch == 0:
        raise invalid("hello.epoch", 0, "draw a random id that is not 0")
    if not 16 <= hello.index_block_tokens <= 1024:
        raise invalid("hello.index_block_tokens", hello.index_block_tokens, "use 16 to 1024, the pool's value")
    if not 1 <= hello.engine_block_tokens <= 4096:
        raise invalid("hello.engine_block_tokens", hello.engine_block_tokens, "use 1 to 4096, the engine's page size")
    for field in ("files", "adapters", "capacity"):
        if len(getattr(hello, field)) > LIST_LIMIT:
            raise invalid(f"hello.{field}", f"{len(getattr(hello, field))} items", f"send at most {LIST_LIMIT}")
    for adapter in hello.adapters:
        _check_length("hello.adapters", adapter)
    for file in hello.files:
        _check_name("hello.files.name", file.name)
        if not _DIGEST.fullmatch(file.digest):
            raise invalid("hello.files.digest", file.digest, "use the SHA-256 as 64 lower-case hexadecimal digits")
    _check_instance(hello.instance)
    capacity = _capacity(hello)
    _check_fingerprint(hello)
    return WorkerFacts(
        address=hello.address,
        model=hello.model,
        engine=hello.engine,
        engine_version=hello.engine_version,
        engine_block_tokens=hello.engine_block_tokens,
        index_block_tokens=hello.index_block_tokens,
        fingerprint=hello.pool_fingerprint,
        publishes_events=hello.publishes_events,
        capacity=capacity,
        adapters=tuple(hello.adapters),
        files=tuple({"name": file.name, "digest": file.digest, "size": file.size} for file in hello.files),
    )


def check_keys(field: str, tiers: Iterable[pb.TierKeys], facts: WorkerFacts) -> dict[Tier, list[int]]:
    """Keys by tier. Raises RefusedError for too many, for a key or tier named twice, or a tier not in Hello."""
    keys: dict[Tier, list[int]] = {}
    room = KEYS_LIMIT
    for tier_keys in tiers:
        tier = _tier(f"{field}.tier", tier_keys.tier)
        if tier not in facts.capacity:
            raise invalid(f"{field}.tier", tier, "give this tier a capacity in Hello first")
        if tier in keys:
            raise invalid(f"{field}.tier", tier, "name each tier once")
        room -= len(tier_keys.keys)
        if room < 0:
            raise invalid(f"{field}.keys", f"{KEYS_LIMIT - room} keys", f"send at most {KEYS_LIMIT} in one message")
        keys[tier] = list(tier_keys.keys)
        if len(set(keys[tier])) != len(keys[tier]):
            raise invalid(f"{field}.keys", f"{_twice(keys[tier]):#x} twice in {tier}", "send each key once")
    return keys


def check_disjoint(added: Mapping[Tier, list[int]], removed: Mapping[Tier, list[int]]) -> None:
    """Raises RefusedError for a key that a delta both adds and removes."""
    for tier, keys in added.items():
        if both := set(keys).intersection(removed.get(tier, ())):
            value = f"{min(both):#x} of {tier}, which delta.removed has too"
            raise invalid("delta.added.keys", value, "send the net change")


def check_seq(field: str, seq: int) -> int:
    if not 1 <= seq < SEQ_LIMIT:
        raise invalid(field, seq, "use 1 to 2**53 - 1")
    return seq


def check_load(load: pb.Load) -> None:
    if not 0.0 <= load.kv_cache_usage <= 1.0:
        raise invalid("load.kv_cache_usage", load.kv_cache_usage, "use a share from 0 to 1")
    for field in ("waiting_tokens", "unpublished_keys", "orphaned_blocks"):
        if getattr(load, field) > COUNT_LIMIT:
            raise invalid(f"load.{field}", getattr(load, field), "use at most 2**53, beyond which JSON is not exact")


def check_request(request: pb.LoadsRequest | pb.DescribeRequest) -> None:
    """Raises RefusedError."""
    if request.format_version != FORMAT_VERSION:
        raise invalid("format_version", request.format_version, f"this indexer speaks version {FORMAT_VERSION}")
    if len(request.pools) > LIST_LIMIT:
        raise invalid("pools", f"{len(request.pools)} items", f"name at most {LIST_LIMIT}; none for all")


def _capacity(hello: pb.Hello) -> dict[str, int]:
    capacity: dict[str, int] = {}
    for tier_capacity in hello.capacity:
        tier = _tier("hello.capacity.tier", tier_capacity.tier)
        if not 1 <= tier_capacity.keys <= CAPACITY_LIMIT:
            raise invalid("hello.capacity.keys", tier_capacity.keys, f"use 1 to {CAPACITY_LIMIT} index blocks")
        capacity[tier] = tier_capacity.keys
    if hello.publishes_events and not capacity:
        raise invalid("hello.capacity", "nothing", "say how many index blocks each tier can hold")
    return capacity


def _check_fingerprint(hello: pb.Hello) -> None:
    """Both sides compute the fingerprint with one function; a difference means another release or other files."""
    tokenizer = next((file.digest for file in hello.files if file.name == "tokenizer.json"), "")
    expected = pool_fingerprint(
        index_block_tokens=hello.index_block_tokens, base_model=hello.model, tokenizer=tokenizer
    )
    if hello.pool_fingerprint != expected:
        raise RefusedError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"hello.pool_fingerprint: the worker says {hello.pool_fingerprint!r}, this indexer computes {expected!r} "
            f"from index_block_tokens={hello.index_block_tokens}, model={hello.model!r}, tokenizer={tokenizer!r}. "
            "Run the same Warmroute release on workers, indexer and gateways",
        )


def _check_instance(instance: bytes) -> None:
    """The value is not shown: it is a secret."""
    least, most = INSTANCE_BYTES
    if instance and not least <= len(instance) <= most:
        raise invalid("hello.instance", f"{len(instance)} bytes", f"draw {least} to {most} random bytes")


def _check_name(field: str, value: str) -> None:
    if not value:
        raise invalid(field, value, "it must not be empty")
    _check_length(field, value)


def _check_length(field: str, value: str) -> None:
    if len(value.encode()) > NAME_LIMIT:
        raise invalid(field, value, f"use at most {NAME_LIMIT} bytes")


def _twice(keys: Iterable[int]) -> int:
    seen: set[int] = set()
    return next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _tier(field: str, value: int) -> Tier:
    try:
        return _TIERS[value]
    except KeyError:
        raise invalid(field, value, "use TIER_DEVICE or TIER_HOST") from None
