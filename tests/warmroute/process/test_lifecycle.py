"""A part's process: signals, tasks that die, an end that waits."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from warmroute.process.lifecycle import cannot_listen, until_signal


class Task:
    """A background task that says how it ended."""

    def __init__(self, error: Exception | None = None, *, stubborn: bool = False) -> None:
        self.started = asyncio.Event()
        self.fail = asyncio.Event()
        self.cancelled = False
        self._error = error
        self._stubborn = stubborn

    async def run(self) -> None:
        self.started.set()
        try:
            await self.fail.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            if self._stubborn:
                raise RuntimeError("while being cancelled") from None
            raise
        if self._error is not None:
            raise self._error


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_cancels_the_tasks(number: signal.Signals) -> None:
    async def scenario() -> None:
        one, two = Task(), Task(stubborn=True)
        waiting = asyncio.ensure_future(until_signal(one.run(), two.run()))
        await one.started.wait()
        send(number)
        async with asyncio.timeout(5):
            await waiting
        assert one.cancelled
        assert two.cancelled

    asyncio.run(scenario())


def test_a_task_that_dies_raises_here_and_all_others_are_awaited() -> None:
    async def scenario() -> None:
        dying, other, stubborn = Task(ValueError("why")), Task(), Task(stubborn=True)
        waiting = asyncio.ensure_future(until_signal(stubborn.run(), dying.run(), other.run()))
        await other.started.wait()
        dying.fail.set()
        with pytest.raises(ValueError, match="why"):
            await asyncio.wait_for(waiting, 5)
        assert other.cancelled
        assert stubborn.cancelled
        # The handlers are gone: the default is back.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    asyncio.run(scenario())


def test_the_end_waits_for_what_comes_before_it() -> None:
    async def scenario() -> None:
        task, done = Task(), asyncio.Event()

        async def before_end() -> None:
            assert not task.cancelled
            done.set()

        waiting = asyncio.ensure_future(until_signal(task.run(), before_end=before_end))
        await task.started.wait()
        send(signal.SIGTERM)
        await asyncio.wait_for(waiting, 5)
        assert done.is_set()
        assert task.cancelled

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["second signal", "task"])
def test_a_second_signal_or_a_dying_task_cuts_the_end_short(how: str) -> None:
    async def scenario() -> None:
        task, ending = Task(ValueError("why")), asyncio.Event()

        async def before_end() -> None:
            ending.set()
            await asyncio.Event().wait()

        waiting = asyncio.ensure_future(until_signal(task.run(), before_end=before_end))
        await task.started.wait()
        send(signal.SIGTERM)
        await asyncio.wait_for(ending.wait(), 5)
        if how == "task":
            task.fail.set()
            with pytest.raises(ValueError, match="why"):
                await asyncio.wait_for(waiting, 5)
        else:
            send(signal.SIGINT)
            await asyncio.wait_for(waiting, 5)

    asyncio.run(scenario())


def test_the_message_of_a_taken_port_names_setting_address_and_remedy() -> None:
    error = cannot_listen("gateway.port", "::1", 80, OSError(98, "Address already in use"))
    assert str(error).startswith("gateway.port: cannot listen on [::1]:80: Address already in use")
    assert "another port" in str(error)
