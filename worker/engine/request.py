"""A request inside the engine: its tokens, its blocks and how far it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from worker.engine.blocks import Block
from worker.engine.hashing import block_hash, root_hash

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens.

    `max_tokens`: most tokens to generate, at least 1. `temperature` 0 is greedy. `top_p`: keep the smallest set of
    tokens whose probabilities add up to it. `seed`: None draws one. `ignore_eos`: go on to `max_tokens`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False


class RequestStatus(Enum):
    """Where a request is: in the queue (new or preempted), holding blocks, or done."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One generated token. `finish_reason` is set on the last one; `cached_tokens` counts prompt tokens from cache."""

    token_id: int
    finish_reason: FinishReason | None
    cached_tokens: int


class EngineRequest:
    """One sequence. `token_ids` holds the prompt and what was generated; `blocks` is the block table: block i keeps
    tokens i * block_tokens and following. KV exists for the first `num_computed_tokens` tokens."""

    __slots__ = (
        "adapter",
        "block_hashes",
        "block_tokens",
        "blocks",
        "cached_tokens",
        "expected_hit_blocks",
        "finish_reason",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "private_blocks",
        "publishes",
        "random",
        "request_id",
        "root",
        "salt",
        "sampling",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        block_tokens: int,
        salt: str = "",
        adapter: str = "",
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("a prompt needs at least one token")
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling = sampling
        self.block_tokens = block_tokens
        self.salt = salt
        self.adapter = adapter
        self.root = root_hash(salt=salt, adapter=adapter)
        self.random = random.Random(sampling.seed)
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens found in cache at the first admission; None before it."""
        self.blocks: list[Block] = []
        self.block_hashes: list[bytes] = []
        self.num_computed_tokens = 0
        self.num_published_blocks = 0
        """Leading blocks that were offered to the cache."""
        self.private_blocks: list[int] = []
        """Positions of offered blocks that another physical block of the same hash kept out of the cache."""
        self.publishes = True
        """False once the cache was reset under this request's blocks: they must not be reused."""
        self.expected_hit_blocks = 0
        self.extend_hashes()

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and reply so far."""
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the reply so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens without KV: 1 in decode, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_hit_blocks(self) -> int:
        """Full blocks that a cache hit may cover: at least one token must be computed, else there are no logits."""
        return (len(self.token_ids) - 1) // self.block_tokens

    def parent_hash(self, index: int) -> bytes | None:
        """Hash of the block before block `index`; None for the first."""
        return self.block_hashes[index - 1] if index else None

    def block_token_ids(self, index: int) -> tuple[int, ...]:
        """Tokens of full block `index`."""
        start = index * self.block_tokens
        return tuple(self.token_ids[start : start + self.block_tokens])

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.token_ids.append(token_id)
        self.extend_hashes()

    def extend_hashes(self) -> None:
        """Hash the blocks that became full. Called whenever tokens were added."""
        for index in range(len(self.block_hashes), len(self.token_ids) // self.block_tokens):
            parent = self.block_hashes[index - 1] if index else self.root
            self.block_hashes.append(block_hash(parent, self.block_token_ids(index)))

    def drop_blocks(self) -> list[Block]:
        """Forget the block table and all progress on it; returns the blocks, which the caller frees."""
        blocks, self.blocks = self.blocks, []
        self.num_computed_tokens = 0
        self.num_published_blocks = 0
        self.private_blocks = []
        self.publishes = True
        return blocks
