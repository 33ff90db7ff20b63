"""A simulated engine: one queue, one prompt computed at a time in chunks, decoding in a batch, a paged cache.

Decoding is followed by a count of steps that all streams of the batch share: `_steps` moves on with time divided by
what a step takes now, and a stream ends at the count that it began with plus its tokens. So an event is needed only
where the step's time changes or a stream ends.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from gateway.replay.block_cache import BlockCache
from gateway.replay.events import Events
from gateway.replay.machine import Machine
from gateway.replay.trace import TraceRequest
from gateway.routing.state.load_report import Report


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through a worker; times are simulated seconds."""

    request: TraceRequest
    arrived_at: float
    number: int
    on_first_byte: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None
    waiting_tokens: int = 0
    cached_tokens: int = 0
    first_byte_at: float = 0.0
    ended_at: float = 0.0
    unnamed_blocks: int = 0

    @property
    def kv_tokens(self) -> int:
        """What its decode steps read, in the mean over the reply."""
        return self.request.prompt_tokens + self.request.reply_tokens // 2


@dataclass(slots=True)
class Changes:
    """What a worker says of its cache: where the simulation takes it from is its business."""

    stored: Callable[[str, Sequence[int]], None]
    removed: Callable[[str, Sequence[int]], None]


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """See the module. `busy_seconds`: computing prompts, by itself."""

    name: str
    machine: Machine
    block_tokens: int
    events: Events
    changes: Changes
    busy_seconds: float = 0.0
    cache: BlockCache = field(init=False)
    _queue: deque[Job] = field(default_factory=deque)
    _waiting_tokens: int = 0
    """Of the queue."""
    _computing: Job | None = None
    _computing_until: float = 0.0
    _streams: list[tuple[float, int, Job]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _kv_tokens: int = 0
    _steps: float = 0.0
    _steps_at: float = 0.0
    _step_seconds: float = 1.0
    _version: int = 0

    def __post_init__(self) -> None:
        self.cache = BlockCache(self.machine.cache_tokens // self.block_tokens)

    def fits(self, request: TraceRequest) -> bool:
        """Whether the request fits at all, alone."""
        return request.prompt_tokens + request.reply_tokens + 2 * self.block_tokens <= self.machine.cache_tokens

    def submit(self, job: Job) -> None:
        """Queue a request."""
        request = job.request
        leading = self.cache.leading(request.keys) * self.block_tokens
        job.waiting_tokens = request.prompt_tokens - min(leading, request.prompt_tokens - 1)
        self._queue.append(job)
        self._waiting_tokens += job.waiting_tokens
        self._start()

    def report(self, measured_at: float) -> Report:
        """What the worker says of its load."""
        waiting = self._waiting_tokens
        if self._computing is not None:
            left = self._computing_until - self.events.now
            waiting += round(left / self.machine.prefill_token)
        running = len(self._streams) + (self._computing is not None)
        return Report(waiting, running, len(self._queue), self.cache.use, measured_at)

    def _start(self) -> None:
        """Compute the next prompt if there is one, a stream's place for it, and memory."""
        machine = self.machine
        if self._computing is not None or not self._queue or len(self._streams) >= machine.max_streams:
            return
        job = self._queue[0]
        request, size = job.request, self.block_tokens
        unnamed = -(-(request.prompt_tokens - len(request.keys) * size + request.reply_tokens) // size)
        admitted = self.cache.admit(request.keys, unnamed)
        if admitted is None:
            return  # the head of the line waits for memory, and all behind it
        self._queue.popleft()
        self._waiting_tokens -= job.waiting_tokens
        hits, evicted = admitted
        if evicted:
            self.changes.removed(self.name, evicted)
        job.unnamed_blocks = unnamed
        job.cached_tokens = min(hits * size, request.prompt_tokens - 1)
        seconds = machine.prefill(request.prompt_tokens - job.cached_tokens, job.cached_tokens)
        # Its chunks share their steps with the batch's reading of KV.
        seconds *= 1 + machine.step_kv_token * self._kv_tokens / machine.chunk_seconds
        now = self.events.now
        self._advance()
        self._computing, self._computing_until = job, now + seconds
        self.busy_seconds += seconds
        self.events.at(now + seconds, self._computed, request.keys[hits:])
        self._reschedule()

    def _computed(self, new_keys: Sequence[int]) -> None:
        """A prompt is done: its first token leaves, its blocks are there for others."""
        job = self._computing
        if job is None:
            return
        self._advance()
        self._computing = None
        job.first_byte_at = self.events.now
        if new_keys:
            self.changes.stored(self.name, new_keys)
        job.on_first_byte()
        if job.request.reply_tokens <= 1:
            self._end(job)
        else:
            heapq.heappush(self._streams, (self._steps + job.request.reply_tokens - 1, next(self._numbers), job))
            self._kv_tokens += job.kv_tokens
        self._reschedule()
        self._start()

    def _decoded(self, version: int) -> None:
        """Streams have come to their end, unless the step's time changed since this was planned."""
        if version != self._version:
            return
        self._advance()
        while self._streams and self._streams[0][0] <= self._steps + 1e-6:
            job = heapq.heappop(self._streams)[2]
            self._kv_tokens -= job.kv_tokens
            self._end(job)
        self._reschedule()
        self._start()

    def _end(self, job: Job) -> None:
        self.cache.release(job.request.keys, job.unnamed_blocks)
        job.ended_at = self.events.now
        job.on_end()

    def _advance(self) -> None:
        if self._streams:
            self._steps += (self.events.now - self._steps_at) / self._step_seconds
        self._steps_at = self.events.now

    def _reschedule(self) -> None:
        machine = self.machine
        streams = len(self._streams)
        seconds = machine.step_fixed + machine.step_stream * streams + machine.step_kv_token * self._kv_tokens
        self._step_seconds = seconds + (machine.chunk_seconds if self._computing is not None else 0.0)
        self._version += 1
        if streams:
            left = max(0.0, self._streams[0][0] - self._steps)
            self.events.at(self.events.now + left * self._step_seconds, self._decoded, self._version)
