"""Index, gateway and agents beside real engines; conversations compare what is predicted with what is reported."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import yaml
import zmq.asyncio

from indexer.reader.pool_index import PoolIndex
from tests.indexer.support import follower
from tests.live.engine import BLOCK_TOKENS, Engine, Truth, answers
from tests.live.tally import TALLY, Row
from tests.ports import free_ports
from tests.support import eventually
from warmroute.cli.children import Child, stop_all

INDEX_TOKENS = 64
POOL = "live"
MODEL = os.environ.get("WARMROUTE_LIVE_VLLM_NAME", "tiny-qwen")
READY_SECONDS = 60.0
# From a reply to the index: the engine's step, a delta, the log; far more than it takes.
SETTLE_SECONDS = 30.0
WORDS = ("river", "stone", "cloud", "market", "silver", "garden", "winter", "engine", "paper", "light")

# Paths whose fields differ; they give no token ids.
LIMITS: dict[str, dict[str, Any]] = {"/v1/responses": {"max_output_tokens": 4}, "/v1/messages": {"max_tokens": 4}}

Kind = Literal["chat", "text", "tokens", "responses", "messages"]


def words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


class Reply:
    """One answer of any API; tokens all over. `prompt` and `tokens` are empty where an API does not give them."""

    def __init__(self, answer: dict[str, Any], headers: Any) -> None:
        usage = answer["usage"]
        self.worker: str = headers["x-warmroute-worker"]
        self.predicted = int(headers["x-warmroute-matched-tokens"])
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        if "choices" in answer:
            (choice,) = answer["choices"]
            self.reported: int = (usage.get("prompt_tokens_details") or {})["cached_tokens"]
            self.prompt_length: int = usage["prompt_tokens"]
            self.prompt = choice.get("prompt_token_ids") or answer["prompt_token_ids"]
            self.tokens = choice["token_ids"]
            self.text: str = choice["message"]["content"] or "" if "message" in choice else choice["text"]
            assert len(self.prompt) == self.prompt_length
        elif answer.get("object") == "response":
            self.reported, self.prompt_length = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
            self.text = "".join(part["text"] for item in answer["output"] for part in item.get("content") or ())
        else:
            read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
            self.reported, self.prompt_length = read, usage["input_tokens"] + read + written
            self.text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")


class Fleet:
    """Everything that runs. Its engines outlive it."""

    def __init__(self, name: str, engines: Sequence[Engine], index_tokens: int) -> None:
        self.name = name
        self.engines = engines
        self.index_tokens = index_tokens
        self.port, self.admin = 0, 0
        self.agents: dict[str, Agent] = {}
        self.redis_url = ""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Once all is ready."""
        await eventually(lambda: answers(f"http://127.0.0.1:{self.admin}/readyz"), within=READY_SECONDS)
        for agent in self.agents.values():
            await eventually(agent.ready, within=READY_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http,
            follower(self.redis_url, POOL) as index,
        ):
            with zmq.asyncio.Context() as context:
                session = Session(self, http, index, context)
                await session.all_serve()
                await session.settled()
                before = sum(truth.removed for truth in session.truths.values())
                try:
                    yield session
                    assert await session.metric(f"http://127.0.0.1:{self.admin}/metrics", "load_only_total") == 0
                finally:
                    TALLY.removed[self.name] = sum(truth.removed for truth in session.truths.values()) - before


class Agent:
    """One agent's process, which may be killed and started again."""

    def __init__(self, file: Path, admin_port: int) -> None:
        self._file = file
        self._admin_port = admin_port
        self.child: Child | None = None

    def start(self) -> Child:
        arguments = ["warmroute", "agent", "--config", str(self._file)]
        self.child = Child("agent", arguments, self._file.with_suffix(f".{time.monotonic_ns()}.log"))
        return self.child

    def ready(self) -> bool:
        return answers(f"http://127.0.0.1:{self._admin_port}/readyz")


