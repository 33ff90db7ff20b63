"""Two real vLLM servers behind agents and a gateway: what is predicted is what vLLM reports as cached.

`make test-vllm` with these variables:

    WARMROUTE_LIVE_VLLM_SERVE  a command that starts one server in the foreground, on 127.0.0.1 and the port in PORT,
                               with --enable-prompt-tokens-details and the endpoints in EV_ENDPOINT and EV_REPLAY
    WARMROUTE_LIVE_VLLM_MODEL  the folder of the model that it serves, with tokenizer.json and a chat template
    WARMROUTE_LIVE_VLLM_NAME   its public name (tiny-qwen)
    WARMROUTE_LIVE_VLLM_PROMPTS  prompts that fill both caches, to force evictions (60)
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support import eventually
from warmroute.cli.children import Child, free_ports, stop_all

pytestmark = pytest.mark.timeout(1800)

INDEX_TOKENS = 64
START_SECONDS = 400.0
# From a reply to the mirror: the engine's step, a delta, the log; far more than it takes.
SETTLE_SECONDS = 30.0


class Server:
    """One vLLM, which may be killed and started again on its ports."""

    def __init__(self, folder: Path, number: int) -> None:
        self.port, self.replay = free_ports(2)
        self._log = folder / f"vllm-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = {"PORT": str(self.port), "EV_REPLAY": f"tcp://127.0.0.1:{self.replay}", "VLLM_HOST_IP": "127.0.0.1"}
        # A port that the system chooses, on VLLM_HOST_IP alone; the agent asks the server for it.
        environment = {**os.environ, **ports, "EV_ENDPOINT": "tcp://*:0"}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                shlex.split(os.environ["WARMROUTE_LIVE_VLLM_SERVE"]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """With its engine processes: the group is ours alone."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{self.port}/health"):
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "vLLM is not up"
            time.sleep(1)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - ours, on loopback
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


@dataclass
class Fleet:
    servers: list[Server]
    admin_ports: list[int]
    port: int
    gateway_admin: int
    differences: list[int] = field(default_factory=list)
    """Reported less predicted cached tokens, one a request."""

    async def ask(self, session: aiohttp.ClientSession, messages: list[dict[str, str]], **fields: Any) -> str:
        """One request; what was predicted is within an index block of what vLLM found."""
        model = os.environ.get("WARMROUTE_LIVE_VLLM_NAME", "tiny-qwen")
        body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
        async with session.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            predicted = int(response.headers["x-warmroute-matched-tokens"])
        usage = answer["usage"]
        reported = (usage.get("prompt_tokens_details") or {})["cached_tokens"]
        # The last token of a prompt is always computed, so a whole match is reported as less.
        predicted = min(predicted, usage["prompt_tokens"] - 1)
        self.differences.append(reported - predicted)
        assert abs(reported - predicted) <= INDEX_TOKENS, (reported, predicted, usage)
        return str(answer["choices"][0]["message"]["content"])


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[Fleet]:
    servers = [Server(tmp_path, number) for number in range(2)]
    ports = free_ports(6)
    (indexer, indexer_admin, gateway, gateway_admin), admin_ports = ports[:4], ports[4:]
    model_path = os.environ["WARMROUTE_LIVE_VLLM_MODEL"]
    pool = {
        "name": "live",
        "model": os.environ.get("WARMROUTE_LIVE_VLLM_NAME", "tiny-qwen"),
        "model_path": model_path,
        "workers": [
            {"address": f"127.0.0.1:{server.port}", "worker_id": f"vllm-{number}"}
            for number, server in enumerate(servers)
        ],
    }
    shared = {
        "redis": {"url": redis_url},
        "indexer": {"port": indexer, "admin_port": indexer_admin},
        "gateway": {
            "port": gateway, "admin_port": gateway_admin, "indexers": [f"127.0.0.1:{indexer}"], "pools": [pool],
        },
    }  # fmt: skip
    children: list[Child] = []
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        configs = [("indexer", shared), ("gateway", shared)]
        for number, server in enumerate(servers):
            agent = {
                "engine_url": f"http://127.0.0.1:{server.port}", "indexer": f"127.0.0.1:{indexer}", "pool": "live",
                "model_path": model_path, "worker_id": f"vllm-{number}", "admin_port": admin_ports[number],
                "index_block_tokens": INDEX_TOKENS,
            }  # fmt: skip
            configs.append(("agent", {"agent": agent}))
        for number, (command, config) in enumerate(configs):
            file = tmp_path / f"{number}.yaml"
            file.write_text(yaml.safe_dump(config))
            arguments = ["warmroute", command, "--config", str(file)]
            children.append(Child(command, arguments, tmp_path / f"{number}-{command}.log"))
        yield Fleet(servers, admin_ports, gateway, gateway_admin)
    finally:
        stop_all(children)
        for server in servers:
            server.kill()


