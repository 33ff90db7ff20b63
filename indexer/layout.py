"""How the index lies in Redis: key names, buckets, number formats, the facts of a worker, log entries.

The ledger writes this layout and the mirror's follower reads it. Version 1:

    wr:{pool/part}:workers                      hash    worker_id -> msgpack record
    wr:{pool/part}:keys:<slot>:<tier>:<bucket>  set     signed 64-bit integers
    wr:{pool/part}:log                          stream  one entry a change, trimmed
    wr:{pool/part}:beats                        zset    worker_id -> last heartbeat, ms of Redis TIME
    wr:{pool/part}:slots                        string  the last slot number given out: at least TIME in us
    wr:{pool/part}:snapshots                    zset    worker_id -> deadline of its running snapshot, ms
    wr:{pool/0}:parts                           string  how many parts the pool has
    wr:{pool}:files                             zset    digest of a model file -> when it was last in use, ms
    wr:{pool}:files:<digest>                    string  that file, compressed with zlib
    wr:{pool}:lease:<field>:<name>              string  who holds a worker_id or an address, packed; it expires
    wr:pools                                    set     the pools that have workers, or had some

All keys of a part share one hash tag, so that a script touches one node of a cluster. A worker belongs to one part, by
the hash of its id.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

import msgpack
import orjson
import xxhash

LAYOUT_VERSION: Final = 1
POOLS_KEY: Final = "wr:pools"
MAX_PARTS: Final = 64
Tier = Literal["device", "host"]
TIERS: Final[tuple[Tier, ...]] = ("device", "host")

# A set of integers stays in intset encoding up to 512 members; hashed keys fill buckets unevenly (standard deviation
# 20 at this mean), so the mean stays six of those below the limit.
MEAN_BUCKET_KEYS: Final = 384

SIGN: Final = 1 << 63
WRAP: Final = 1 << 64


class MalformedError(ValueError):
    """What lies in Redis is not this layout: another program wrote it, a newer release, or a bug."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a pool's index. `pool` may hold any characters; they are percent-encoded in key names."""

    pool: str
    number: int = 0

    @property
    def prefix(self) -> str:
        return f"wr:{{{quote(self.pool, safe='')}/{self.number}}}"

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def bucket_key(self, slot: int, tier: Tier, bucket: int) -> str:
        return f"{self.prefix}:keys:{slot}:{tier}:{bucket}"


def parts_key(pool: str) -> str:
    """The key that says how many parts the pool has."""
    return Part(pool, 0).key("parts")


def files_key(pool: str) -> str:
    """The key that lists the pool's model files; all keys of theirs share its hash tag."""
    return f"wr:{{{quote(pool, safe='')}}}:files"


def file_key(pool: str, digest: str) -> str:
    """The key of one model file."""
    return f"{files_key(pool)}:{digest}"


def lease_key(pool: str, field: str, name: str) -> str:
    """The key that says who holds a worker id or an address; a pool's share a hash tag."""
    return f"wr:{{{quote(pool, safe='')}}}:lease:{field}:{name}"


def part_of(pool: str, worker_id: str, parts: int) -> Part:
    """The part that a worker belongs to; the same for every indexer with as many parts."""
    return Part(pool, xxhash.xxh3_64_intdigest(worker_id.encode()) % parts)


