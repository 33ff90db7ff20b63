"""The engine's thread: delivery, abort in every state, refusal, failure, the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import eventually
from tests.worker.engine.support import Gate, generate, greedy, running_engine, tiny_config
from worker.engine.engine import Engine
from worker.engine.errors import EngineStoppedError, PromptTooLongError, QueueFullError
from worker.engine.runner import EngineRunner, TokenStream, create_engine
from worker.events import BlockStored, CacheCleared, EngineLoad

PROMPT = list(range(1, 41))
IDLE = EngineLoad()


async def collect(stream: TokenStream) -> list[int]:
    return [output.token_id async for output in stream]


async def is_idle(runner: EngineRunner) -> None:
    await eventually(lambda: runner.load() == IDLE, what=f"load returns to zero, is {runner.load()}")


def test_concurrent_streams_get_what_the_engine_gives(tiny_folder: Path) -> None:
    prompts = [PROMPT[: 5 * number] for number in range(1, 8)]
    expected = generate(Engine.from_folder(tiny_folder, tiny_config()), prompts, 10)

    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate) as runner:
            streams = [runner.submit(prompt, greedy(10)) for prompt in prompts]
            assert await asyncio.gather(*map(collect, streams)) == expected
            await is_idle(runner)
            assert runner.stats().generation_tokens == 70
        assert any(isinstance(event, BlockStored) for event in gate.events)

    asyncio.run(scenario())


def test_load_counts_what_the_thread_has_not_seen(tiny_folder: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate) as runner:
            with gate.closed():
                first = runner.submit(PROMPT, greedy(4))
                await eventually(lambda: gate.events)  # the thread is in the sink
                second = runner.submit(PROMPT[:9], greedy(4))
                load = runner.load()
                assert (load.running_requests, load.waiting_requests, load.waiting_tokens) == (1, 1, 9)
            await asyncio.gather(collect(first), collect(second))
            await is_idle(runner)

    asyncio.run(scenario())


def test_abort_before_the_thread_sees_it_while_waiting_and_while_running(tiny_folder: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate, max_batch_requests=1) as runner:
            running = runner.submit(PROMPT, greedy(400))
            waiting = runner.submit(PROMPT, greedy(400))
            await anext(running)
            await eventually(lambda: runner.load().waiting_requests == 1)
            await asyncio.to_thread(lambda: None)
            with gate.closed():
                unseen = runner.submit(PROMPT, greedy(400))
                for stream in (unseen, waiting, running):
                    stream.abort()
                    stream.abort()
            await is_idle(runner)
            with pytest.raises(StopAsyncIteration):
                await anext(waiting)
            assert await collect(runner.submit(PROMPT, greedy(3)))

    asyncio.run(scenario())


def test_more_than_the_bound_is_refused(tiny_folder: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_folder, Gate(), max_batch_requests=1, max_waiting_requests=2) as runner:
            streams = [runner.submit(PROMPT, greedy(300)) for _ in range(3)]
            with pytest.raises(QueueFullError, match="3 requests are in progress or waiting"):
                runner.submit(PROMPT, greedy(1))
            for stream in streams:
                stream.abort()
            assert len(await collect(runner.submit(PROMPT, greedy(2)))) == 2

    asyncio.run(scenario())


def test_bad_requests_are_refused_at_once_and_leave_nothing(tiny_folder: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_folder, Gate(), max_waiting_requests=1, max_batch_requests=1) as runner:
            for _ in range(5):
                with pytest.raises(PromptTooLongError):
                    runner.submit(PROMPT, greedy(1000))
                with pytest.raises(ValueError, match="at least one"):
                    runner.submit([], greedy(1))
            assert runner.load() == IDLE
            assert len(await collect(runner.submit(PROMPT, greedy(2)))) == 2

    asyncio.run(scenario())


def test_a_failing_step_fails_every_request_and_hangs_none(tiny_folder: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate, max_batch_requests=1) as runner:
            gate.failure = RuntimeError("out of ink")
            with gate.closed():
                streams = [runner.submit(PROMPT, greedy(10)) for _ in range(3)]
                await eventually(lambda: gate.events)
                reset = asyncio.create_task(runner.reset_prefix_cache())
                await asyncio.sleep(0)
            results = await asyncio.wait_for(
                asyncio.gather(*map(collect, streams), reset, return_exceptions=True), timeout=10
            )
            assert [type(result) for result in results] == [EngineStoppedError] * 4
            assert "out of ink" in str(results[0])
            assert not runner.healthy
            assert str(runner.error) == "out of ink"
            assert runner.load() == IDLE
            with pytest.raises(EngineStoppedError, match="out of ink"):
                runner.submit(PROMPT, greedy(1))
            with pytest.raises(EngineStoppedError):
                await runner.reset_prefix_cache()

    asyncio.run(scenario())


def test_stopping_fails_what_is_in_flight(tiny_folder: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_folder, Gate()) as runner:
            stream = runner.submit(PROMPT, greedy(400))
            await anext(stream)
            await runner.stop()
            with pytest.raises(EngineStoppedError, match="was stopped"):
                await asyncio.wait_for(collect(stream), timeout=10)
            assert runner.error is None
            assert not runner.healthy

    asyncio.run(scenario())


def test_a_stuck_step_does_not_stop_in_time(tiny_folder: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate) as runner:
            with gate.closed():
                runner.submit(PROMPT, greedy(1))
                await eventually(lambda: gate.events)
                with pytest.raises(TimeoutError, match=r"0\.05 s"):
                    await runner.stop(timeout_seconds=0.05)

    asyncio.run(scenario())


def test_an_engine_that_was_never_started_takes_nothing(tiny_folder: Path) -> None:
    async def scenario() -> None:
        runner = create_engine(tiny_config(), tiny_folder, Gate())
        with pytest.raises(EngineStoppedError, match="never started"):
            runner.submit(PROMPT, greedy(1))
        await runner.stop()

    asyncio.run(scenario())


def test_a_closed_event_loop_ends_its_requests(tiny_folder: Path) -> None:
    runner = create_engine(tiny_config(), tiny_folder, Gate())
    runner.start()

    async def leave() -> None:
        await anext(runner.submit(PROMPT, greedy(450)))

    async def rest() -> None:
        await is_idle(runner)
        assert runner.stats().generation_tokens < 450
        await runner.stop()

    asyncio.run(leave())
    asyncio.run(rest())


def test_reset_while_a_request_runs(tiny_folder: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running_engine(tiny_folder, gate) as runner:
            stream = runner.submit(PROMPT, greedy(60))
            await anext(stream)
            await runner.reset_prefix_cache()
            assert gate.events[-1] == CacheCleared()
            assert len(await collect(stream)) == 59
            assert gate.events[-1] == CacheCleared()
            again = runner.submit(PROMPT, greedy(1))
            assert (await anext(again)).cached_tokens == 0

    asyncio.run(scenario())
