"""The scheduler by random requests, with a simulated memory that notices any block used for the wrong tokens."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.worker.engine.support import cached_hashes
from tests.worker.engine.test_blocks import replay
from worker.engine.blocks import BlockPool
from worker.engine.request import EngineRequest, RequestStatus, SamplingParams
from worker.engine.scheduler import Chunk, Scheduler
from worker.events import BlockStored

BLOCK = 3
USABLE = 10
CAPACITY = BLOCK * USABLE
EOS = 7


def make_scheduler(*, usable: int = USABLE, batch: int = 4, budget: int = 8) -> Scheduler:
    return Scheduler(
        BlockPool(usable + 1),
        block_tokens=BLOCK,
        max_batch_requests=batch,
        max_step_tokens=budget,
        eos_token_ids=frozenset({EOS}),
    )


def make_request(number: int, prompt: Iterable[int], max_tokens: int = 4, salt: str = "") -> EngineRequest:
    return EngineRequest(number, list(prompt), SamplingParams(max_tokens, 0.0), block_tokens=BLOCK, salt=salt)


def next_token(request: EngineRequest) -> int:
    """The simulated model: a function of all that precedes, over few tokens so that replies share prefixes."""
    drawn = zlib.crc32(repr((request.salt, request.token_ids)).encode())
    return EOS if drawn % 23 == 0 else drawn % 3


class Memory:
    """What each slot was computed from. Reading a context checks every slot of it."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[object, ...]] = {}

    def compute(self, chunks: list[Chunk]) -> dict[int, int]:
        for chunk in chunks:
            for place in range(chunk.start):
                assert self.slots[self._slot(chunk.request, place)] == self._content(chunk.request, place)
        written: set[int] = set()
        for chunk in chunks:
            for place in range(chunk.start, chunk.end):
                slot = self._slot(chunk.request, place)
                assert slot not in written, "two tokens in one slot"
                written.add(slot)
                self.slots[slot] = self._content(chunk.request, place)
        return {chunk.request.request_id: next_token(chunk.request) for chunk in chunks if chunk.samples}

    @staticmethod
    def _slot(request: EngineRequest, place: int) -> int:
        return request.blocks[place // BLOCK].block_id * BLOCK + place % BLOCK

    @staticmethod
    def _content(request: EngineRequest, place: int) -> tuple[object, ...]:
        return (request.salt, *request.token_ids[: place + 1])


def run(scheduler: Scheduler, memory: Memory, steps: int = 1000) -> None:
    """Step until nothing is left; fails if that takes too long."""
    for _ in range(steps):
        if not scheduler.has_work():
            return
        chunks = scheduler.schedule()
        assert chunks, "there is work and no progress"
        scheduler.commit(chunks, memory.compute(chunks))
    raise AssertionError(f"not done after {steps} steps")


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of few tokens and salts come, go and are aborted while blocks are scarce."""

    @initialize(batch=st.integers(1, 5), budget=st.integers(1, 12))
    def start(self, batch: int, budget: int) -> None:
        self.scheduler = make_scheduler(batch=batch, budget=budget)
        self.memory = Memory()
        self.known: set[bytes] = set()
        self.requests: list[EngineRequest] = []
        self.budget = budget

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=CAPACITY - 4),
        max_tokens=st.integers(1, CAPACITY),
        salt=st.sampled_from(["", "a"]),
    )
    def add(self, prompt: list[int], max_tokens: int, salt: str) -> None:
        request = make_request(len(self.requests), prompt, min(max_tokens, CAPACITY - len(prompt)), salt)
        self.requests.append(request)
        self.scheduler.add(request)

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            before = self.scheduler.has_work()
            chunks = self.scheduler.schedule()
            assert bool(chunks) == before
            assert sum(chunk.count for chunk in chunks) <= self.budget
            assert all(chunk.count >= 1 for chunk in chunks)
            outputs = self.scheduler.commit(chunks, self.memory.compute(chunks))
            assert all((output.finish_reason is not None) == self.is_done(number) for number, output in outputs.items())
            self.replay_events()

    def is_done(self, number: int) -> bool:
        return self.requests[number].status is RequestStatus.FINISHED

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        finished = request.status is RequestStatus.FINISHED
        reason = request.finish_reason
        self.scheduler.abort(request)
        assert request.status is RequestStatus.FINISHED
        assert request.finish_reason == (reason if finished else "abort")
        assert request.blocks == []

    @rule()
    def reset(self) -> None:
        self.scheduler.reset_prefix_cache()
        self.replay_events()
        assert not self.known

    def replay_events(self) -> None:
        replay(self.scheduler.pool.drain_events(), self.known)
        assert self.known == cached_hashes(self.scheduler.pool)

    @invariant()
    def sound(self) -> None:
        self.scheduler.check_integrity()
        tables = [block for request in self.requests for block in request.blocks]
        for block in self.scheduler.pool.blocks[1:]:
            assert block.ref_count == tables.count(block)
        load = self.scheduler.load()
        assert load.running_requests == sum(request.status is RequestStatus.RUNNING for request in self.requests)
        assert load.waiting_requests == sum(request.status is RequestStatus.WAITING for request in self.requests)
        assert load.waiting_tokens >= load.waiting_requests
        assert load.kv_cache_usage == pytest.approx(len(set(tables)) / USABLE)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        run(self.scheduler, self.memory)
        self.replay_events()
        assert self.scheduler.pool.num_free == USABLE
        for request in self.requests:
            assert request.status is RequestStatus.FINISHED
            if request.finish_reason != "abort":
                self.check_reply(request)

    @staticmethod
    def check_reply(request: EngineRequest) -> None:
        """Alone and without any cache the simulated model says the same."""
        alone = make_request(0, request.token_ids[: request.num_prompt_tokens], salt=request.salt)
        while alone.num_generated_tokens < request.sampling.max_tokens:
            alone.append(next_token(alone))
            if alone.token_ids[-1] == EOS:
                break
        assert request.token_ids == alone.token_ids


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_decodes_share_steps_with_chunks_of_a_prompt() -> None:
    scheduler, memory = make_scheduler(budget=6), Memory()
    scheduler.add(make_request(1, [1, 2], max_tokens=8))
    scheduler.commit(chunks := scheduler.schedule(), memory.compute(chunks))
    scheduler.add(make_request(2, range(3, 15)))
    steps = []
    for _ in range(3):
        chunks = scheduler.schedule()
        steps.append([(chunk.request.request_id, chunk.start, chunk.count, chunk.samples) for chunk in chunks])
        scheduler.commit(chunks, memory.compute(chunks))
    assert steps == [
        [(1, 2, 1, True), (2, 0, 5, False)],
        [(1, 3, 1, True), (2, 5, 5, False)],
        [(1, 4, 1, True), (2, 10, 2, True)],
    ]


def test_the_youngest_is_preempted_and_finds_its_blocks_again() -> None:
    scheduler, memory = make_scheduler(usable=4, budget=20), Memory()
    old, young = make_request(1, [1] * 6, max_tokens=2), make_request(2, [2] * 6, max_tokens=6)
    scheduler.add(old)
    scheduler.add(young)
    scheduler.commit(chunks := scheduler.schedule(), memory.compute(chunks))
    assert [len(scheduler.running), len(scheduler.waiting)] == [2, 0]
    chunks = scheduler.schedule()
    assert [chunk.request for chunk in chunks] == [old]
    assert (young.status, scheduler.stats.preemptions) == (RequestStatus.WAITING, 1)
    assert young.num_tokens == 7
    while young.status is RequestStatus.WAITING:
        scheduler.commit(chunks, memory.compute(chunks))
        chunks = scheduler.schedule()
    assert [(chunk.request, chunk.start) for chunk in chunks] == [(young, BLOCK)], "its tail was evicted, its head not"
    scheduler.commit(chunks, memory.compute(chunks))
    run(scheduler, memory)
    assert young.cached_tokens == 0, "only the first admission counts"
    assert (scheduler.stats.prefix_cache_queries, scheduler.stats.prefix_cache_hits) == (12, 0)


def test_a_reset_does_not_taint_a_request_that_starts_over() -> None:
    scheduler, memory = make_scheduler(budget=20), Memory()
    request = make_request(1, [1] * 6, max_tokens=2)
    scheduler.add(request)
    scheduler.schedule()
    scheduler.reset_prefix_cache()
    assert not request.publishes
    scheduler.abort(request)
    scheduler.add(again := make_request(2, [1] * 6, max_tokens=2))
    run(scheduler, memory)
    assert again.cached_tokens == 0
    assert sum(isinstance(event, BlockStored) for event in scheduler.pool.drain_events()) == 2


def test_a_private_duplicate_takes_over_when_the_original_goes() -> None:
    """Two equal prompts start in one step; the first to finish loses its blocks while the other goes on."""
    scheduler, memory = make_scheduler(usable=6, budget=20, batch=2), Memory()
    brief, lasting = make_request(1, [1] * 5, max_tokens=1), make_request(2, [1] * 5, max_tokens=8)
    lasting.sampling = SamplingParams(8, 0.0, ignore_eos=True)
    scheduler.add(brief)
    scheduler.add(lasting)
    known: set[bytes] = set()
    scheduler.commit(chunks := scheduler.schedule(), memory.compute(chunks))
    assert lasting.private_blocks == [0]
    replay(scheduler.pool.drain_events(), known)
    taken = scheduler.pool.allocate(scheduler.pool.num_free)  # evicts the original
    assert lasting.block_hashes[0] not in scheduler.pool
    scheduler.pool.free(taken)
    run(scheduler, memory)
    replay(scheduler.pool.drain_events(), known)
    assert lasting.block_hashes[0] in known


def test_load_counts_what_is_neither_cached_nor_computed() -> None:
    scheduler, memory = make_scheduler(budget=20, batch=1), Memory()
    scheduler.add(make_request(1, [1] * 9, max_tokens=1))
    assert scheduler.load().waiting_tokens == 9
    run(scheduler, memory)
    scheduler.add(make_request(2, [1] * 9 + [2] * 4))
    assert scheduler.load().waiting_tokens == 4
    scheduler.reset_prefix_cache()
    assert scheduler.load().waiting_tokens == 13
    scheduler.max_step_tokens = 6
    scheduler.schedule()
    scheduler.add(make_request(3, [2] * 5))
    load = scheduler.load()
    assert (load.running_requests, load.waiting_requests, load.waiting_tokens) == (1, 1, 13 + 5)


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="31 tokens of prompt and reply do not fit into 30"):
        make_scheduler().add(make_request(1, [1] * 30, max_tokens=1))
