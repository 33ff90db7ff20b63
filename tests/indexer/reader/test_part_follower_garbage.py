"""Garbage in the log and in records, which nobody is to trust: it is named as such and costs a boot."""

from __future__ import annotations

import msgpack
import pytest
from prometheus_client import CollectorRegistry

from indexer.layout import MalformedError, WorkerRecord, decode_entry
from tests.indexer.support import (
    FACTS,
    PART,
    boots,
    engine,
    follower,
    in_step,
    indexer,
    keys_of,
    run,
    running,
)
from tests.support import eventually, redis_client

FACTS_JSON = FACTS.to_json()
GARBAGE = [
    {"x": "y"},
    {"v": "1", "p": "0-0", "k": "delta", "w": "w", "s": "1", "keys": b"\x81\xa6device\x01"},
    {"v": "1", "p": "0-0", "k": "delta", "w": "w", "s": "1", "keys": b"\x93\x01\x02\x03"},
    {"v": "1", "p": "0-0", "k": "delta", "w": "w", "s": "1", "keys": b"\xc1"},
    {"v": "1", "p": "0-0", "k": "delta", "w": "w", "s": "x", "keys": b"\x80"},
    {"v": "1", "p": "0-0", "k": "worker", "w": "w", "e": "1", "s": "1", "r": "0", "b": b"\x80", "f": "[]"},
    {
        "v": "1",
        "p": "0-0",
        "k": "worker",
        "w": "w",
        "e": "1",
        "s": "1",
        "r": "0",
        "b": b"\x91\x01",
        "f": FACTS.to_json(),
    },
    {"v": "9", "p": "0-0", "k": "drop", "w": "w"},
]


@pytest.mark.parametrize("fields", GARBAGE)
def test_entries_that_are_none_are_of_one_kind(fields: dict) -> None:
    encoded = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    with pytest.raises(MalformedError):
        decode_entry(encoded)


RECORD = {"v": 1, "slot": 7, "epoch": "0" * 16, "seq": 1, "buckets": {"device": 1}, "facts": FACTS.to_json()}


@pytest.mark.parametrize(
    "wrong", [{"slot": "x"}, {"seq": []}, {"buckets": [1]}, {"buckets": {"device": "x"}}, {"v": 9}]
)
def test_records_that_are_none_are_of_one_kind(wrong: dict) -> None:
    assert WorkerRecord.decode("w", msgpack.packb(RECORD)).slot == 7
    with pytest.raises(MalformedError):
        WorkerRecord.decode("w", msgpack.packb(RECORD | wrong))
    with pytest.raises(MalformedError):
        WorkerRecord.decode("w", b"\xc1")


def test_an_entry_of_an_unknown_kind_is_passed_over() -> None:
    assert decode_entry({b"v": b"1", b"p": b"1-1", b"k": b"news"}) == ("1-1", None)


def test_garbage_in_the_log_costs_a_boot_and_no_more(redis_url: str) -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        async with (
            indexer(redis_url) as index,
            follower(redis_url, registry=registry) as mirror,
            redis_client(redis_url) as redis,
        ):
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
                for fields in GARBAGE:
                    await redis.xadd(PART.key("log"), fields)
                worker.store(1, 2)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.match(keys_of(1, 2)), within=20)
                assert boots(registry, "error") >= 1

    run(scenario())
