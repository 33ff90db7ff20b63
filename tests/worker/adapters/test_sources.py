"""Where settings say that an engine publishes its events."""

from __future__ import annotations

import pytest

from worker.adapters.sources import EventSource, SourcesError, from_settings


def test_settings_count_ports_up() -> None:
    found = from_settings("tcp://h:1", "tcp://h:10", 2)
    assert [(source.events, source.replay, source.replay_keeps) for source in found] == [
        ("tcp://h:1", "tcp://h:10", True),
        ("tcp://h:2", "tcp://h:11", True),
    ]
    assert from_settings("ipc:///tmp/x", None, 1, bind=True) == [EventSource(0, "ipc:///tmp/x", None, True)]
    with pytest.raises(SourcesError, match="count up the port"):
        from_settings("ipc:///tmp/x", None, 2)
