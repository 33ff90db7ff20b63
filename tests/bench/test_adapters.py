"""The benchmark of the adapters runs, and measures what it says."""

from __future__ import annotations

import json
import random

import msgpack
import pytest

from bench import adapters


def test_the_last_line_is_json_with_the_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert adapters.main(["--quick", "--repeats", "1"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["decode_blocks_per_s"] > 0
    assert figures["prompts_msgpack_alone_per_s"] > figures["decode_blocks_per_s"]


@pytest.mark.parametrize("workload", [adapters.prompts, adapters.steady, adapters.replies])
def test_every_block_of_a_workload_is_read(workload) -> None:
    messages = workload(random.Random(1), 4096, 32)
    agent = adapters.Agent()
    agent.read(messages)
    events = [event for message in messages for event in msgpack.unpackb(message)[1]]
    stored = sum(len(event["block_hashes"]) for event in events if event["type"] == "BlockStored")
    removed = sum(1 for event in events if event["type"] == "BlockRemoved")
    assert agent.blocks.orphaned == agent.blocks.skipped == 0
    assert len(agent.state.held("device")) == (stored - removed) * adapters.BLOCK // adapters.INDEX
