"""Requests on their way through the public port to workers that do what a script says."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.prompts.keyer import PromptKeyer
from gateway.requests.paths import POST_ROUTES
from indexer.keys import chain, root
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, replying, run, worker
from tests.gateway.requests.support import CHAT, FORM_TYPE, as_json, form, sse, storing
from tests.gateway.support import Gate, gate
from worker.model_cache import ensure_model


@pytest.mark.parametrize("path", sorted(POST_ROUTES))
def test_every_path_goes_through_byte_for_byte(path: str) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b'{"model": "m", "x": 1.0}'))) as engine, gate(engine.port) as gateway:
            body = b'{ "model":"m" , "input": "\xc3\xa9", "n": 1.50 }'
            answer = await gateway.ask("POST", f"{path}?a=b", body)
            assert (answer.status, answer.body) == (200, b'{"model": "m", "x": 1.0}')
            assert engine.requests[0].start == f"POST {path}?a=b HTTP/1.1".encode()
            assert engine.requests[0].body == body
            assert gateway.idle()

    run(scenario())


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


def test_messages_have_errors_in_anthropics_shape() -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            for body, status, kind in (
                (b"{", 400, "invalid_request_error"),
                (b'{"model":"none"}', 404, "not_found_error"),
                (b'{"model":"m"}', 503, "overloaded_error"),
            ):
                answer = await gateway.ask("POST", "/v1/messages", body)
                error = orjson.loads(answer.body)
                assert answer.status == status
                assert (error["type"], error["error"]["type"], set(error)) == ("error", kind, {"type", "error"})
                assert set(error["error"]) == {"type", "message"}

    run(scenario())


def test_a_broken_stream_of_messages_ends_with_anthropics_error_event() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + chunk(b'event: message_start\ndata: {"type":"message_start"}\n\n'))

    async def scenario() -> None:
        async with worker(script) as engine, gate(engine.port) as gateway:
            answer = await gateway.ask("POST", "/v1/messages", {**CHAT, "stream": True})
            last = answer.body.split(b"\n\n")[-2]
            assert last.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error"')

    run(scenario())


def test_an_alias_is_the_engines_name_there_and_the_clients_name_here() -> None:
    events = [b'data: {"model":"lora","choices":[{"delta":{"content":"\xc3\xa9"}}]}\n\n', b"data: [DONE]\n\n"]

    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            assert asked.header(b"accept-encoding") == b"identity"
            if b"stream" in asked.body:
                await link.send(SSE_HEAD)
                for byte in b"".join(events):
                    await link.send(chunk(bytes([byte])))
                await link.send(LAST_CHUNK)
            else:
                await link.send(as_json(b'{"id":"x", "model": "lora", "choices":[]}'))

    async def scenario() -> None:
        async with worker(script) as engine, gate(engine.port, aliases={"public": "lora", "same": "m"}) as gateway:
            headers = ["Accept-Encoding: gzip, br"]
            body = b'{"messages":[],  "model" : "public"}'
            answer = await gateway.ask("POST", "/v1/chat/completions", body, headers)
            assert answer.body == b'{"id":"x", "model": "public", "choices":[]}'
            assert engine.requests[0].body == body.replace(b"public", b"lora")
            streamed = {"model": "public", "stream": True, "stream_options": {"include_usage": True}}
            answer = await gateway.ask("POST", "/v1/chat/completions", streamed, headers)
            assert answer.body == b"".join(events).replace(b"lora", b"public")
            await gateway.ask("POST", "/v1/embeddings", {"model": "same"}, headers)
            assert orjson.loads(engine.requests[2].body) == {"model": "m"}

    run(scenario())


def test_models_are_merged_with_aliases_and_adapters() -> None:
    async def scenario() -> None:
        async with gate(1, aliases={"public": "lora-a", "base": "m"}) as gateway:
            gateway.pool.hold("w0", [], adapters=("lora-a", "lora-b"))
            listed = orjson.loads((await gateway.ask("GET", "/v1/models")).body)["data"]
            assert [model["id"] for model in listed] == ["base", "lora-a", "lora-b", "m", "org/other@x y", "public"]
            shown = orjson.loads((await gateway.ask("GET", "/v1/models/public")).body)
            assert (shown["root"], shown["parent"]) == ("lora-a", "m")

    run(scenario())


def test_streams_tell_the_gateway_their_usage_and_the_client_what_it_asked_for() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}\n\n'
    events = (b'data: {"choices":[{"delta":{}}]}\n\n', usage, b"data: [DONE]\n\n")

    async def scenario() -> None:
        async with worker(replying(sse(*events))) as engine, gate(engine.port) as gateway:
            answer = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
            assert answer.body == events[0] + events[2]
            assert orjson.loads(engine.requests[0].body)["stream_options"] == {"include_usage": True}
            asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
            answer = await gateway.ask("POST", "/v1/chat/completions", asked)
            assert answer.body == b"".join(events)
            assert engine.requests[1].body == orjson.dumps(asked)
            assert gateway.count("cached_tokens_total", pool="p") == 128

    run(scenario())


def test_an_edited_reply_has_the_right_length() -> None:
    async def script(link: Link) -> None:
        await link.request()
        whole = as_json(b'{"model":"lora"}')
        await link.send(whole[:-4])
        await link.send(whole[-4:])

    async def scenario() -> None:
        for aliases in ({"much longer name": "lora"}, {"s": "lora"}):
            async with worker(script) as engine, gate(engine.port, aliases=aliases) as gateway:
                name = next(iter(aliases))
                answer = await gateway.ask("POST", "/v1/embeddings", {"model": name})
                assert orjson.loads(answer.body) == {"model": name}

    run(scenario())


def test_priority_goes_the_engines_way() -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            await gateway.ask("POST", "/v1/completions", {"model": "m", "priority": 3})
            gateway.pool.hold("w0", [], engine="vllm")
            await gateway.ask("POST", "/v1/completions", {"model": "m", "priority": 3})
            assert [orjson.loads(message.body)["priority"] for message in engine.requests] == [3, -3]

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_stored_responses_reach_the_worker_that_has_them(stream: bool) -> None:
    async def scenario() -> None:
        async with worker(storing("a")) as one, worker(storing("b")) as two, worker(storing("c")) as three:
            async with gate(one.port, two.port, three.port, several=False) as gateway:
                body = {"model": "m", "input": "x", **({"stream": True} if stream else {})}
                first = await gateway.ask("POST", "/v1/responses", body)
                where = first.header(b"x-warmroute-worker")
                found = b"resp_" + {b"w0": b"a", b"w1": b"b", b"w2": b"c"}[where]
                for _ in range(10):
                    path = f"/v1/responses/{found.decode()}"
                    for method, suffix in (
                        ("GET", ""),
                        ("GET", "?stream=true"),
                        ("POST", "/cancel"),
                        ("GET", "/input_items"),
                    ):
                        answer = await gateway.ask(method, path + suffix)
                        assert (answer.status, answer.header(b"x-warmroute-worker")) == (200, where)
                    more = {"model": "m", "input": "y", "previous_response_id": found.decode()}
                    answer = await gateway.ask("POST", "/v1/responses", more)
                    assert answer.header(b"x-warmroute-worker") == where
                assert (await gateway.ask("DELETE", f"/v1/responses/{found.decode()}")).status == 200
                others = {
                    (await gateway.ask("GET", f"/v1/responses/{found.decode()}")).header(b"x-warmroute-worker")
                    for _ in range(40)
                }
                assert len(others) == 3  # forgotten, so by load
                assert gateway.idle()
            async with gate(one.port) as gateway:
                assert (await gateway.ask("GET", "/v1/responses/resp_unknown")).status == 404

    run(scenario())


async def failing(gateway: Gate, times: int) -> list[int]:
    return [(await gateway.ask("POST", "/v1/chat/completions", CHAT)).status for _ in range(times)]


def test_a_worker_that_cannot_be_reached_costs_no_request() -> None:
    async def scenario() -> None:
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        async with worker(replying(as_json(b"{}"))) as engine, gate(port, engine.port) as gateway:
            assert set(await failing(gateway, 20)) == {200}
            assert gateway.count("retries_total", pool="p") >= 1
            assert gateway.idle()

    run(scenario())


def test_an_exhausted_budget_answers_with_the_first_failure() -> None:
    async def scenario() -> None:
        refusing = replying(as_json(b'{"error":{}}', b"503 Service Unavailable"))
        async with worker(refusing) as one, worker(refusing) as two:
            async with gate(one.port, two.port, retry_ratio=0, retries_per_second=0) as gateway:
                assert await failing(gateway, 4) == [503] * 4
                assert len(one.requests) + len(two.requests) == 4
                assert gateway.count("refused_retries_total", pool="p") == 4
            async with gate(one.port, two.port) as gateway:
                assert await failing(gateway, 1) == [503]
                assert len(one.requests) + len(two.requests) == 4 + 2

    run(scenario())


def test_ten_refusals_eject_nobody() -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b'{"error":{}}', b"400 Bad Request"))) as engine,
            gate(engine.port, 1, 2) as gateway,
        ):
            for name in ("w1", "w2"):
                gateway.pool.router.census.workers.get(name).checked(0, healthy=False, refused=True)
            assert await failing(gateway, 10) == [400] * 10
            assert gateway.pool.router.census.workers.get("w0").ejections == 0

    run(scenario())


def test_an_adapters_prompts_meet_its_own_blocks() -> None:
    async def scenario(keyer: PromptKeyer) -> None:
        async with (
            worker(replying(as_json(b"{}"))) as one,
            worker(replying(as_json(b"{}"))) as two,
            gate(one.port, two.port, keyer=keyer, aliases={"public": "lora"}, several=False) as gateway,
        ):
            text = "word " * 300
            seed = root(gateway.pool.fingerprint, adapter="lora", salt="s")
            keys = chain(keyer.tokenizer.encode(text, add_special_tokens=True), seed, block_tokens=64)
            gateway.pool.hold("w1", keys)
            for model, matches in (("public", True), ("m", False)):
                body = {"model": model, "prompt": text, "cache_salt": "s"}
                answer = await gateway.ask("POST", "/v1/completions", body)
                matched = int(answer.header(b"x-warmroute-matched-tokens") or 0)
                assert (matched > 200) is matches
                if matches:
                    assert answer.header(b"x-warmroute-worker") == b"w1"

    keyer = PromptKeyer.from_folder(ensure_model(), budget_seconds=10)
    try:
        run(scenario(keyer))
    finally:
        keyer.close()
