"""Where SGLang says that it publishes its events."""

from __future__ import annotations

from contextlib import suppress

import pytest

from worker.adapters.engines.sglang import read_sources
from worker.adapters.sources import EventSource, SourcesError

URL = "http://10.0.0.7:8000"


def test_sglang() -> None:
    config = {"publisher": "zmq", "endpoint_port_base": 5557, "replay_endpoint_port_base": 6557, "dp_size": 2}
    found = read_sources({"kv_events": {**config, "endpoint_host": "*", "block_size": 64}}, "http://[::1]:30000")
    assert found == [
        EventSource(0, "tcp://[::1]:5557", "tcp://[::1]:6557", False, True, 64),
        EventSource(1, "tcp://[::1]:5558", "tcp://[::1]:6558", False, True, 64),
    ]
    (found,) = read_sources({"kv_events": {"publisher": "zmq", "endpoint_host": "h", "endpoint_port_base": 1}}, URL)
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
        read_sources(answer, URL)


@pytest.mark.parametrize("name", ["endpoint_port_base", "replay_endpoint_port_base", "block_size", "dp_size"])
@pytest.mark.parametrize("value", ["x", [1], {}, -3, 99_999_999, 1e300, True])
def test_junk_of_sglang_is_refused_or_as_if_it_were_not_there(name: str, value: object) -> None:
    config = {"publisher": "zmq", "endpoint_port_base": 5557, "replay_endpoint_port_base": 6557, "block_size": 64}
    found = []
    with suppress(SourcesError):
        found = read_sources({"kv_events": {**config, name: value}}, URL)
    assert [source.events for source in found][:1] in ([], ["tcp://10.0.0.7:5557"])
