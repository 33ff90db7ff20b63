"""Real ZMQ sockets: subscriptions, replays of both framings, gaps, restarts, engines that connect, slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import uvloop
import zmq
import zmq.asyncio

from indexer.keys import prompt_keys
from tests.indexer.support import running
from tests.ports import free_ports
from tests.support import eventually
from tests.worker.adapters.stand_in import rank_sockets
from tests.worker.adapters.support import FINGERPRINT
from worker.adapters.feed import Feed
from worker.adapters.msgpack_events import TIERS, decode_batch
from worker.adapters.sources import EventSource
from worker.adapters.translate import Translator
from worker.adapters.zmq_source import ZmqSource
from worker.events import CacheEvent
from worker.publish.index_blocks import Changes, IndexBlocks


class Reader:
    """A source, its feed and the keys that come out."""

    def __init__(self, source: EventSource, context: zmq.asyncio.Context) -> None:
        self.table = IndexBlocks(engine_block_tokens=16, index_block_tokens=16, fingerprint=FINGERPRINT)
        self.keys: set[int] = set()
        translator = Translator(16, TIERS, most_host_blocks=10)
        self.feed = Feed(translator, self._sink, decode_batch, replay_keeps=source.replay_keeps)
        self.source = ZmqSource(source, self.feed, context)

    def _sink(self, events: Sequence[CacheEvent]) -> None:
        changes = Changes()
        if self.table.apply(events, changes):
            self.keys = set()
        self.keys = self.keys - changes.removed | changes.added


@asynccontextmanager
async def reading(events: str, replay: str | None, *, bind: bool | None = False) -> AsyncIterator[Reader]:
    with zmq.asyncio.Context() as context:
        reader = Reader(EventSource(0, events, replay, bind, bool(replay)), context)
        async with running(reader.source.run()):
            yield reader


def prompt(number: int) -> list[int]:
    return [number] * 32


def stored(number: int) -> dict[str, Any]:
    hashes = [number * 10, number * 10 + 1]
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": prompt(number),
        "block_size": 16, "medium": "GPU",
    }  # fmt: skip


def keys(*numbers: int) -> set[int]:
    return set().union(*(prompt_keys(prompt(number), FINGERPRINT, block_tokens=16) for number in numbers))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("framing", [4, 3])
def test_what_was_published_before_is_read_from_the_replay(framing: int, loop_factory: Any) -> None:
    async def scenario() -> None:
        async with rank_sockets(framing=framing) as engine:
            events, replay = engine.bind()
            for number in range(3):
                await engine.publish_events(stored(number))
            async with reading(events, replay) as reader:
                await eventually(lambda: reader.keys == keys(0, 1, 2))
                # The subscription is not there at once: a message is seen live, or by the first look for lost ones.
                await engine.publish_events(stored(3))
                await eventually(lambda: reader.keys == keys(0, 1, 2, 3))
                await engine.publish_events({"type": "BlockRemoved", "block_hashes": [0, 1]})
                await eventually(lambda: reader.keys == keys(1, 2, 3))
                assert reader.feed.counts["lost"] == reader.feed.counts["lives"] == 0

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_a_lost_message_is_asked_for() -> None:
    async def scenario() -> None:
        async with rank_sockets() as engine:
            events, replay = engine.bind()
            await engine.publish_events(stored(0))
            async with reading(events, replay) as reader:
                await eventually(lambda: reader.keys == keys(0))
                await eventually(lambda: len(engine.asked) == 2)  # the subscription is there, too
                await engine.publish_events(stored(1), lost=True)
                await engine.publish_events({"type": "BlockRemoved", "block_hashes": [0, 1]}, lost=True)
                await engine.publish_events(stored(2))
                await eventually(lambda: reader.keys == keys(1, 2))
                assert reader.feed.counts["gaps"] == 1
                assert reader.feed.counts["lost"] == 0
                assert engine.asked[-1] == 0

    asyncio.run(scenario())


def test_a_gap_that_no_replay_fills_starts_over() -> None:
    async def scenario() -> None:
        async with rank_sockets(keep=1) as engine:
            events, replay = engine.bind()
            async with reading(events, replay) as reader:
                await eventually(lambda: len(engine.asked) == 2)
                await engine.publish_events(stored(0))
                await eventually(lambda: reader.keys == keys(0))
                await engine.publish_events({"type": "BlockRemoved", "block_hashes": [0]}, lost=True)
                await engine.publish_events(stored(1))
                await eventually(lambda: reader.keys == keys(1))
                assert reader.feed.counts["lost"] == 1

    asyncio.run(scenario())


def test_a_restart_in_place_forgets_the_old_life() -> None:
    async def scenario() -> None:
        async with rank_sockets() as engine:
            events, replay = engine.bind()
            await engine.publish_events(stored(0))
            await engine.publish_events(stored(1))
            async with reading(events, replay) as reader:
                await eventually(lambda: len(engine.asked) == 2 and reader.keys == keys(0, 1))
                engine.restart()
                await engine.publish_events(stored(5))
                await eventually(lambda: reader.keys == keys(5))
                assert reader.feed.counts["lives"] == 1

    asyncio.run(scenario())


def test_silence_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that restarted and says nothing, and one whose last message was lost."""
    monkeypatch.setattr("worker.adapters.zmq_source.AUDIT_SECONDS", 0.1)

    async def scenario() -> None:
        async with rank_sockets() as engine:
            events, replay = engine.bind()
            async with reading(events, replay) as reader:
                await engine.publish_events(stored(0), lost=True)
                await eventually(lambda: reader.keys == keys(0))
                engine.restart()
                await eventually(lambda: reader.keys == set())
                assert reader.feed.counts["lives"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("bind", [True, None])
def test_an_engine_that_connects_is_waited_for(bind: bool | None) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with rank_sockets(topic=b"") as engine, reading(f"tcp://127.0.0.1:{port}", None, bind=bind) as reader:
            await eventually(lambda: reader.source.bound)
            engine.connect(f"tcp://127.0.0.1:{port}")
            await eventually(lambda: publish_until_seen(engine, reader))
            await engine.publish_events(stored(2))
            await eventually(lambda: reader.keys == keys(1, 2))

    asyncio.run(scenario())


def test_an_address_that_the_engine_has_bound_is_connected_to() -> None:
    async def scenario() -> None:
        async with rank_sockets() as engine:
            events, replay = engine.bind()
            await engine.publish_events(stored(0))
            async with reading(events, replay, bind=None) as reader:
                await eventually(lambda: reader.keys == keys(0))
                assert not reader.source.bound

    asyncio.run(scenario())


def test_a_reader_that_stalls_never_holds_the_engine_back_and_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.adapters.zmq_source.RECEIVE_MESSAGES", 10)
    # The last message may be among those that were dropped.
    monkeypatch.setattr("worker.adapters.zmq_source.AUDIT_SECONDS", 0.2)

    async def scenario() -> None:
        async with rank_sockets(keep=10_000) as engine:
            events, replay = engine.bind()
            engine.publisher.setsockopt(zmq.SNDHWM, 10)
            async with reading(events, replay) as reader:
                await eventually(lambda: len(engine.asked) == 2)
                # No turn for the reader: the loop is the engine's alone. Far more than all queues between them hold.
                plain = zmq.Socket.shadow(engine.publisher.underlying)
                filler = b"\0" * 20_000
                for number in range(1_500):
                    payload = packed(number, {**stored(number % 4), "filler": filler})
                    engine.kept.append((engine.number, payload))
                    plain.send_multipart([b"t", engine.number.to_bytes(8, "big"), payload])  # blocks or drops
                    engine.number += 1
                engine.clock = 1_500.0
                await engine.publish_events(stored(9))
                await eventually(lambda: reader.keys == keys(0, 1, 2, 3, 9), within=60)
                assert reader.feed.counts["lost"] == 0
                assert len(engine.asked) > 2  # messages were dropped

    asyncio.run(scenario())


def packed(number: int, *events: dict[str, Any]) -> bytes:
    return msgpack.packb([float(number), list(events), 0])


def test_messages_without_a_number_are_counted() -> None:
    async def scenario() -> None:
        async with rank_sockets() as engine:
            events, replay = engine.bind()
            async with reading(events, replay) as reader:
                await eventually(lambda: len(engine.asked) == 2)
                await engine.publisher.send_multipart([b"just one frame"])
                await engine.publisher.send_multipart([b"t", b"123", b"x"])
                await engine.publisher.send_multipart([b"t", (0).to_bytes(8, "big"), b"\xc1"])
                await engine.publish_events(stored(1), number=1)
                await eventually(lambda: reader.keys == keys(1))
                assert reader.feed.counts["undecodable"] == 3

    asyncio.run(scenario())


def test_a_replay_that_does_not_answer_is_said_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.adapters.zmq_source.REPLAY_SILENCE_SECONDS", 0.2)

    async def scenario() -> None:
        (port,) = free_ports(1)
        async with rank_sockets() as engine:
            events, _ = engine.bind()
            async with reading(events, f"tcp://127.0.0.1:{port}") as reader:
                await eventually(lambda: reader.source.trouble)
                await eventually(lambda: publish_until_seen(engine, reader))
                assert reader.feed.counts["batches"]

    asyncio.run(scenario())
    assert sum("the replay at" in record.getMessage() for record in caplog.records) == 1


async def publish_until_seen(engine: Any, reader: Reader) -> bool:
    """Whether the subscription is there: what is published before that is nobody's."""
    await engine.publish_events(stored(1))
    return bool(reader.keys)


def test_an_endpoint_that_another_has_bound_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.adapters.zmq_source.RETRY_SECONDS", 0.05)

    async def scenario() -> None:
        async with rank_sockets() as engine, rank_sockets() as other:
            taken, _ = other.bind()
            async with reading(taken, None, bind=True) as reader:
                await eventually(lambda: "cannot be bound" in reader.source.trouble)
                assert "--events-bind" in reader.source.trouble
                other.close()
                await eventually(lambda: reader.source.bound)
                engine.connect(taken)
                await eventually(lambda: not reader.source.trouble, within=15)
                await engine.publish_events(stored(1))
                await eventually(lambda: reader.keys == keys(1))

    asyncio.run(scenario())


def test_an_endpoint_where_nobody_publishes_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """Else it looks like an engine that idles."""
    monkeypatch.setattr("worker.adapters.zmq_source.FIRST_AUDIT_SECONDS", 0.05)
    monkeypatch.setattr("worker.adapters.zmq_source.AUDIT_SECONDS", 0.06)

    async def scenario() -> None:
        async with reading("ipc:///nowhere/at/all", None) as reader:
            await eventually(lambda: "nobody publishes at ipc:///nowhere/at/all, or it" in caplog.text)
            assert reader.source.trouble == "nobody publishes at ipc:///nowhere/at/all"

    asyncio.run(scenario())
    assert caplog.text.count("nobody publishes") == 1