@dataclass
class Session:
    """A client of the fleet, which also sees the engines' truth and the index."""

    fleet: Fleet
    http: aiohttp.ClientSession
    index: PoolIndex
    context: zmq.asyncio.Context
    truths: dict[str, Truth] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Engines that are not there: the index must hold nothing of them."""

    def __post_init__(self) -> None:
        self.truths = {engine.name: Truth(engine) for engine in self.fleet.engines}

    async def ask(self, path: str, *, at_once: bool = False, **body: Any) -> Reply:
        """One request; what was predicted is what vLLM found, but for an index block that is cached in part.

        `at_once`: with others that evict what it finds before its turn comes, so that this says nothing.
        """
        body = {
            "model": MODEL,
            "temperature": 0,
            **LIMITS.get(path, {"max_tokens": 4, "return_token_ids": True}),
            **body,
        }
        async with self.http.post(f"http://127.0.0.1:{self.fleet.port}{path}", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            reply = Reply(answer, response.headers)
        tokens = (reply.prompt_length, reply.predicted, reply.reported)
        row = Row(self.fleet.name, self.fleet.index_tokens, *tokens, at_once)
        TALLY.rows.append(row)
        assert at_once or 0 <= row.difference < max(self.fleet.index_tokens, BLOCK_TOKENS), row
        return reply

    async def all_serve(self) -> None:
        """Wait until the gateway sees every engine that is not down, and keys their prompts."""

        async def seen() -> bool:
            async with self.http.get(f"http://127.0.0.1:{self.fleet.admin}/readyz") as reply:
                pool = (await reply.json())["pools"][POOL]
            ready = pool["ready_workers"] == len(self.fleet.engines) - len(self.down)
            return ready and (pool["index"], pool["routing"]) == ("connected", "by cache and load")

        await eventually(seen, within=READY_SECONDS)

    async def settled(self, *asked: Conversation) -> None:
        """Wait until the index has exactly what the engines hold, and the gateway predicts by nothing else.

        `asked`: what was asked last, whose blocks the engines must have published by then.
        """

        async def index_is_true() -> bool:
            for name, truth in self.truths.items():
                if name in self.down:
                    held: set[int] = set()
                else:
                    await truth.read(self.context)
                    if name not in self.index.mirror.workers:
                        return False
                    held = truth.held(self.fleet.index_tokens, self.index.mirror.workers[name].fingerprint)
                if set(self.index.mirror.held(name, "device") if name in self.index.mirror.workers else ()) != held:
                    return False
            return all(one.worker in self.down or one.is_told(self.truths[one.worker]) for one in asked)

        async def nothing_is_guessed() -> bool:
            return await self.metric(f"http://127.0.0.1:{self.fleet.admin}/metrics", "predicted_keys") == 0

        await eventually(index_is_true, within=SETTLE_SECONDS)
        await eventually(nothing_is_guessed, within=SETTLE_SECONDS)

    async def metric(self, url: str, name: str) -> float:
        """The sum of all series whose name ends so."""
        async with self.http.get(url) as reply:
            lines = (await reply.text()).splitlines()
        series = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return sum(float(value) for labels, value in series if labels.partition("{")[0].endswith(name))


@dataclass
class Conversation:
    """Turns that each contain the ones before."""

    session: Session
    source: random.Random
    kind: Kind = "chat"
    fields: dict[str, Any] = field(default_factory=dict)
    opening_words: int = 300
    messages: list[dict[str, str]] = field(default_factory=list)
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    """Of the last turn: prompt and reply."""
    worker: str = ""
    reply: Reply | None = None
    batches_before: dict[str, int] = field(default_factory=dict)
    """What had been read of each engine before the last turn."""

    async def turn(self) -> Reply:
        """Say some more, and take in the reply."""
        said = words(self.source, 30 if self.messages else self.opening_words)
        self.batches_before = {name: truth.batches for name, truth in self.session.truths.items()}
        path, body = "/v1/completions", {"prompt": self.prompt + said}
        if self.kind in PATHS:
            first = "system" if self.kind == "chat" else "user"
            self.messages.append({"role": "user" if self.messages else first, "content": said})
            path, body = PATHS[self.kind], {"input" if self.kind == "responses" else "messages": self.messages}
        elif self.kind == "tokens":
            body["prompt"] = [
                *self.tokens,
                *self.source.choices(range(1000), k=30 if self.tokens else self.opening_words),
            ]
        return self.note(await self.session.ask(path, **body, **self.fields), said)

    async def again(self) -> Reply:
        """The last turn's prompt once more."""
        assert self.reply is not None
        return await self.session.ask("/v1/completions", prompt=self.reply.prompt, **self.fields)

    def note(self, reply: Reply, said: str) -> Reply:
        self.messages.append({"role": "assistant", "content": reply.text})
        self.prompt += f"{said}{reply.text}"
        self.tokens = reply.prompt + reply.tokens
        self.worker, self.reply = reply.worker, reply
        return reply

    def is_told(self, truth: Truth) -> bool:
        """Whether the engine has published what the last turn computed."""
        return truth.was_told(self.computed) if self.tokens else truth.batches > self.batches_before[self.worker]

    @property
    def computed(self) -> list[int]:
        """The full blocks that the last turn left; the last token of a reply is never computed."""
        return self.tokens[: (len(self.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@contextmanager
def fleet_of(engines: Sequence[Engine], index_tokens: int, folder: Path, redis_url: str, name: str) -> Iterator[Fleet]:
    """Processes of its own, each with a log in the folder."""
    fleet = Fleet(name, engines, index_tokens)
    indexer, indexer_admin, fleet.port, fleet.admin, *agent_ports = free_ports(4 + len(engines))
    model_path = os.environ["WARMROUTE_LIVE_VLLM_MODEL"]
    fleet.redis_url = redis_url
    workers = [{"address": f"127.0.0.1:{engine.port}", "worker_id": engine.name} for engine in engines]
    # Tokenizer and template come from the agents, through the index.
    pool = {"name": POOL, "model": MODEL, "workers": workers}
    gateway = {
        "port": fleet.port, "admin_port": fleet.admin, "indexers": [f"127.0.0.1:{indexer}"], "pools": [pool],
        # Engines and gateway share few cores here; what is keyed too late is routed by load, which is not the question.
        "prompt_budget_seconds": 1.0,
    }  # fmt: skip
    shared = {
        "redis": {"url": redis_url}, "gateway": gateway,
        "indexer": {"port": indexer, "admin_port": indexer_admin, "open": True},
    }  # fmt: skip
    children: list[Child] = []
    try:
        for command in ("indexer", "gateway"):
            file = _written(folder / f"{command}.yaml", shared)
            children.append(Child(command, ["warmroute", command, "--config", str(file)], file.with_suffix(".log")))
        for engine, admin_port in zip(engines, agent_ports, strict=True):
            agent = {
                "engine_url": engine.url, "indexer": f"127.0.0.1:{indexer}", "pool": POOL, "model_path": model_path,
                "worker_id": engine.name, "admin_port": admin_port, "index_block_tokens": index_tokens,
            }  # fmt: skip
            file = _written(folder / f"agent-{engine.name}.yaml", {"agent": agent})
            fleet.agents[engine.name] = Agent(file, admin_port)
            fleet.agents[engine.name].start()
        yield fleet
    finally:
        stop_all([*children, *(agent.child for agent in fleet.agents.values() if agent.child is not None)])


def _written(file: Path, config: dict[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(config))
    return file
