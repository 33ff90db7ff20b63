"""The simulated engine: the production scheduler's cache and batches, in a model's time."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from bench.routing_live.simulated_engine import Generation, Machine, SimulatedEngine
from bench.routing_live.tokens import Tokens
from tests.indexer.support import running
from tests.support import eventually
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.scheduler import Chunk
from worker.events import BlockStored, CacheEvent
from worker.model_cache import ensure_model

FAST = Machine(prefill_tokens_per_second=1e6, step_seconds=0.0005, decode_seconds=0.0)
PROMPT = list(range(1, 101))
REPLY = [7, 8, 9]


def engine(machine: Machine = FAST) -> tuple[SimulatedEngine, list[CacheEvent]]:
    events: list[CacheEvent] = []
    return SimulatedEngine(machine, events.extend, cache_tokens=4096), events


async def finish(generation: Generation) -> list[int]:
    async with asyncio.timeout(10):
        return [(await generation.outputs.get()).token_id for _ in generation.reply_ids]


def test_a_step_takes_its_prompt_tokens_over_the_rate_and_more_for_each_stream() -> None:
    machine = Machine(prefill_tokens_per_second=1000, step_seconds=0.01, decode_seconds=0.002)
    request = EngineRequest(1, range(300), SamplingParams(5), block_tokens=16)
    prefill = Chunk(request, 0, 300)
    assert machine.seconds([prefill]) == pytest.approx(0.31)
    request.append(1)
    decode = Chunk(request, 300, 1)
    assert machine.seconds([decode]) == pytest.approx(0.012)
    assert machine.seconds([prefill, decode, decode]) == pytest.approx(0.314)


def test_a_prompt_is_found_again_and_its_blocks_are_published() -> None:
    async def main() -> None:
        simulated, events = engine()
        async with running(simulated.run()):
            first = simulated.submit(PROMPT, REPLY)
            assert await finish(first) == REPLY
            assert first.request.cached_tokens == 0
            assert [len(event.token_ids) for event in events if isinstance(event, BlockStored)] == [16] * 6
            second = simulated.submit(PROMPT, REPLY)
            await finish(second)
            assert second.request.cached_tokens == 96
            await eventually(lambda: simulated.idle)
            simulated.start_over(4096, 2)
            third = simulated.submit(PROMPT, REPLY)
            await finish(third)
            assert third.request.cached_tokens == 0

    asyncio.run(main())


def test_prefill_takes_its_time_and_streams_go_on_meanwhile() -> None:
    async def main() -> None:
        simulated, _ = engine(Machine(prefill_tokens_per_second=8000, step_seconds=0.001, step_tokens=200))
        loop = asyncio.get_running_loop()
        async with running(simulated.run()):
            stream = simulated.submit(PROMPT, [5] * 60)
            await stream.outputs.get()
            began = loop.time()
            long = simulated.submit(range(2000), REPLY)
            await long.outputs.get()
            # Not more than what the other stream's tokens take: steps have 200 tokens for both.
            assert loop.time() - began >= 2000 / 8000
            assert stream.outputs.qsize() >= 10
            assert long.request.cached_tokens == 0

    asyncio.run(main())


def test_a_client_that_leaves_gives_its_blocks_back() -> None:
    async def main() -> None:
        simulated, _ = engine()
        async with running(simulated.run()):
            leaving = simulated.submit(PROMPT, [5] * 2000)
            await leaving.outputs.get()
            simulated.abort(leaving)
            simulated.abort(leaving)
            await eventually(lambda: simulated.idle)
            assert simulated.load().kv_cache_usage == 0
            assert await finish(simulated.submit(PROMPT, REPLY)) == REPLY

    asyncio.run(main())


def test_a_reply_is_tokenised_in_the_next_turn_as_it_was_generated() -> None:
    tokens = Tokens(ensure_model())
    messages = [{"role": "system", "content": "the of"}, {"role": "user", "content": "find the way"}]
    prompt = tokens.prompt(messages)
    reply = tokens.reply(prompt, 40)
    assert reply == tokens.reply(array("I", prompt), 40)
    text = "".join(text for text, _ in reply)
    follow_up = tokens.prompt([*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}])
    known = [*prompt, *(token_id for _, token_id in reply)]
    assert list(follow_up[: len(known)]) == known
