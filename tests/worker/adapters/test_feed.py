"""A rank's stream against a naive model: gaps, repeats, restarts, replays that are short, late or missing."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.worker.adapters.support import FINGERPRINT, Naive, scenario
from worker.adapters.feed import Feed
from worker.adapters.msgpack_events import TIERS, decode_batch
from worker.adapters.translate import Translator
from worker.events import CacheCleared
from worker.publish.index_blocks import Changes, IndexBlocks

BLOCK, INDEX = 4, 8


class Engine:
    """A cache of blocks with a publisher: numbers its batches, keeps the last `kept`, restarts."""

    def __init__(self, kept: int) -> None:
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.clock = 0.0
        self.restart()

    def restart(self) -> None:
        self.kept.clear()
        self.number = 0
        self.truth = Naive()

    def publish(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        self.clock += 1.0
        for event in events:
            self.truth.apply(event)
        message = (self.number, msgpack.packb([self.clock, list(events), 0]))
        self.number += 1
        self.kept.append(message)
        return message

    def stored(self, path: list[int]) -> dict[str, Any] | None:
        """What a request for this prompt adds: the blocks after those that it finds."""
        hashes = [hash(tuple(path[: end + 1])) for end in range(len(path))]
        found = 0
        while found < len(path) - 1 and self.truth.copies[str(hashes[found])] > 0:
            found += 1
        tokens = [token for token in path[found:] for _ in range(BLOCK)]
        parent = hashes[found - 1] if found else None
        event = {"type": "BlockStored", "block_hashes": hashes[found:], "parent_block_hash": parent}
        return {**event, "token_ids": tokens, "block_size": BLOCK}

    def evictable(self) -> list[str]:
        """Blocks that nothing held descends from."""
        held = [name for name, copies in self.truth.copies.items() if copies > 0]
        prompts = [tuple(self.truth.prompt[name][0]) for name in held]
        return sorted(
            name
            for name, prompt in zip(held, prompts, strict=True)
            if self.truth.copies[name] > 1
            or not any(other[: len(prompt)] == prompt and len(other) > len(prompt) for other in prompts)
        )


class Reader:
    """A feed, its table and the keys that came out."""

    def __init__(self, *, replay_keeps: bool = True) -> None:
        self.table = IndexBlocks(engine_block_tokens=BLOCK, index_block_tokens=INDEX, fingerprint=FINGERPRINT)
        self.keys: set[int] = set()
        translator = Translator(BLOCK, TIERS, most_host_blocks=10)
        self.feed = Feed(translator, self.sink, decode_batch, replay_keeps=replay_keeps)

    def sink(self, events: Any) -> None:
        changes = Changes()
        if self.table.apply(events, changes):
            self.keys = set()
        assert changes.removed <= self.keys
        self.keys = self.keys - changes.removed | changes.added


class FeedMachine(RuleBasedStateMachine):
    """Two ranks, each with an engine, a line that loses and repeats, and a reader."""

    @initialize(kept=st.sampled_from([0, 3, 100]))
    def start(self, kept: int) -> None:
        self.replays = kept > 0
        self.engines = [Engine(kept), Engine(kept)]
        self.readers = [Reader(replay_keeps=self.replays) for _ in range(2)]
        self.line: list[list[tuple[int, bytes]]] = [[], []]
        self.restarted = [False, False]
        for reader in self.readers:
            reader.feed.end_replay(complete=False)

    def send(self, rank: int, message: tuple[int, bytes]) -> None:
        self.line[rank].append(message)

    ranks = st.integers(0, 1)

    @rule(rank=ranks, path=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=5), times=st.integers(1, 2))
    def request(self, rank: int, path: list[int], times: int) -> None:
        for _ in range(times):
            self.send(rank, self.engines[rank].publish(self.engines[rank].stored(path)))

    @rule(rank=ranks, data=st.data())
    def evict(self, rank: int, data: st.DataObject) -> None:
        if names := self.engines[rank].evictable():
            name = data.draw(st.sampled_from(names))
            self.send(rank, self.engines[rank].publish({"type": "BlockRemoved", "block_hashes": [int(name)]}))

    @rule(rank=ranks)
    def clear(self, rank: int) -> None:
        self.send(rank, self.engines[rank].publish({"type": "AllBlocksCleared"}))

    @rule(rank=ranks)
    def restart(self, rank: int) -> None:
        self.engines[rank].restart()
        self.restarted[rank] = True

    @rule(rank=ranks, data=st.data())
    def lose(self, rank: int, data: st.DataObject) -> None:
        """Any message but the first of another life: where the numbers happen to go on, it alone tells the feed of a
        restart. Without it the monitor does, by the time at which the engine's process began."""
        line = self.line[rank]
        if at := [place for place, (number, _) in enumerate(line) if number or not self.restarted[rank]]:
            del line[data.draw(st.sampled_from(at))]

    @rule(rank=ranks)
    def repeat(self, rank: int) -> None:
        self.line[rank] += self.line[rank][-2:]

    @rule(rank=ranks, number=st.integers(1, 5))
    def deliver(self, rank: int, number: int) -> None:
        for message in self.line[rank][:number]:
            self.readers[rank].feed.offer(*message)
        del self.line[rank][:number]

    @rule(rank=ranks, late=st.integers(0, 3))
    def replay(self, rank: int, late: int) -> None:
        """As the owner does when it is wanted, or to see whether anything was missed."""
        feed = self.readers[rank].feed
        feed.begin_replay()
        wanted = [message for message in self.engines[rank].kept if message[0] >= feed.resume_from]
        self.deliver(rank, late)
        for message in wanted if self.replays else ():
            feed.replayed(*message)
        feed.end_replay(complete=self.replays)

    @invariant()
    def once_everything_is_read_the_keys_are_the_truth_or_less(self) -> None:
        if not hasattr(self, "engines"):
            return
        for rank, (engine, reader) in enumerate(zip(self.engines, self.readers, strict=True)):
            if self.line[rank] or not engine.number:
                continue
            seen = reader.feed._sequence
            if reader.feed.replay_wanted or (seen.last, seen._at) != (engine.number - 1, engine.clock):
                continue
            truth = engine.truth.keys(BLOCK, INDEX)
            assert reader.keys <= truth
            if not reader.feed.counts["lost"]:
                assert reader.keys == truth

    def teardown(self) -> None:
        """Another message, and the replays that are wanted: whatever happened, what is left is the truth or less."""
        if not hasattr(self, "engines"):
            return
        for rank in (0, 1):
            engine, reader = self.engines[rank], self.readers[rank]
            self.send(rank, engine.publish())
            self.deliver(rank, len(self.line[rank]))
            for _ in range(3):
                if reader.feed.replay_wanted:
                    self.replay(rank, 0)
            assert not reader.feed.replay_wanted
            assert reader.feed._sequence.last == engine.number - 1
            assert reader.keys <= engine.truth.keys(BLOCK, INDEX)


