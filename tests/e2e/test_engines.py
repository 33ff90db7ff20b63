"""`warmroute agent` from an engine's sockets to a client: what a gateway predicts is what the real engine found.

Captures of a real vLLM are published by scripted engines over real sockets, in the order in which they and the requests
came; the agents, the indexer and the gateway are processes. A captured request knows how many tokens of its prompt the
real engine took from its cache.
"""

from __future__ import annotations

import asyncio
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import Engine, Fleet, fleet_of, scripted_engine
from tests.support import eventually
from tests.worker.adapters.support import Naive, Scenario, fixtures, scenario
from worker.model_cache import ensure_model

pytestmark = pytest.mark.timeout(300)

MODEL, ADAPTER = "tiny-qwen", "lora-a"
MODELS = [{"id": MODEL, "root": "/nowhere", "parent": None}, {"id": ADAPTER, "root": "/a", "parent": MODEL}]
SCENARIOS = {
    16: (
        *("01-cold", "02-repeat", "03-shared-prefix-mid-block", "03b-exact-multiple-repeat", "03d-last-token"),
        *("04-cache-salt", "05-lora", "06-eviction", "06b-eviction-of-duplicates", "11-abort"),
        "16-session-and-full-report",
    ),
    32: ("b32-01-cold", "b32-02-repeat", "b32-03-shared-prefix-mid-block", "b32-03b-exact-multiple-repeat"),
    128: ("b128-01-cold", "b128-02-repeat", "b128-03-shared-prefix-mid-block", "b128-06-eviction"),
}
"""By the engine's block size. Left out: prompts that find tokens of requests beside them (12, 13), a cleared cache that
the engine says a step late (07), and what a hybrid model has less of than its full-attention group (17)."""
PUBLISHED_SECONDS = 0.05
"""From a reply to the last event of it that the capture saw, at most."""
REQUESTS = {16: 68, 32: 6, 128: 20}
"""At least so many requests are asked, and twice as many tokens found as an engine block has."""


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """The captured model's tokenizer, so that gateway and agents know whose token ids these are."""
    folder = tmp_path / "model"
    folder.mkdir()
    packed = (fixtures() / "tokenizer" / "tokenizer.json.xz").read_bytes()
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed))
    return folder


def asked_alone(found: Scenario) -> Iterator[dict[str, Any]]:
    """Captured completions of models that stay the same, which came when no other ran and all was published."""
    free_at = 0.0
    for request in found.about["requests"]:
        if "at" not in request or not request.get("prompt_token_ids"):
            continue
        if request["at"] >= free_at and request["body"]["model"] in {MODEL, ADAPTER}:
            yield request
        free_at = max(free_at, request["at"] + request["took_s"] + PUBLISHED_SECONDS)


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """The captured request, with the token ids that the engine made of its prompt."""
    body = {"model": request["body"]["model"], "prompt": request["prompt_token_ids"], "max_tokens": 1}
    return body | {name: request["body"][name] for name in ("cache_salt",) if name in request["body"]}


class Replayed:
    """One captured engine behind a fleet."""

    def __init__(self, fleet: Fleet, engine: Engine, block_tokens: int, index_tokens: int) -> None:
        self.fleet, self.engine = fleet, engine
        self.block_tokens, self.index_tokens = block_tokens, index_tokens
        self.naive = Naive()
        self.requests = self.found = self.asked = 0

    async def clear(self) -> None:
        """The cache that the next capture starts with."""
        (rank,) = self.engine.ranks
        self.naive.copies.clear()
        await rank.publish_events({"type": "AllBlocksCleared"})

    async def play(self, found: Scenario) -> None:
        """Publish what was captured before each request, and compare what is predicted with what the engine found."""
        (rank,) = self.engine.ranks
        waiting = list(zip(found.frames, found.batches(), strict=False))
        request: dict[str, Any] = {}
        for request in asked_alone(found):
            while waiting and waiting[0][1]["recv_ts"] <= request["at"]:
                frames, message = waiting.pop(0)
                for event in message["batch"][1]:
                    self.naive.apply(event)
                rank.clock = message["batch"][0]
                await rank.publish(frames[-1])
            await self.predicts(request)
        self.engine.http.cached = reported = cached(request)
        reply = await self.fleet.ask(**completion(request))
        assert (reply.worker, reply.matched) == (self.engine.name, reported)
        assert self.engine.http.asked[-1].body == completion(request)
        self.asked += reply.matched

    async def predicts(self, request: dict[str, Any]) -> None:
        """Wait until the index has what the engine holds, and the gateway expects what the engine found then."""
        facts = self.fleet.index.mirror.workers[self.engine.name]
        await self.fleet.holds(
            self.engine.name, self.naive.keys(self.block_tokens, self.index_tokens, facts.fingerprint)
        )
        expected = {self.engine.name: cached(request)}
        found: dict[str, int] = {}

        async def same() -> bool:
            found.update(await self.fleet.predicted(**completion(request)))
            return found == expected

        try:
            await eventually(same, within=5)
        except AssertionError:
            raise AssertionError(f"predicted {found}, found {expected}") from None
        self.requests += 1
        self.found += cached(request)


