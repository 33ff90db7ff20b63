"""The engine core: one `step` schedules, computes, samples, and only then tells what became cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from warmroute.config.worker import WorkerConfig
from worker.engine.batch import build_batch
from worker.engine.blocks import BlockPool
from worker.engine.errors import ModelError, PromptTooLongError
from worker.engine.kv_cache import KvCache
from worker.engine.loader import load_weights
from worker.engine.model import LlamaModel
from worker.engine.model_config import ModelSpec
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput
from worker.engine.sampler import sample
from worker.engine.scheduler import Scheduler, SchedulerStats
from worker.events import CacheEvent, EngineLoad


class Engine:
    """A paged prefix-caching engine over one model. Not thread-safe: one thread owns it (see `runner`)."""

    def __init__(
        self, spec: ModelSpec, model: LlamaModel, cache: KvCache, scheduler: Scheduler, *, max_context_tokens: int
    ) -> None:
        self.spec = spec
        self.max_context_tokens = max_context_tokens
        self._model = model
        self._cache = cache
        self._scheduler = scheduler
        self._requests: dict[int, EngineRequest] = {}

    @classmethod
    def from_folder(cls, folder: Path, config: WorkerConfig, *, prefix_caching: bool = True) -> Engine:
        """Load a Hugging Face folder: fp32 on a CPU, bf16 elsewhere. Sets PyTorch's thread count of the process.

        The context is at most `config.max_context_tokens`, what the model was trained for, and what the cache holds.
        Raises ModelError for a folder or a device that cannot be used.
        """
        torch.set_num_threads(config.threads)
        spec = ModelSpec.from_folder(folder)
        device = _device(config.device)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        num_blocks = config.kv_cache_tokens // config.block_tokens
        max_context = min(config.max_context_tokens, spec.max_position_embeddings, num_blocks * config.block_tokens)
        weights = load_weights(folder, spec, device=device, dtype=dtype)
        scheduler = Scheduler(
            BlockPool(num_blocks + 1),
            block_tokens=config.block_tokens,
            max_batch_requests=config.max_batch_requests,
            max_step_tokens=config.max_step_tokens,
            eos_token_ids=spec.eos_token_ids,
            prefix_caching=prefix_caching,
        )
        cache = KvCache(spec, num_blocks=num_blocks + 1, block_tokens=config.block_tokens, device=device, dtype=dtype)
        model = LlamaModel(spec, weights, max_context_tokens=max_context)
        return cls(spec, model, cache, scheduler, max_context_tokens=max_context)

    @property
    def block_tokens(self) -> int:
        """Tokens in one KV block."""
        return self._scheduler.block_tokens

    @property
    def capacity_blocks(self) -> int:
        """KV blocks that requests can use."""
        return self._scheduler.pool.num_usable

    @property
    def max_batch_requests(self) -> int:
        """Most requests computed together."""
        return self._scheduler.max_batch_requests

    @property
    def stats(self) -> SchedulerStats:
        """A copy of the counters."""
        return replace(self._scheduler.stats)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work()

    def load(self) -> EngineLoad:
        """The load now."""
        return self._scheduler.load()

    def check_length(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raise PromptTooLongError unless prompt and reply fit into the context."""
        if prompt_tokens + max_tokens > self.max_context_tokens:
            raise PromptTooLongError(
                f"the context holds {self.max_context_tokens} tokens; the prompt has {prompt_tokens} and up to "
                f"{max_tokens} are to be generated: shorten the prompt or lower max_tokens"
            )

    def new_request(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        salt: str = "",
        adapter: str = "",
    ) -> EngineRequest:
        """Check and hash a request, under an id of its own; touches no state, so any thread may call it.

        Raises PromptTooLongError, and ValueError for an empty prompt or an id outside the vocabulary.
        """
        self.check_length(len(prompt_token_ids), sampling.max_tokens)
        if not all(0 <= token < self.spec.vocab_size for token in prompt_token_ids):
            raise ValueError(f"token ids must lie in 0..{self.spec.vocab_size - 1}")
        return EngineRequest(
            request_id, prompt_token_ids, sampling, block_tokens=self.block_tokens, salt=salt, adapter=adapter
        )

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request of `new_request`."""
        self._scheduler.add(request)
        self._requests[request.request_id] = request

    def abort(self, request_id: int) -> None:
        """End a request, whatever its state; unknown and finished ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._scheduler.abort(request)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block. Works with requests running: they go on with blocks that nobody else can hit."""
        self._scheduler.reset_prefix_cache()

    @torch.inference_mode()
    def step(self) -> dict[int, TokenOutput]:
        """Compute one step; returns the new token of each request that got one."""
        chunks = self._scheduler.schedule()
        if not chunks:
            return {}
        batch = build_batch(chunks, block_tokens=self.block_tokens, device=self._cache.device)
        logits = self._model.forward(batch, self._cache)
        requests = [chunk.request for chunk in batch.sampled]
        tokens = sample(logits, requests) if requests else []
        sampled = {request.request_id: token for request, token in zip(requests, tokens, strict=True)}
        outputs = self._scheduler.commit(chunks, sampled)
        for request_id, output in outputs.items():
            if output.finish_reason is not None:
                del self._requests[request_id]
        return outputs

    def drain_events(self) -> list[CacheEvent]:
        """What changed in the cache since the last call, in order; blocks count as stored once they are computed."""
        return self._scheduler.pool.drain_events()

    def check_integrity(self) -> None:
        """Raise AssertionError where the engine's books contradict each other; linear in their size."""
        self._scheduler.check_integrity()


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"worker.device {name!r} cannot be used: {error}") from error
    return device
