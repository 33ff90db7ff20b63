"""Helpers of the engine's tests: the tiny model's parts, and ways to run an engine to the end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from warmroute.config.worker import WorkerConfig
from worker.engine.blocks import BlockPool
from worker.engine.engine import Engine
from worker.engine.request import SamplingParams
from worker.engine.runner import EngineRunner, create_engine
from worker.engine.server import create_app, serve
from worker.engine.tokenizer import EngineTokenizer
from worker.events import CacheEvent, EventSink

SPECIAL_TOKENS = ["<|end|>", "<|user|>", "<|assistant|>"]
END = 0
VOCAB_SIZE = len(SPECIAL_TOKENS) + 256
MAX_POSITIONS = 512
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|user|>{{ message.role }}:{{ message.content }}{% endfor %}"
    "{% if tools %}tools:{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

MakeEngine = Callable[..., Engine]


def cached_hashes(pool: BlockPool) -> frozenset[bytes]:
    """The hashes that a new request could hit."""
    hashes = frozenset(block.block_hash for block in pool.blocks if block.block_hash is not None)
    assert all(block_hash in pool for block_hash in hashes)
    return hashes


def byte_tokenizer() -> Tokenizer:
    """One token a byte after the special ones: any sequence of ids is some sequence of bytes, valid text or not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def tiny_config(**changes: Any) -> WorkerConfig:
    """A worker's configuration at the tiny model's scale."""
    return WorkerConfig(**{"kv_cache_tokens": 2048, "max_context_tokens": MAX_POSITIONS, **changes})


def greedy(max_tokens: int) -> SamplingParams:
    """Exactly `max_tokens` greedy tokens."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def generate(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Greedy replies to prompts that are all there from the start."""
    for number, prompt in enumerate(prompts):
        engine.add_request(engine.new_request(number, prompt, greedy(max_tokens)))
    replies: list[list[int]] = [[] for _ in prompts]
    while engine.has_work():
        for number, output in engine.step().items():
            replies[number].append(output.token_id)
        engine.check_integrity()
    return replies


class Gate:
    """An event sink that holds the engine's thread while it is closed, and remembers the events."""

    def __init__(self) -> None:
        self.events: list[CacheEvent] = []
        self.failure: Exception | None = None
        self._open = threading.Event()
        self._open.set()

    def __call__(self, events: Sequence[CacheEvent]) -> None:
        self.events += events
        assert self._open.wait(30), "the test left the gate closed"
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


@asynccontextmanager
async def running_engine(folder: Path, sink: EventSink, **changes: Any) -> AsyncIterator[EngineRunner]:
    """A started engine; its books are checked after it has stopped."""
    runner = create_engine(tiny_config(**changes), folder, sink)
    runner.start()
    try:
        yield runner
    finally:
        await runner.stop()
    if runner.error is None:
        runner._engine.check_integrity()


@asynccontextmanager
async def running_server(
    folder: Path, sink: EventSink | None = None, *, token_timeout_seconds: float = 30.0, **changes: Any
) -> AsyncIterator[tuple[ClientSession, EngineRunner]]:
    """An engine behind a socket, and a client whose base URL it is."""
    async with running_engine(folder, sink or Gate(), **changes) as runner:
        app = create_app(
            runner, EngineTokenizer.from_folder(folder), model="tiny", token_timeout_seconds=token_timeout_seconds
        )
        server, port = await serve(app, "127.0.0.1", 0)
        try:
            async with ClientSession(f"http://127.0.0.1:{port}", timeout=ClientTimeout(30)) as client:
                yield client, runner
        finally:
            await server.cleanup()
