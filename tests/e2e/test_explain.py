"""What a real gateway says of its decisions: explained before, told with the reply, kept after it, replayed later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.process.gateway import Gateway
from tests.e2e.support import Conversation
from tests.indexer.support import running
from tests.support import eventually
from warmroute.cli.main import main
from warmroute.cli.stack import MODEL, Stack
from warmroute.config.model import Config
from warmroute.redis.client import connect

pytestmark = pytest.mark.timeout(300)
INDEX_BLOCK = 64


@asynccontextmanager
async def logging_gateway(stack: Stack, log: Path) -> AsyncIterator[tuple[Gateway, int]]:
    """A gateway of its own on the stack's index and workers, and its admin port."""
    config = Config.model_validate(yaml.safe_load((stack.log_folder / "gateway.yaml").read_text()))
    redis = connect(config.redis)
    gateway = Gateway(config.gateway.model_copy(update={"port": 0, "decision_log": log}), redis)
    try:
        await gateway.server.start()
        admin = await gateway.admin.start("127.0.0.1", 0)
        async with running(*gateway.tasks()):
            pool = gateway.pools[MODEL]
            await eventually(lambda: gateway.readiness()[0] and pool.routing == "by cache and load", within=30)
            yield gateway, admin
    finally:
        await gateway.stop()
        await redis.aclose()


async def explain(capsys: pytest.CaptureFixture[str], admin: int, file: Path, *flags: str) -> str:
    """What the command prints."""
    arguments = ["explain", str(file), "--url", f"http://127.0.0.1:{admin}", *flags]
    assert await asyncio.to_thread(main, arguments) == 0
    return capsys.readouterr().out


def test_explained_told_kept_and_replayed(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = tmp_path / "decisions.jsonl", tmp_path / "request.json"
    first_prompt: list[int] = []

    async def scenario() -> None:
        async with logging_gateway(stack, log) as (gateway, admin), aiohttp.ClientSession() as session:
            talk = Conversation(gateway.server.port)
            first = await talk.say(session, "Who jumps?")
            first_prompt.append(first.prompt)
            talk.messages.append({"role": "user", "content": "Over whom?"})
            body = {"model": MODEL, "messages": talk.messages, "cache_salt": talk.salt, "max_tokens": 4}
            body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
            file.write_text(json.dumps(body))

            async def explained() -> dict[str, Any] | None:
                """Once the index has what the first reply left."""
                answer = json.loads(await explain(capsys, admin, file, "--json"))
                held = answer["decision"]["workers"][0]["match"]["device_tokens"]
                return answer if held >= first.prompt - INDEX_BLOCK else None

            answer = await eventually(explained)
            prompt, winner = answer["prompt"], answer["decision"]["winner"]
            assert winner["worker"] == first.worker
            assert (prompt["load_only"], prompt["exact"], prompt["counted_by"]) == (None, True, "gateway")
            assert sum(segment["tokens"] for segment in prompt["segments"]) == prompt["tokens"]
            assert len(answer["decision"]["workers"]) == 3
            text = await explain(capsys, admin, file)
            assert f"Winner: {first.worker}" in text
            assert talk.salt not in text + json.dumps(answer)

            url = f"http://127.0.0.1:{gateway.server.port}/v1/chat/completions"
            headers = {"x-warmroute-explain": "1"}
            async with session.post(url, json=body, headers=headers) as response:
                assert response.status == 200
                told = json.loads(response.headers["x-warmroute-decision"])
                usage = json.loads((await response.text()).split("data: ")[-2])["usage"]
            assert told["worker"] == first.worker
            assert told["matched_tokens"] == answer["decision"]["workers"][0]["match"]["matched_tokens"]

            async with session.get(f"http://127.0.0.1:{admin}/decisions?limit=1") as response:
                (kept,) = (await response.json())["decisions"]
            assert (kept["worker"], kept["outcome"], kept["streamed"]) == (first.worker, "completed", True)
            assert kept["prompt_tokens"] == prompt["tokens"] == usage["prompt_tokens"]
            assert kept["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
            assert abs(kept["matched_tokens"] - kept["cached_tokens"]) <= INDEX_BLOCK
            assert 0 < kept["first_byte_seconds"] < 60

    async def limited() -> None:
        async with asyncio.timeout(200):
            await scenario()

    asyncio.run(limited())
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert len(lines) == 2
    assert lines[1]["first_byte_seconds"] > 0
    assert len(lines[0]["keys"]) == 16 * (first_prompt[0] // INDEX_BLOCK) > 0
    assert lines[1]["keys"].startswith(lines[0]["keys"])
    assert main(["replay", str(log), "--workers", "2", "--policy", "warm,round_robin", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["infinite_cache_hit_rate"] > 0
    assert {each["policy"]: each["requests"] for each in replayed["policies"]} == {"warm": 2, "round_robin": 2}
