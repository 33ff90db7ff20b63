"""Damaged messages of workers and gateways: taken, or refused by a field's name; never another error.

WARMROUTE_FUZZ_INPUTS says how many; a failure shows the bytes. What is taken is what the ledger can hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from random import Random

import grpc
import pytest
from google.protobuf.message import DecodeError

from indexer.layout import WorkerFacts
from indexer.server.leases import lease_of
from indexer.server.validation import (
    CAPACITY_LIMIT,
    NAME_LIMIT,
    SEQ_LIMIT,
    RefusedError,
    check_disjoint,
    check_hello,
    check_keys,
    check_load,
    check_request,
    check_seq,
)
from tests.indexer.support import FACTS, hello, indexer, raw_status, run
from warmroute.v1 import index_pb2 as pb

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
SENT = 200
"""Of them, through a socket."""
FIELD = re.compile(r"(hello|delta|snapshot|load|format_version|pools)[a-z._]*: ")
TIERS = [pb.TierKeys(tier=pb.TIER_DEVICE, keys=[1, 2, 2**64 - 1]), pb.TierKeys(tier=pb.TIER_HOST, keys=[9])]
FILES = [pb.ModelFile(name="tokenizer.json", digest="ab" * 32, size=9)]
SEEDS = [
    pb.PublishRequest(hello=hello(address="10.0.0.1:1", instance=b"i" * 32, adapters=["a"], sends_files=True)),
    pb.PublishRequest(hello=hello(files=FILES, engine="e", engine_version="1", publishes_events=False)),
    pb.PublishRequest(delta=pb.Delta(epoch=1, seq=2, added=TIERS[:1], removed=TIERS[1:])),
    pb.PublishRequest(snapshot=pb.SnapshotChunk(epoch=1, seq=1, chunk=3, last=True, held=TIERS)),
    pb.PublishRequest(load=pb.Load(epoch=1, seq=1, running_requests=3, kv_cache_usage=0.5, waiting_tokens=7)),
    pb.PublishRequest(file=pb.FileChunk(digest="ab" * 32, offset=1, data=b"x" * 20)),
]
REQUESTS = [pb.LoadsRequest(format_version=1, pools=["a", "b"]), pb.DescribeRequest(format_version=1)]
LONG = [b"\xff" * 9 + b"\x01", b"\x00", b"\xed\xa0\x80", b"\xff\xff", b"a" * 300, b"\x0a\x02", b"\x7f" * 8]


def damaged(random: Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(random.randint(1, 4)):
        at, length = random.randrange(len(data) + 1), random.randrange(12)
        match random.randrange(5):
            case 0:
                data[at:at] = random.choice(LONG)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                data += random.choice(SEEDS).SerializeToString()  # protobuf merges what comes twice
            case _:
                if at < len(data):
                    data[at] = random.randrange(256)
    return bytes(data)


def taken(request: pb.PublishRequest) -> str | None:
    """What kind of message was taken; checks that it is within bounds. Raises RefusedError."""
    kind = request.WhichOneof("body")
    match kind:
        case "hello":
            said = request.hello
            facts = check_hello(said)
            assert all(1 <= capacity <= CAPACITY_LIMIT for capacity in facts.capacity.values())
            assert 1 <= len(said.worker_id.encode()) <= NAME_LIMIT
            assert WorkerFacts.from_json(facts.to_json()).address == said.address
            facts_of = {"instance": said.instance, "peer": "ipv4:127.0.0.1:1", "token": "1"}
            assert lease_of(said.pool, said.worker_id, said.address, **facts_of).keys
        case "delta":
            added, removed = (
                check_keys(f"delta.{field}", getattr(request.delta, field), FACTS) for field in ("added", "removed")
            )
            check_disjoint(added, removed)
            assert 1 <= check_seq("delta.seq", request.delta.seq) < SEQ_LIMIT
            assert added.keys() | removed.keys() <= FACTS.capacity.keys()
        case "snapshot":
            check_seq("snapshot.seq", request.snapshot.seq)
            assert check_keys("snapshot.held", request.snapshot.held, FACTS).keys() <= FACTS.capacity.keys()
        case "load":
            check_load(request.load)
            assert 0 <= request.load.kv_cache_usage <= 1
    return kind


def outcome(data: bytes, parse: Callable[[bytes], object], check: Callable[[object], object]) -> str:
    try:
        check(parse(data))
    except DecodeError:
        return "no message"
    except RefusedError as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(data) from error
    else:
        return "taken"
    assert FIELD.match(said), (data, said)
    assert len(said) < 1000, data
    return "refused"


@pytest.mark.timeout(60 + INPUTS // 200)
def test_damaged_messages_are_taken_or_refused_by_field() -> None:
    random = Random(7)
    counts = {"no message": 0, "refused": 0, "taken": 0}
    for number in range(INPUTS):
        if number % 10:
            seed, parse, check = random.choice(SEEDS), pb.PublishRequest.FromString, taken
        else:
            seed = random.choice(REQUESTS)
            parse, check = type(seed).FromString, check_request
        counts[outcome(damaged(random, seed.SerializeToString()), parse, check)] += 1
    assert min(counts.values()) > INPUTS // 100, counts


def test_an_indexer_answers_damaged_streams_with_a_status_and_goes_on(redis_url: str) -> None:
    async def scenario() -> None:
        random = Random(8)
        fine = {
            *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED),
            *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INTERNAL),
        }
        async with indexer(redis_url) as index:
            for number in range(SENT):
                first = SEEDS[0].SerializeToString()
                # The last message is one that no stream may have.
                data = damaged(random, random.choice(SEEDS).SerializeToString())
                messages = [data] if number % 2 else [first, data]
                error = await raw_status(index.address, *messages, b"\xff", b"\xff")
                assert error.code() in fine, (data, error)
                if error.code() is grpc.StatusCode.INTERNAL:  # grpc's client, of a write into a stream that ended
                    assert "execute_batch" in (error.debug_error_string() or ""), data
            assert index.service.ledger_up
            assert index.service.streams == 0

    run(scenario())
