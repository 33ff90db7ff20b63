"""Where events are, from captured answers and from settings."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from tests.worker.adapters.support import fixtures, scenario
from worker.adapters.sources import EventSource, SourcesError, from_settings, from_sglang, from_vllm

URL = "http://10.0.0.7:8000"


def test_a_captured_answer_of_vllm() -> None:
    answers = json.loads((fixtures() / "vllm-endpoints.json").read_text(encoding="utf-8"))
    found = from_vllm(answers["kv_event_sources"]["response"], URL)
    assert found == [EventSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", False, True)]


def test_captured_ranks() -> None:
    found = from_vllm(scenario("vllm-events", "18-data-parallel-2").about["kv_event_sources"], URL)
    assert [(source.rank, source.events, source.replay) for source in found] == [
        (0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5658"),
        (1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5659"),
    ]


@pytest.mark.parametrize("name", ["20-engine-connects", "21-replay-buffer-of-3"])
def test_an_address_without_a_wildcard_may_be_either(name: str) -> None:
    (found,) = from_vllm(scenario("vllm-events", name).about["kv_event_sources"], URL)
    assert found.bind is None
    assert found.events.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        [],
        {"0": {"enable_kv_cache_events": False}},
        {"0": {"enable_kv_cache_events": True, "publisher": "null"}},
        {"0": 5},
        {"x": {}},
    ],
)
def test_no_events_of_vllm_are_refused_with_the_remedy(answer: object) -> None:
    with pytest.raises(SourcesError, match=r"--kv-events-config|--events-endpoint"):
        from_vllm(answer, URL)


def test_sglang() -> None:
    config = {"publisher": "zmq", "endpoint_port_base": 5557, "replay_endpoint_port_base": 6557, "dp_size": 2}
    found = from_sglang({"kv_events": {**config, "endpoint_host": "*", "block_size": 64}}, "http://[::1]:30000")
    assert found == [
        EventSource(0, "tcp://[::1]:5557", "tcp://[::1]:6557", False, True, 64),
        EventSource(1, "tcp://[::1]:5558", "tcp://[::1]:6558", False, True, 64),
    ]
    (found,) = from_sglang({"kv_events": {"publisher": "zmq", "endpoint_host": "h", "endpoint_port_base": 1}}, URL)
    assert (found.events, found.replay) == ("tcp://h:1", None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "--kv-events-config"),
        ({"kv_events": None}, "--kv-events-config"),
        ({"kv_events": {"publisher": "zmq", "endpoint_port_base": 1, "block_size": 1}}, "--page-size 16"),
        ({"kv_events": {"publisher": "zmq"}}, "--events-endpoint"),
    ],
)
def test_no_events_of_sglang_are_refused_with_the_remedy(answer: object, said: str) -> None:
    with pytest.raises(SourcesError, match=said):
        from_sglang(answer, URL)


def test_settings_count_ports_up() -> None:
    found = from_settings("tcp://h:1", "tcp://h:10", 2)
    assert [(source.events, source.replay, source.replay_keeps) for source in found] == [
        ("tcp://h:1", "tcp://h:10", True),
        ("tcp://h:2", "tcp://h:11", True),
    ]
    assert from_settings("ipc:///tmp/x", None, 1, bind=True) == [EventSource(0, "ipc:///tmp/x", None, True)]
    with pytest.raises(SourcesError, match="count up the port"):
        from_settings("ipc:///tmp/x", None, 2)


WELL = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "buffer_steps": 10}


def test_ranks_have_the_engine_s_numbers() -> None:
    """A server of some of the ranks names those only."""
    found = from_vllm({"3": WELL, "2": {**WELL, "buffer_steps": "x"}}, URL)
    assert [(source.rank, source.replay_keeps) for source in found] == [(2, False), (3, False)]


@pytest.mark.parametrize("rank", ["-1", "00", "\N{SUPERSCRIPT TWO}", "256", "9" * 5000, "x"])
def test_ranks_that_are_none_are_refused(rank: str) -> None:
    with pytest.raises(SourcesError, match="give --events-endpoint") as caught:
        from_vllm({rank: WELL}, URL)
    assert (caught.value.remedy, len(str(caught.value)) < 500) == ("give --events-endpoint", True)


@pytest.mark.parametrize(
    "endpoint", [None, 5, "", "junk", "inproc://x", "ipc://", "tcp://*", "tcp://*:0", "tcp://*:65536"]
)
def test_endpoints_that_cannot_be_reached_are_refused(endpoint: object) -> None:
    with pytest.raises(SourcesError, match="no tcp:// or ipc:// endpoint"):
        from_vllm({"0": {**WELL, "endpoint": endpoint}}, URL)
    if endpoint:
        with pytest.raises(SourcesError, match="no tcp:// or ipc:// endpoint"):
            from_vllm({"0": {**WELL, "replay_endpoint": endpoint}}, URL)


@pytest.mark.parametrize("name", ["endpoint_port_base", "replay_endpoint_port_base", "block_size", "dp_size"])
@pytest.mark.parametrize("value", ["x", [1], {}, -3, 99_999_999, 1e300, True])
def test_junk_of_sglang_is_refused_or_as_if_it_were_not_there(name: str, value: object) -> None:
    config = {"publisher": "zmq", "endpoint_port_base": 5557, "replay_endpoint_port_base": 6557, "block_size": 64}
    found = []
    with suppress(SourcesError):
        found = from_sglang({"kv_events": {**config, name: value}}, URL)
    assert [source.events for source in found][:1] in ([], ["tcp://10.0.0.7:5557"])
