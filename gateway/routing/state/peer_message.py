"""The messages by which gateways know each other's requests in flight, as bytes.

msgpack of [version, sender, incarnation, number, kind, totals, predicted, withdrawn, live]; lists are flat:

| field | |
|---|---|
| sender, incarnation | which gateway, and which life of it: a larger number is a later life |
| number | counts the sender's messages; one that is not larger than the last is dropped |
| kind | 0 changes, 1 totals of all workers, 2 the same, and all others are to send theirs, 3 the sender stops |
| totals | worker, requests in flight, pending prefill tokens, worker, ...: sums, which replace earlier ones |
| predicted | number, worker, packed keys, ...: blocks that a routed prompt will leave there (`state.sparse`) |
| withdrawn | numbers of predictions that are no longer live |
| live | kinds 1 and 2: numbers of all live predictions, so that a lost message leaves none behind |

A version says what is needed to read it: later releases may append fields to version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgpack

from indexer.layout import pack_keys, unpack_keys

VERSION: Final = 1
MAX_BYTES: Final = 1_048_576
"""Longer messages are not read."""
MAX_WORKERS: Final = 4096
"""In one message, and of one sender."""
MAX_NAME_CHARACTERS: Final = 256
MAX_COUNT: Final = 1 << 48
"""Larger sums are no sums of requests or tokens."""
MAX_KEYS: Final = 256
"""Of one prediction."""
MAX_KEYS_A_MESSAGE: Final = 8192
MAX_PREDICTIONS: Final = 2048
"""Live at once, of one sender."""
_LISTED: Final = 32_768
"""Items of any list in a message that is read."""


class Kind(IntEnum):
    """What a message is."""

    CHANGES = 0
    TOTALS = 1
    HELLO = 2
    LEAVE = 3


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction as it is reported: `number` is the sender's."""

    number: int
    worker: str
    keys: Sequence[int]


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """See the module. `totals`: rows of worker, requests, pending tokens."""

    sender: str
    incarnation: int
    number: int
    kind: Kind
    totals: Sequence[tuple[str, int, int]] = ()
    predicted: Sequence[Predicted] = ()
    withdrawn: Sequence[int] = ()
    live: Sequence[int] = ()

    @property
    def complete(self) -> bool:
        """Whether it names all that the sender has: workers with sums, and live predictions."""
        return self.kind in {Kind.TOTALS, Kind.HELLO}

    def encode(self) -> bytes:
        totals: list[Any] = []
        for row in self.totals:
            totals += row
        predicted: list[Any] = []
        for each in self.predicted:
            predicted += (each.number, each.worker, pack_keys(each.keys))
        fields = [VERSION, self.sender, self.incarnation, self.number, int(self.kind)]
        packed: bytes = msgpack.packb([*fields, totals, predicted, list(self.withdrawn), list(self.live)])
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> PeerMessage:
        """Raises ValueError for what is no such message, or one of a later version."""
        if len(packed) > MAX_BYTES:
            raise ValueError(f"{len(packed)} bytes; at most {MAX_BYTES} are read")
        fields = msgpack.unpackb(packed, max_array_len=_LISTED, max_str_len=MAX_NAME_CHARACTERS * 4)
        if not isinstance(fields, list) or len(fields) < 9:
            raise ValueError("no list of nine fields")
        if fields[0] != VERSION:
            raise ValueError(f"version {fields[0]!r}; this release reads {VERSION}")
        _, sender, incarnation, number, kind, totals, predicted, withdrawn, live = fields[:9]
        for name, value in (("totals", totals), ("predicted", predicted)):
            if not isinstance(value, list) or len(value) % 3:
                raise ValueError(f"{name} is no list of threes")
        if len(totals) > 3 * MAX_WORKERS:
            raise ValueError(f"totals of {len(totals) // 3} workers; at most {MAX_WORKERS} are read")
        return cls(
            _name(sender),
            _count(incarnation, 1 << 64),
            _count(number),
            Kind(_count(kind)),
            [(_name(w), _count(r), _count(t)) for w, r, t in zip(totals[::3], totals[1::3], totals[2::3], strict=True)],
            [_predicted(*item) for item in zip(predicted[::3], predicted[1::3], predicted[2::3], strict=True)],
            _counts(withdrawn),
            _counts(live),
        )


def _predicted(number: object, worker: object, packed: object) -> Predicted:
    if not isinstance(packed, bytes) or len(packed) > 8 * MAX_KEYS:
        raise ValueError(f"predicted keys are no bytes of at most {MAX_KEYS} keys")
    return Predicted(_count(number), _name(worker), unpack_keys(packed))


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"{value!r:.80} is no name of 1 to {MAX_NAME_CHARACTERS} characters")
    return value


def _count(value: object, limit: int = MAX_COUNT) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{value!r:.80} is no number from 0 to {limit - 1}")
    return value


def _counts(values: object) -> list[int]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.80} is no list")  # noqa: TRY004 - all that is wrong with a message is one kind
    return [_count(value) for value in values]
