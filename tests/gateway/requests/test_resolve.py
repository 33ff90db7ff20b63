"""Which model's pool a request is for, and which bodies are refused before that is known."""

from __future__ import annotations

import orjson
import pytest

from gateway.requests.large_body import CONTAINERS_LIMIT
from gateway.requests.paths import POST_ROUTES
from tests.gateway.http.support import replying, run, worker
from tests.gateway.requests.support import FORM_TYPE, as_json, form
from tests.gateway.support import gate


@pytest.mark.parametrize("path", sorted(path for path, route in POST_ROUTES.items() if route.form))
def test_forms_are_routed_by_their_model_field(path: str) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b'{"text":"x"}'))) as engine:
            async with gate(engine.port, aliases={"whisper": "lora"}) as gateway:
                assert (await gateway.ask("POST", path, form("m"), [FORM_TYPE])).status == 200
                assert (await gateway.ask("POST", path, form("whisper"), [FORM_TYPE])).status == 200
                unknown = await gateway.ask("POST", path, form("none"), [FORM_TYPE])
                missing = await gateway.ask("POST", path, form("m").replace(b'"model"', b'"other"'), [FORM_TYPE])
                assert (unknown.status, missing.status) == (404, 400)
                assert orjson.loads(missing.body)["error"]["param"] == "model"
                twice = [FORM_TYPE, FORM_TYPE.replace("xyz", "abc")]
                assert (await gateway.ask("POST", path, form("m"), twice)).status == 400
            assert [message.body for message in engine.requests] == [form("m"), form("lora")]

    run(scenario())


def test_a_path_whose_engine_takes_no_model_goes_to_the_only_pool() -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            async with gate(engine.port, several=False) as gateway:
                assert (await gateway.ask("POST", "/tokenize", b'{"prompt":"x"}')).status == 200
                assert (await gateway.ask("POST", "/tokenize", b'{"model":null,"prompt":"x"}')).status == 200
                assert (await gateway.ask("POST", "/v1/embeddings", b'{"input":"x"}')).status == 400
            async with gate(engine.port) as gateway:
                answer = await gateway.ask("POST", "/tokenize", b'{"prompt":"x"}')
                assert answer.status == 400
                assert orjson.loads(answer.body)["error"]["param"] == "model"

    run(scenario())


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[{}],"])
def test_a_body_of_very_many_lists_or_objects_is_refused_before_it_is_read(unit: bytes) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            for count, status in ((CONTAINERS_LIMIT + 1, 400), (1000, 200)):
                body = b'{"model":"m","prompt":[' + unit * count + b"0]}"
                answer = await gateway.ask("POST", "/v1/completions", body)
                assert answer.status == status
                if status == 400:
                    assert b"fewer lists and objects" in answer.body
            assert len(engine.requests) == 1

    run(scenario())
