"""What a request made is gone with its reply, without help of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from gateway.requests.inference_request import InferenceRequest
from tests.gateway.http.support import run, worker
from tests.gateway.requests.support import storing
from tests.gateway.support import gate
from tests.support import eventually


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_no_request_outlives_its_reply(path: str) -> None:
    def left() -> int:
        return sum(type(each) is InferenceRequest for each in gc.get_objects())

    async def scenario() -> None:
        async with worker(storing("a")) as engine, gate(engine.port, several=False) as gateway:
            body = {"model": "m", "input": "hi", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
            gc.collect()
            gc.disable()
            try:
                for _ in range(20):
                    assert (await gateway.ask("POST", path, body)).status == 200
                await eventually(lambda: left() <= 1)  # the last one may still be in its connection's hands
            finally:
                gc.enable()

    run(scenario())