def cached(request: dict[str, Any]) -> int:
    """Tokens that the real engine took from its cache."""
    return int(request["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize(("block_tokens", "index_tokens"), [(16, 16), (32, 16), (128, 64)])
def test_a_gateway_predicts_what_vllm_found(
    block_tokens: int, index_tokens: int, redis_url: str, tmp_path: Path, model_path: Path
) -> None:
    async def run() -> None:
        async with (
            scripted_engine("pod", models=MODELS, block=block_tokens) as engine,
            fleet_of([engine], tmp_path, redis_url, model_path, index_block_tokens=index_tokens) as fleet,
        ):
            replayed = Replayed(fleet, engine, block_tokens, index_tokens)
            for name in SCENARIOS[block_tokens]:
                if not name.endswith("02-repeat"):
                    await replayed.clear()
                await replayed.play(scenario("vllm-events", name))
            assert replayed.requests >= REQUESTS[block_tokens], replayed.requests
            assert replayed.found >= 2 * block_tokens
            assert await fleet.metric("warmroute_gateway_load_only_total") == 0
            await eventually(lambda: told(fleet, replayed.asked))

    async def told(fleet: Fleet, matched: int) -> bool:
        return await fleet.metric("warmroute_gateway_matched_tokens_total") == matched

    asyncio.run(run())


def test_a_gateway_names_the_rank_that_holds_a_prompt(redis_url: str, tmp_path: Path, model_path: Path) -> None:
    both, one = scenario("vllm-events", "18-data-parallel-2"), scenario("vllm-events", "01-cold")
    assert [message["batch"][2] for message in both.batches()] == [0, 1]
    of_rank_0, of_rank_1 = one.about["requests"][0], both.about["requests"][1]

    async def run() -> None:
        async with (
            scripted_engine("pod", ranks=2, models=MODELS) as engine,
            fleet_of([engine], tmp_path, redis_url, model_path, index_block_tokens=16) as fleet,
        ):
            await engine.ranks[0].publish(one.frames[0][-1])
            await engine.ranks[1].publish(both.frames[1][-1])
            expected = {"pod/dp0": 176, "pod/dp1": 0}
            await eventually(lambda: expects(fleet, of_rank_0, expected))
            await eventually(lambda: expects(fleet, of_rank_1, {"pod/dp0": 0, "pod/dp1": 32}))
            for request, rank, matched in ((of_rank_1, 1, 32), (of_rank_0, 0, 176)):
                reply = await fleet.ask(**completion(request))
                assert (reply.worker, reply.matched) == (f"pod/dp{rank}", matched)
                assert engine.http.asked[-1] == (completion(request), str(rank))

    async def expects(fleet: Fleet, request: dict[str, Any], expected: dict[str, int]) -> bool:
        return await fleet.predicted(**completion(request)) == expected

    asyncio.run(run())


def test_engines_whose_caches_nobody_can_read_are_guessed_at(redis_url: str, tmp_path: Path) -> None:
    prompts = [[1000 * number + place for place in range(200)] for number in range(8)]

    async def run() -> None:
        async with (
            scripted_engine("a", ranks=0, models=MODELS) as first,
            scripted_engine("b", ranks=0, models=MODELS) as second,
            fleet_of([first, second], tmp_path, redis_url, ensure_model(), engine="openai") as fleet,
        ):
            pool = (await fleet.readiness(fleet.admin))["pools"]["engines"]
            assert pool["approximate_workers"] == 2
            for engine in (first, second):
                agent = await fleet.readiness(engine.agent_admin)
                assert (agent["events"], agent["engine"]) == ("approximate", "running")
            for prompt in prompts:
                reply = await fleet.ask(model=MODEL, prompt=prompt)
                assert reply.matched == 0
                again = await fleet.ask(model=MODEL, prompt=[*prompt, 1, 2, 3])
                assert (again.worker, again.matched) == (reply.worker, 192)
            assert len(first.http.asked) + len(second.http.asked) == 2 * len(prompts)

    asyncio.run(run())
