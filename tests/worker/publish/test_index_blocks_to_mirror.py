"""From the block pool to a gateway's mirror: what is published is exactly what the pool holds.

The scheduler's random requests, resets and aborts run as in its own test; after every step the events go the whole way
(index blocks, publisher's state, log entry, mirror), and the mirror is compared with keys computed from the requests.
"""

from __future__ import annotations

from hypothesis import settings

from indexer.keys import prompt_keys
from indexer.layout import LogDelta, WorkerFacts, decode_entry, encode_delta
from indexer.reader.mirror import Mirror
from tests.worker.engine.support import cached_hashes
from tests.worker.engine.test_blocks import replay
from tests.worker.engine.test_scheduler import BLOCK, SchedulerMachine
from worker.events import CacheEvent
from worker.publish.index_blocks import Changes, IndexBlocks
from worker.publish.state import PublishState

INDEX_BLOCK = 2 * BLOCK
FINGERPRINT = "f"
FACTS = WorkerFacts("", "m", "builtin", "0", BLOCK, INDEX_BLOCK, FINGERPRINT, publishes_events=True)


class PublishedMachine(SchedulerMachine):
    """The scheduler's machine with a gateway at the end of the line."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = IndexBlocks(engine_block_tokens=BLOCK, index_block_tokens=INDEX_BLOCK, fingerprint=FINGERPRINT)
        self.state = PublishState(epoch=1)
        self.mirror = Mirror()
        self.slot = 0
        self.snapshot()

    def snapshot(self) -> None:
        self.slot += 1
        self.mirror.open_slot(self.slot)
        for chunk in self.state.snapshot(0.0):
            for tier, keys in chunk.held.items():
                self.mirror.add(self.slot, tier, keys)
        self.mirror.set_worker("w", self.slot, FACTS)

    def publish(self, events: list[CacheEvent]) -> None:
        changes = Changes()
        cleared = self.blocks.apply(events, changes)
        if cleared:
            self.state.reset(self.state.epoch + 1, 0.0)
        self.state.apply("device", changes, 0.0)
        if cleared:
            self.snapshot()
        while (delta := self.state.next_delta()) is not None:
            fields = {b"v": b"1", b"p": b"0-0", b"k": b"delta", b"w": b"w", b"s": b"%d" % self.slot}
            _, entry = decode_entry({**fields, b"keys": encode_delta(delta.added, delta.removed)})
            assert isinstance(entry, LogDelta)
            for tier, keys in entry.removed.items():
                self.mirror.remove(entry.slot, tier, keys)
            for tier, keys in entry.added.items():
                self.mirror.add(entry.slot, tier, keys)
            assert self.state.acknowledged(delta.seq)

    def replay_events(self) -> None:
        events = self.scheduler.pool.drain_events()
        replay(events, self.known)
        self.publish(events)
        assert self.blocks.orphaned == self.blocks.skipped == 0
        assert set(self.mirror.held("w", "device")) == self.expected_keys()

    def expected_keys(self) -> set[int]:
        """Keys of the index blocks whose engine blocks are all in the pool's cache, from the requests' own tokens."""
        cached = cached_hashes(self.scheduler.pool)
        keys: set[int] = set()
        for request in self.requests:
            tokens = request.token_ids[: len(request.block_hashes) * BLOCK]
            for number, key in enumerate(prompt_keys(tokens, FINGERPRINT, block_tokens=INDEX_BLOCK, salt=request.salt)):
                if all(block_hash in cached for block_hash in request.block_hashes[2 * number : 2 * number + 2]):
                    keys.add(key)
        return keys


TestPublishedMachine = PublishedMachine.TestCase
TestPublishedMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