async def ready(fleet: Fleet) -> None:
    for port in (*fleet.admin_ports, fleet.gateway_admin):
        await eventually(lambda port=port: answers(f"http://127.0.0.1:{port}/readyz"), within=60)


async def settled(fleet: Fleet, session: aiohttp.ClientSession) -> None:
    """Wait until no agent has anything that the index has not."""

    async def nothing_waits() -> bool:
        for port in fleet.admin_ports:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            if any(
                line.startswith("warmroute_worker_unpublished_keys{") and not line.endswith(" 0.0") for line in lines
            ):
                return False
        return True

    # Past the step that publishes, the delta after it and the mirror's reading of it.
    await asyncio.sleep(0.5)
    await eventually(nothing_waits, within=SETTLE_SECONDS)


WORDS = ("river", "stone", "cloud", "market", "silver", "garden", "winter", "engine", "paper", "light")


def words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


def test_predicted_is_reported(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    source = random.Random(7)
    prompts = int(os.environ.get("WARMROUTE_LIVE_VLLM_PROMPTS", "60"))

    async def conversations(session: aiohttp.ClientSession, number: int, turns: int, length: int) -> None:
        for _ in range(number):
            messages = [{"role": "system", "content": words(source, length)}]
            for _ in range(turns):
                messages.append({"role": "user", "content": words(source, 30)})
                messages.append({"role": "assistant", "content": await fleet.ask(session, messages)})
                await settled(fleet, session)

    async def scenario() -> None:
        await ready(fleet)
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await conversations(session, 4, 5, 300)
            warm = sum(difference > -INDEX_TOKENS for difference in fleet.differences)
            assert warm
            # Evictions: more than both caches hold, then the first ones again.
            await conversations(session, prompts, 1, 400)
            await conversations(session, 3, 3, 300)
            # A client that goes away in the middle of a reply.
            messages = [{"role": "user", "content": words(source, 300)}]
            body = {
                "model": os.environ.get("WARMROUTE_LIVE_VLLM_NAME", "tiny-qwen"),
                "messages": messages,
                "stream": True,
            }
            url = f"http://127.0.0.1:{fleet.port}/v1/chat/completions"
            async with session.post(url, json={**body, "max_tokens": 200}) as response:
                await response.content.readany()
            await settled(fleet, session)
            await fleet.ask(session, messages)
            # One restarts, with nothing cached.
            fleet.servers[0].kill()
            fleet.servers[0].start()
            await asyncio.to_thread(fleet.servers[0].wait)
            await ready(fleet)
            await settled(fleet, session)
            await conversations(session, 4, 3, 300)

    asyncio.run(scenario())
    off = sorted(abs(difference) for difference in fleet.differences)
    with capsys.disabled():
        exact = sum(difference < 16 for difference in off)
        print(f"\n{len(off)} requests: reported and predicted cached tokens differ by at most {off[-1]}, ", end="")
        print(f"by less than an engine block in {exact}, the median {off[len(off) // 2]}")
