"""Where vLLM says that it publishes its events."""

from __future__ import annotations

import json

import pytest

from tests.worker.adapters.support import fixtures, scenario
from worker.adapters.engines.vllm import read_sources
from worker.adapters.sources import EventSource, SourcesError

URL = "http://10.0.0.7:8000"


def test_a_captured_answer_of_vllm() -> None:
    answers = json.loads((fixtures() / "vllm-endpoints.json").read_text(encoding="utf-8"))
    found = read_sources(answers["kv_event_sources"]["response"], URL)
    assert found == [EventSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", False, True)]


def test_captured_ranks() -> None:
    found = read_sources(scenario("vllm-events", "18-data-parallel-2").about["kv_event_sources"], URL)
    assert [(source.rank, source.events, source.replay) for source in found] == [
        (0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5658"),
        (1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5659"),
    ]


@pytest.mark.parametrize("name", ["20-engine-connects", "21-replay-buffer-of-3"])
def test_an_address_without_a_wildcard_may_be_either(name: str) -> None:
    (found,) = read_sources(scenario("vllm-events", name).about["kv_event_sources"], URL)
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
        read_sources(answer, URL)


WELL = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "buffer_steps": 10}


def test_ranks_have_the_engine_s_numbers() -> None:
    """A server of some of the ranks names those only."""
    found = read_sources({"3": WELL, "2": {**WELL, "buffer_steps": "x"}}, URL)
    assert [(source.rank, source.replay_keeps) for source in found] == [(2, False), (3, False)]


@pytest.mark.parametrize("rank", ["-1", "00", "\N{SUPERSCRIPT TWO}", "256", "9" * 5000, "x"])
def test_ranks_that_are_none_are_refused(rank: str) -> None:
    with pytest.raises(SourcesError, match="give --events-endpoint") as caught:
        read_sources({rank: WELL}, URL)
    assert (caught.value.remedy, len(str(caught.value)) < 500) == ("give --events-endpoint", True)


@pytest.mark.parametrize(
    "endpoint", [None, 5, "", "junk", "inproc://x", "ipc://", "tcp://*", "tcp://*:0", "tcp://*:65536"]
)
def test_endpoints_that_cannot_be_reached_are_refused(endpoint: object) -> None:
    with pytest.raises(SourcesError, match="no tcp:// or ipc:// endpoint"):
        read_sources({"0": {**WELL, "endpoint": endpoint}}, URL)
    if endpoint:
        with pytest.raises(SourcesError, match="no tcp:// or ipc:// endpoint"):
            read_sources({"0": {**WELL, "replay_endpoint": endpoint}}, URL)
