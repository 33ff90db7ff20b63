"""An engine that computes nothing: the production scheduler and block pool, with steps that take the time of a model.

What is cached, evicted, admitted, preempted and reported as waiting is decided by the code that decides it in the
built-in engine. Only the model is missing: a step ends when a cost model says so, and the tokens of a reply are given
with its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.engine.blocks import BlockPool
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput
from worker.engine.scheduler import Chunk, Scheduler
from worker.events import EngineLoad, EventSink


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on its hardware, about a 70 B model on half a node: prefill is a serial resource, in chunks, between
    which the running requests decode."""

    prefill_tokens_per_second: float = 6000.0
    step_seconds: float = 0.008
    """Of any step, whatever it computes."""
    decode_seconds: float = 0.0004
    """More for each request that decodes in the step."""
    step_tokens: int = 512
    running_requests: int = 16
    """At most; few, so that queues are seen."""
    block_tokens: int = 16

    def seconds(self, chunks: Sequence[Chunk]) -> float:
        """How long a step takes."""
        decoding = sum(chunk.start >= chunk.request.num_prompt_tokens for chunk in chunks)
        prefill = sum(chunk.count for chunk in chunks) - decoding
        return self.step_seconds + prefill / self.prefill_tokens_per_second + decoding * self.decode_seconds


class Generation:
    """One request in the engine. `outputs` gets one item a token; at most as many as the reply has."""

    def __init__(self, request: EngineRequest, reply_ids: Sequence[int]) -> None:
        self.request = request
        self.reply_ids = reply_ids
        self.outputs: asyncio.Queue[TokenOutput] = asyncio.Queue()


class SimulatedEngine:
    """`run` is the one task that takes steps; its owner cancels and watches it. Bounded by the requests of its callers,
    each of whom calls `abort` at the end."""

    def __init__(self, machine: Machine, sink: EventSink, *, cache_tokens: int) -> None:
        """`sink` gets the cache's events of each step, before the step's tokens are given out."""
        self.machine = machine
        self.late_seconds = 0.0
        """The latest that a step ended, after its time: what a busy machine adds to the figures."""
        self._sink = sink
        self._work = asyncio.Event()
        self._generations: dict[int, Generation] = {}
        self._aborted: list[EngineRequest] = []
        self._next_id = 0
        self._scheduler = self._new_scheduler(cache_tokens)

    @property
    def idle(self) -> bool:
        """Whether no request is in it."""
        return not self._scheduler.has_work()

    def start_over(self, cache_tokens: int, running_requests: int) -> None:
        """An empty cache of this size, and so many requests at a time; only while it is idle."""
        assert self.idle
        self.machine = replace(self.machine, running_requests=running_requests)
        self._scheduler = self._new_scheduler(cache_tokens)
        self.late_seconds = 0.0

    def _new_scheduler(self, cache_tokens: int) -> Scheduler:
        machine = self.machine
        return Scheduler(
            BlockPool(cache_tokens // machine.block_tokens + 1),
            block_tokens=machine.block_tokens,
            max_batch_requests=machine.running_requests,
            max_step_tokens=machine.step_tokens,
        )

    def load(self) -> EngineLoad:
        """The load now."""
        return self._scheduler.load()

    def submit(self, prompt_ids: Sequence[int], reply_ids: Sequence[int], *, salt: str = "") -> Generation:
        """Queue a prompt, whose reply will be `reply_ids`. Raises ValueError for one that the cache cannot hold."""
        self._next_id += 1
        sampling = SamplingParams(len(reply_ids), ignore_eos=True)
        request = EngineRequest(self._next_id, prompt_ids, sampling, block_tokens=self.machine.block_tokens, salt=salt)
        self._scheduler.add(request)
        generation = self._generations[self._next_id] = Generation(request, reply_ids)
        self._work.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """End a request before the next step, in whatever state it is; does nothing to a finished one."""
        if self._generations.pop(generation.request.request_id, None) is not None:
            self._aborted.append(generation.request)

    async def run(self) -> None:
        """Take steps while there is work, until cancelled."""
        clock = asyncio.get_running_loop().time
        ends_at = clock()
        while True:
            while self._aborted:
                self._scheduler.abort(self._aborted.pop())
            if not self._scheduler.has_work():
                self._work.clear()
                await self._work.wait()
                ends_at = clock()
                continue
            chunks = self._scheduler.schedule()
            # From the end of the last step, not from now: what this process takes for itself is not the model's.
            ends_at += self.machine.seconds(chunks)
            late = clock() - ends_at
            self.late_seconds = max(self.late_seconds, late)
            await asyncio.sleep(max(0.0, -late))
            self._commit(chunks)

    def _commit(self, chunks: Sequence[Chunk]) -> None:
        sampled = {chunk.request.request_id: self._next_token(chunk.request) for chunk in chunks if chunk.samples}
        outputs = self._scheduler.commit(chunks, sampled)
        if events := self._scheduler.pool.drain_events():
            self._sink(events)
        for request_id, output in outputs.items():
            ended = output.finish_reason is not None
            generation = self._generations.pop(request_id, None) if ended else self._generations.get(request_id)
            if generation is not None:  # else its client left during the step
                generation.outputs.put_nowait(output)

    def _next_token(self, request: EngineRequest) -> int:
        generation = self._generations.get(request.request_id)
        return 0 if generation is None else generation.reply_ids[request.num_generated_tokens]