TestFeedMachine = FeedMachine.TestCase
TestFeedMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def captured(name: str) -> list[tuple[int, bytes]]:
    found = scenario("vllm-events", name)
    return [(int.from_bytes(frames[-2], "big", signed=True), frames[-1]) for frames in found.frames]


def test_a_captured_replay_that_begins_late_says_what_it_still_has() -> None:
    reader = Reader(replay_keeps=True)
    reader.feed.translator.block_tokens = 16
    reader.table = IndexBlocks(engine_block_tokens=16, index_block_tokens=16, fingerprint=FINGERPRINT)
    reader.feed.begin_replay()
    for number, payload in captured("21-replay-buffer-of-3")[:-1]:
        reader.feed.replayed(number, payload)
    reader.feed.end_replay(complete=True)
    assert reader.feed.counts["lost"] == 1
    assert len(reader.keys) == sum(reader.table._copies.values()) > 0


def test_messages_wait_for_the_replay_and_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("worker.adapters.feed.WAITING_MESSAGES", 3)
    engine, reader = Engine(100), Reader()
    messages = [engine.publish(engine.stored([number])) for number in range(6)]
    for message in messages:
        reader.feed.offer(*message)
    assert (reader.keys, reader.feed.counts["dropped"]) == (set(), 3)
    reader.feed.begin_replay()
    for message in messages[:2]:
        reader.feed.replayed(*message)
    reader.feed.end_replay(complete=True)
    assert reader.feed.counts["batches"] == 3
    # What was dropped is a gap at the next message, and asked for.
    reader.feed.offer(*engine.publish())
    assert reader.feed.replay_wanted
    assert reader.feed.resume_from == 2


def test_an_unreadable_message_costs_one_message() -> None:
    engine, reader = Engine(100), Reader()
    reader.feed.end_replay(complete=True)
    one, two, three = (engine.publish(engine.stored([number, number])) for number in (1, 2, 3))
    for message in (one, (two[0], b"\xc1"), three):
        reader.feed.offer(*message)
    assert reader.feed.counts == Counter(batches=2, undecodable=1, unknown=0)
    assert len(reader.keys) == 2


def test_a_known_restart_forgets_at_once() -> None:
    engine, reader = Engine(100), Reader()
    reader.feed.end_replay(complete=True)
    reader.feed.offer(*engine.publish(engine.stored([1, 1])))
    assert reader.keys
    reader.feed.new_life()
    assert (reader.keys, reader.feed.replay_wanted, reader.feed.resume_from) == (set(), True, 0)


def test_a_restart_that_the_numbers_have_shown_is_not_taken_for_another() -> None:
    engine, reader = Engine(100), Reader()
    reader.feed.end_replay(complete=True)
    for number in range(3):
        reader.feed.offer(*engine.publish(engine.stored([number])))
    engine.restart()
    reader.feed.offer(*engine.publish(engine.stored([1, 1])))
    held = set(reader.keys)
    assert held
    reader.feed.new_life(started_at=engine.clock - 0.5)
    assert (reader.keys, reader.feed.counts["lives"]) == (held, 1)
    reader.feed.new_life(started_at=engine.clock + 0.5)
    assert (reader.keys, reader.feed.counts["lives"]) == (set(), 2)


def test_nothing_is_cleared_where_nothing_was_known() -> None:
    events: list[Any] = []
    engine = Engine(100)
    feed = Feed(Translator(BLOCK, TIERS, most_host_blocks=1), events.extend, decode_batch)
    feed.end_replay(complete=False)
    engine.publish()
    feed.offer(*engine.publish(engine.stored([1])))
    feed.end_replay(complete=False)
    assert events
    assert CacheCleared() not in events
