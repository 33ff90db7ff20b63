"""Hints in bodies and headers: what wins, what is ignored, and where a priority goes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.message import Request
from gateway.requests.hints import NO_HINTS, Hints, read_hints
from tests.gateway.http.support import replying, run, worker
from tests.gateway.requests.support import CHAT, as_json
from tests.gateway.support import gate


def read(fields: dict[str, Any] | None = None, **headers: bytes) -> Hints:
    pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    request = Request("POST", b"/", "/", "", pairs, b"", "1.1", True, "", "id", 0.0, dict(pairs))
    return read_hints(request, fields)


def agent(priority: Any) -> dict[str, Any]:
    return {"nvext": {"agent_hints": {"priority": priority}}}


@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({"priority": 3, **agent(5)}, {"x_request_priority": b"4"}, 3),
        ({"priority": 0}, {"x_request_priority": b"4"}, 0),
        (agent(5), {"x_request_priority": b"-4"}, -4),
        ({"priority": None}, {"x_request_priority": b"+4"}, 4),
        (agent(5), {}, 5),
        ({"nvext": None}, {}, None),
        ({"nvext": {"agent_hints": 7}}, {}, None),
        (None, {"x_request_priority": b"4"}, 4),
    ],
)
def test_the_first_priority_wins(
    fields: dict[str, Any] | None, headers: dict[str, bytes], expected: int | None
) -> None:
    assert read(fields, **headers) == Hints(priority=expected)


@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({"session_id": "b", "prompt_cache_key": "k"}, {"x_session_id": b"h"}, "b"),
        ({"prompt_cache_key": "k"}, {"x_session_affinity": b"g", "x_session_id": b"h"}, "h"),
        ({"prompt_cache_key": "k"}, {"x_correlation_id": b"h"}, "h"),
        ({"prompt_cache_key": "k"}, {}, "k"),
        ({}, {"x_conversation_id": b"\xe9" * 256}, "\xe9" * 256),
    ],
)
def test_the_first_session_wins(fields: dict[str, Any], headers: dict[str, bytes], expected: str) -> None:
    assert read(fields, **headers) == Hints(session=expected)


@pytest.mark.parametrize("header", [b"", b"high", b"1.5", b"99999999999", b"2147483648", b"\xb2", b" 1", b"1_0"])
def test_a_malformed_priority_is_ignored(header: bytes) -> None:
    assert read({}, x_request_priority=header) == Hints(ignored=("priority",))


@given(
    st.dictionaries(
        st.sampled_from(["priority", "session_id", "prompt_cache_key", "nvext"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
            lambda inner: st.dictionaries(st.sampled_from(["agent_hints", "priority"]), inner),
        ),
    )
)
def test_nothing_in_a_body_raises(fields: dict[str, Any]) -> None:
    hints = read(fields)
    assert hints.priority is None or type(hints.priority) is int
    assert hints.session is None or 1 <= len(hints.session) <= 256
    assert set(hints.ignored) <= {"priority", "session"}


def test_most_requests_have_none() -> None:
    assert read(CHAT, content_type=b"application/json") is NO_HINTS
    assert read(None) is NO_HINTS


@pytest.mark.parametrize(("engine_name", "sent"), [("vllm", -4), ("sglang", 4), ("builtin", None), ("e", None)])
def test_a_priority_of_a_header_becomes_the_bodys_where_the_engine_takes_it(engine_name: str, sent: int | None) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            gateway.pool.hold("w0", [], engine=engine_name)

            async def arrived(path: str, body: dict[str, Any], header: str) -> Any:
                answer = await gateway.ask("POST", path, body, [f"X-Request-Priority: {header}"])
                assert answer.status == 200
                return orjson.loads(engine.requests[-1].body).get("priority", None)

            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
                assert await arrived(path, CHAT, "4") == sent
                assert await arrived(path, {**CHAT, "priority": None}, "4") == sent
            assert await arrived("/v1/embeddings", CHAT, "4") is None
            before = len(engine.requests)
            await gateway.ask("POST", "/v1/completions", CHAT, ["X-Request-Priority: soon"])
            assert engine.requests[before].body == orjson.dumps(CHAT)
            assert gateway.count("ignored_hints_total", hint="priority") == 1

    run(scenario())
