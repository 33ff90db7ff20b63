"""Continuous batching: which tokens of which requests are computed in the next step.

Pure: no tensors, no clock. Each step has a budget of tokens. Running requests come first, decodes before chunks of
prompts, so that a long prompt slows its neighbours down but never stops them; what is left admits waiting requests in
order. Admission takes blocks for all tokens the request has; only decoding takes more, and when none is left the
youngest running request gives its blocks back and is recomputed later, from what the cache still has of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.engine.blocks import BlockPool
from worker.engine.request import EngineRequest, FinishReason, RequestStatus, TokenOutput
from worker.events import EngineLoad


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` to `start + count` of a request, to be computed in this step."""

    request: EngineRequest
    start: int
    count: int

    @property
    def end(self) -> int:
        """Tokens of the request that have KV after the step."""
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Whether the chunk ends the known tokens, so that the next one is sampled."""
        return self.end == self.request.num_tokens


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start. Queries and hits are in prompt tokens, counted at a request's first admission."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class Scheduler:
    """Owns the requests and the pool. `waiting` is bounded by whoever adds; `running` by `max_batch_requests`."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_tokens: int,
        max_batch_requests: int,
        max_step_tokens: int,
        eos_token_ids: frozenset[int] = frozenset(),
        prefix_caching: bool = True,
    ) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.max_batch_requests = max_batch_requests
        self.max_step_tokens = max_step_tokens
        self.eos_token_ids = eos_token_ids
        self.prefix_caching = prefix_caching
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        """In the order of admission: the last is the youngest."""
        self.stats = SchedulerStats()

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError for one that could never run."""
        most = request.num_prompt_tokens + request.sampling.max_tokens
        capacity = self.pool.num_usable * self.block_tokens
        if most > capacity:
            raise ValueError(f"{most} tokens of prompt and reply do not fit into {capacity} tokens of KV cache")
        self.waiting.append(request)

    def abort(self, request: EngineRequest) -> None:
        """End a request in whatever state it is; does nothing to a finished one."""
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        elif request.status is RequestStatus.RUNNING:
            self._release(request)
        else:
            return
        request.status = RequestStatus.FINISHED
        request.finish_reason = "abort"

    def reset_prefix_cache(self) -> None:
        """Drop every cached identity. Running requests go on with their blocks, which are never offered again: the
        reset may mean that their KV is out of date."""
        self.pool.reset()
        for request in self.running:
            request.publishes = False

    def schedule(self) -> list[Chunk]:
        """Choose the next step's chunks, allocating their blocks. Empty when nothing can run."""
        chunks: list[Chunk] = []
        budget = self.max_step_tokens
        for request in [request for request in self.running if request.num_uncomputed_tokens == 1]:
            if budget == 0:
                break
            if request.status is RequestStatus.RUNNING and self._grow(request):
                chunks.append(Chunk(request, request.num_computed_tokens, 1))
                budget -= 1
        for request in self.running:
            if budget and request.num_uncomputed_tokens > 1:
                count = min(budget, request.num_uncomputed_tokens)
                chunks.append(Chunk(request, request.num_computed_tokens, count))
                budget -= count
        while budget and self._admit():  # never what was just preempted: one of its blocks is taken
            request = self.running[-1]
            count = min(budget, request.num_uncomputed_tokens)
            chunks.append(Chunk(request, request.num_computed_tokens, count))
            budget -= count
        return chunks

    def commit(self, chunks: Sequence[Chunk], sampled: Mapping[int, int]) -> dict[int, TokenOutput]:
        """Account for a computed step: offer full blocks to the cache, append tokens, finish requests.

        `sampled` has the token of each request whose chunk samples, by request id; so has the result.
        """
        outputs: dict[int, TokenOutput] = {}
        for chunk in chunks:
            request = chunk.request
            request.num_computed_tokens = chunk.end
            self._publish(request)
            if chunk.request.request_id not in sampled:
                continue
            outputs[request.request_id] = self._append(request, sampled[request.request_id])
        return outputs

    def load(self) -> EngineLoad:
        """The load now. Its waiting tokens are the prompt tokens, of queued and of admitted requests, that are neither
        cached nor computed. Takes time linear in the requests."""
        tokens = 0
        for request in self.waiting:
            tokens += request.num_tokens - self._expected_hits(request) * self.block_tokens
        tokens += sum(left for request in self.running if (left := request.num_uncomputed_tokens) > 1)
        return EngineLoad(len(self.running), len(self.waiting), tokens, self.pool.usage)

    def check_integrity(self) -> None:
        """Raise AssertionError where requests and pool contradict each other."""
        self.pool.check_integrity()
        held: dict[int, int] = {}
        for request in self.running:
            for block in request.blocks:
                held[block.block_id] = held.get(block.block_id, 0) + 1
        for block in self.pool.blocks[1:]:
            if block.ref_count != held.get(block.block_id, 0):
                raise AssertionError(f"{block} is in {held.get(block.block_id, 0)} block tables")
        if any(request.blocks for request in self.waiting):
            raise AssertionError("a waiting request holds blocks")

    def _admit(self) -> bool:
        """Move the first waiting request to the running ones if a place and its blocks are free."""
        if not self.waiting or len(self.running) >= self.max_batch_requests:
            return False
        request = self.waiting[0]
        hits = self.pool.match(request.block_hashes[: request.max_hit_blocks]) if self.prefix_caching else []
        missing = -(-request.num_tokens // self.block_tokens) - len(hits)
        if missing + sum(block.ref_count == 0 for block in hits) > self.pool.num_free:
            return False
        self.waiting.popleft()
        self.pool.touch(hits)
        request.blocks = [*hits, *self.pool.allocate(missing)]
        request.num_published_blocks = len(hits)
        request.num_computed_tokens = len(hits) * self.block_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        if request.cached_tokens is None:
            request.cached_tokens = request.num_computed_tokens
            self.stats.prefix_cache_queries += request.num_prompt_tokens
            self.stats.prefix_cache_hits += request.cached_tokens
        return True

    def _grow(self, request: EngineRequest) -> bool:
        """Make room for the next token, preempting the youngest while there is none; False if that hit `request`."""
        while request.num_tokens > len(request.blocks) * self.block_tokens:
            if self.pool.num_free:
                request.blocks += self.pool.allocate(1)
                break
            self._preempt(self.running[-1])
            if request.status is not RequestStatus.RUNNING:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        self._release(request)
        request.status = RequestStatus.WAITING
        request.expected_hit_blocks = 0
        self.waiting.appendleft(request)
        self.stats.preemptions += 1

    def _release(self, request: EngineRequest) -> None:
        self.running.remove(request)
        self.pool.free(request.drop_blocks())

    def _publish(self, request: EngineRequest) -> None:
        """Offer the blocks that became full, and again those that another request's equal block kept out, in case
        that one was evicted since: a child is cached only under a cached parent."""
        if not (self.prefix_caching and request.publishes):
            return
        full = request.num_computed_tokens // self.block_tokens
        if full == request.num_published_blocks:
            return
        offered = [*request.private_blocks, *range(request.num_published_blocks, full)]
        request.private_blocks = [index for index in offered if not self._offer(request, index)]
        request.num_published_blocks = full

    def _offer(self, request: EngineRequest, index: int) -> bool:
        return self.pool.cache_full_block(
            request.blocks[index],
            request.block_hashes[index],
            request.parent_hash(index),
            request.block_token_ids(index),
            salt=request.salt,
            adapter=request.adapter,
        )

    def _append(self, request: EngineRequest, token_id: int) -> TokenOutput:
        if request.num_generated_tokens == 0:
            self.stats.prompt_tokens += request.num_prompt_tokens
        self.stats.generation_tokens += 1
        request.append(token_id)
        reason: FinishReason | None = None
        if token_id in self.eos_token_ids and not request.sampling.ignore_eos:
            reason = "stop"
        elif request.num_generated_tokens >= request.sampling.max_tokens:
            reason = "length"
        if reason is not None:
            self._release(request)
            request.status = RequestStatus.FINISHED
            request.finish_reason = reason
        return TokenOutput(token_id, reason, request.cached_tokens or 0)

    def _expected_hits(self, request: EngineRequest) -> int:
        """Blocks that the request would hit now: its last answer, moved; amortised constant time."""
        if not self.prefix_caching:
            return 0
        hits, hashes = request.expected_hit_blocks, request.block_hashes
        while hits and hashes[hits - 1] not in self.pool:
            hits -= 1
        while hits < request.max_hit_blocks and hashes[hits] in self.pool:
            hits += 1
        request.expected_hit_blocks = hits
        return hits