def bucket_count(capacity_keys: int) -> int:
    """Buckets for a tier that can hold `capacity_keys` index blocks."""
    return max(1, -(-capacity_keys // MEAN_BUCKET_KEYS))


def to_signed(key: int) -> int:
    """Redis intsets hold signed integers."""
    return key - WRAP if key >= SIGN else key


def to_unsigned(member: int) -> int:
    return member + WRAP if member < 0 else member


def pack_keys(keys: Iterable[int]) -> bytes:
    """Keys as unsigned 64-bit little-endian integers."""
    packed = array("Q", keys)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_keys(packed: bytes) -> array[int]:
    """The inverse of `pack_keys`. Raises ValueError for a length that is no multiple of 8."""
    keys = array("Q")
    keys.frombytes(packed)
    if sys.byteorder == "big":
        keys.byteswap()
    return keys


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself in Hello, as the ledger keeps it for gateways."""

    address: str
    model: str
    engine: str
    engine_version: str
    engine_block_tokens: int
    index_block_tokens: int
    fingerprint: str
    publishes_events: bool
    capacity: Mapping[str, int] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    files: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes | str) -> WorkerFacts:
        """Fields that a newer release added are left out. Raises ValueError or TypeError for anything else amiss."""
        fields = orjson.loads(data)
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's entry in `workers`. `slot` 0: nothing is held. `epoch` is 16 hexadecimal digits."""

    worker_id: str
    slot: int
    epoch: str
    seq: int
    buckets: Mapping[str, int]
    facts: WorkerFacts

    @classmethod
    def decode(cls, worker_id: str, packed: bytes) -> WorkerRecord:
        """Raises MalformedError."""
        with _malformed(f"the record of worker {worker_id}"):
            record = msgpack.unpackb(packed)
            _check_version(record["v"])
            return cls(
                worker_id=worker_id,
                slot=int(record["slot"]),
                epoch=record["epoch"],
                seq=int(record["seq"]),
                buckets=_buckets(record["buckets"]),
                facts=WorkerFacts.from_json(record["facts"]),
            )


@dataclass(frozen=True, slots=True)
class LogDelta:
    """Keys entered and left a slot."""

    worker_id: str
    slot: int
    added: Mapping[Tier, Sequence[int]]
    removed: Mapping[Tier, Sequence[int]]

    @property
    def size(self) -> int:
        """Keys in all, and one for the entry itself."""
        return 1 + sum(map(len, self.added.values())) + sum(map(len, self.removed.values()))


@dataclass(frozen=True, slots=True)
class LogWorker:
    """A worker said Hello or finished a snapshot: `slot` holds its keys (0: none), `replaced` holds nothing more."""

    worker_id: str
    epoch: str
    slot: int
    replaced: int
    buckets: Mapping[str, int]
    facts: WorkerFacts


@dataclass(frozen=True, slots=True)
class LogDrop:
    """A worker left the ledger."""

    worker_id: str


LogEntry = LogDelta | LogWorker | LogDrop


def encode_delta(added: Mapping[Tier, Sequence[int]], removed: Mapping[Tier, Sequence[int]]) -> bytes:
    """The `keys` field of a delta's log entry: {tier: [added, removed]}, packed."""
    tiers = [tier for tier in TIERS if added.get(tier) or removed.get(tier)]
    blob: bytes = msgpack.packb(
        {tier: [pack_keys(added.get(tier, ())), pack_keys(removed.get(tier, ()))] for tier in tiers}
    )
    return blob


def decode_entry(fields: Mapping[bytes, bytes]) -> tuple[str, LogEntry | None]:
    """One log entry: the id of the entry before it, and what it says.

    None stands for a kind that this release does not know: a newer one wrote it, and following goes on. Raises
    MalformedError.
    """
    with _malformed("a log entry"):
        _check_version(int(fields[b"v"]))
        previous = fields[b"p"].decode()
        match fields[b"k"]:
            case b"delta":
                tiers = msgpack.unpackb(fields[b"keys"])
                return previous, LogDelta(
                    fields[b"w"].decode(),
                    int(fields[b"s"]),
                    {tier: unpack_keys(packed[0]) for tier, packed in tiers.items() if tier in TIERS},
                    {tier: unpack_keys(packed[1]) for tier, packed in tiers.items() if tier in TIERS},
                )
            case b"worker":
                return previous, LogWorker(
                    fields[b"w"].decode(),
                    fields[b"e"].decode(),
                    int(fields[b"s"]),
                    int(fields[b"r"]),
                    _buckets(msgpack.unpackb(fields[b"b"])),
                    WorkerFacts.from_json(fields[b"f"]),
                )
            case b"drop":
                return previous, LogDrop(fields[b"w"].decode())
            case _:
                return previous, None


def _buckets(value: Any) -> dict[str, int]:
    """Buckets by tier; Lua cannot tell an empty map from an empty list."""
    return {str(tier): int(count) for tier, count in (value or {}).items()}


def _check_version(version: int) -> None:
    """A writer names the oldest release that can read it."""
    if version > LAYOUT_VERSION:
        raise MalformedError(f"version {version}, and this release reads up to {LAYOUT_VERSION}: upgrade it")


@contextmanager
def _malformed(what: str) -> Iterator[None]:
    """Every fault of shape as one error."""
    try:
        yield
    except MalformedError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise MalformedError(f"{what} is malformed: {error!r}") from error
