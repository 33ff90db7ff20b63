"""The section of `warmroute agent`."""

from __future__ import annotations

import argparse

import pytest

from warmroute.cli.main import COMMANDS
from warmroute.cli.settings import ConfigError, add_flags, load
from warmroute.config.agent import AgentConfig


def configure(*argv: str) -> AgentConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser, "agent")
    return load(parser.parse_args(argv), {}, "agent").agent


def test_flags_as_the_help_shows_them() -> None:
    (command,) = [command for command in COMMANDS if command.name == "agent"]
    config = configure(*command.example.split()[2:])
    assert (config.engine, config.engine_url, config.indexer) == ("vllm", "http://127.0.0.1:8000", "indexer:50051")
    assert configure("--engine-url", "https://host/base/").engine_url == "https://host/base"
    assert configure("--events-endpoint", "tcp://h:1", "--events-bind", "true").events_bind
    for endpoint in ("tcp://*:5557", "tcp://[::1]:1", "ipc:///run/x"):
        assert configure("--events-endpoint", endpoint).events_endpoint == endpoint


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--engine", "tgi"), "agent.engine: 'tgi' (from --engine) is refused"),
        (("--engine-url", "127.0.0.1:8000"), "give http://host:port"),
        (("--engine-url", "http://user:word@host"), "without user"),
        (("--engine-url", "http://host:x"), "agent.engine_url"),
        (("--events-endpoint", "127.0.0.1:5557"), "give a ZMQ endpoint such as tcp://127.0.0.1:5557"),
        (("--events-endpoint", "tcp://h:65536"), "give a ZMQ endpoint"),
        (("--events-endpoint", "tcp://:1"), "give a ZMQ endpoint"),
        (("--events-endpoint", "tcp://h"), "give a ZMQ endpoint"),
        (("--events-endpoint", "ipc://"), "ipc:///run/engine/events"),
        (("--engine-block-tokens", "4097"), "agent.engine_block_tokens"),
        (("--worker-id", ""), "agent.worker_id"),
        (("--replay-endpoint", "tcp://h:1"), "events_endpoint: give it too"),
        (("--load-interval-seconds", "0.01"), "agent.load_interval_seconds"),
        (("--ranks", "0"), "agent.ranks"),
    ],
)
def test_wrong_values_are_refused_with_the_remedy(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(*argv)
    assert said in str(caught.value)
