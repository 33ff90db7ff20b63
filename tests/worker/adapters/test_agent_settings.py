"""Settings of an agent that cannot be meant end it at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from warmroute.config.agent import AgentConfig
from warmroute.config.grpc import GrpcConfig
from warmroute.process.lifecycle import StartupError
from warmroute.rpc.security import ClientSecurity
from worker.adapters.agent import Agent

INDEX_TOKENS = 16


@pytest.mark.parametrize(
    ("key", "said"), [(None, "cannot be read"), ("", "must hold the key alone"), ("a\nb", "must hold the key alone")]
)
def test_a_key_that_is_none_is_refused(key: str | None, said: str, tmp_path: Path) -> None:
    if key is not None:
        (tmp_path / "key").write_text(key)
    subject = Agent(AgentConfig(engine_key_file=tmp_path / "key"), ClientSecurity(GrpcConfig()))
    with pytest.raises(StartupError, match=f"agent.engine_key_file: .*{said}"):
        asyncio.run(subject.run())


def test_a_model_path_that_is_none_is_refused(tmp_path: Path) -> None:
    subject = Agent(AgentConfig(model_path=tmp_path / "not"), ClientSecurity(GrpcConfig()))
    with pytest.raises(StartupError, match=r"agent.model_path: .* is no folder"):
        asyncio.run(subject.run())
