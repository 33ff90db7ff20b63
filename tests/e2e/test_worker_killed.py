"""A worker dies in mid-conversation. Behind the other tests of the stack, which is started anew after it."""

from __future__ import annotations

import os
import signal

import aiohttp
import pytest

from tests.e2e.support import Conversation, port_of, run
from tests.support import eventually
from warmroute.cli.stack import Stack, get_json

pytestmark = pytest.mark.timeout(300)


def test_the_conversation_goes_on(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        talk = Conversation(port_of(stack))
        first = await talk.say(session, "Who jumps?")
        os.kill(stack.parts[first.worker].child.pid, signal.SIGKILL)
        second = await talk.say(session, "Over whom?")
        assert second.worker != first.worker
        third = await talk.say(session, "Where does the river run?")
        assert third.worker == second.worker
        ready = f"http://127.0.0.1:{stack.plan.gateways[0][2].admin}/readyz"
        await eventually(lambda: get_json(ready)["pools"]["default"]["ready_workers"] == 2)
        (ended,) = stack.ended()
        assert ended.child.name == first.worker

    run(scenario)
