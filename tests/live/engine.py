"""One vLLM server, and what its cache holds by a reading of its replay that shares no code with the adapters."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import msgpack
import zmq
import zmq.asyncio

from tests.worker.adapters.support import Naive, named
from warmroute.cli.children import is_taken

START_SECONDS = 400.0
END_SECONDS = 30.0
BLOCK_TOKENS = int(os.environ.get("WARMROUTE_LIVE_VLLM_BLOCK_TOKENS", "16"))


class Engine:
    """It may be ended and started again on its ports."""

    def __init__(self, folder: Path, name: str, *, connects: bool) -> None:
        """`connects`: its event socket connects to the agent instead of waiting for it."""
        self.name = name
        self.port, replay, events = late_ports(3)
        self.replay = f"tcp://127.0.0.1:{replay}"
        # vLLM binds where there is a wildcard; "*:0" is a port of the system's choice, on VLLM_HOST_IP alone.
        self._events = f"tcp://127.0.0.1:{events}" if connects else "tcp://*:0"
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        ours = {"PORT": str(self.port), "EV_ENDPOINT": self._events, "EV_REPLAY": self.replay}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                shlex.split(os.environ["WARMROUTE_LIVE_VLLM_SERVE"]),
                env={**os.environ, "VLLM_HOST_IP": "127.0.0.1", **ours},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.lives += 1

    def wait(self) -> None:
        """Until it serves."""
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"{self.url}/health"):
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"{self.name} is not up: {self._log}"
            time.sleep(0.5)

    def terminate(self) -> None:
        """As an operator does."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """With its engine processes: the group is ours alone."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Truth:
    """What one engine's cache holds in this life. Read by `read`, from the first message on."""

    def __init__(self, engine: Engine) -> None:
        self.naive = Naive()
        self.removed = 0
        """Blocks that were evicted."""
        self.batches = 0
        """Messages read, of all lives."""
        self._engine = engine
        self._life = engine.lives
        self._next = 0

    async def read(self, context: zmq.asyncio.Context) -> None:
        """Take what the engine has published since the last time."""
        if self._life != self._engine.lives:
            self.naive, self._life, self._next = Naive(), self._engine.lives, 0
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._engine.replay)
            await dealer.send_multipart([b"", self._next.to_bytes(8, "big")])
            while True:
                assert await dealer.poll(10_000), f"{self._engine.name} serves no replay"
                *_, number, payload = await dealer.recv_multipart()
                if number == b"\xff" * 8:
                    return
                assert int.from_bytes(number, "big") == self._next, "the replay keeps too little for this test"
                self._next += 1
                self.batches += 1
                self._apply(payload)

    def held(self, index_tokens: int, fingerprint: str) -> set[int]:
        """Keys of the index blocks that are cached."""
        return self.naive.keys(BLOCK_TOKENS, index_tokens, fingerprint)

    def was_told(self, tokens: list[int]) -> bool:
        """Whether a block that ends with exactly these tokens was ever stored."""
        return any(before == tokens for before, _, _ in self.naive.prompt.values())

    def _apply(self, payload: bytes) -> None:
        for raw in msgpack.unpackb(payload, strict_map_key=False)[1]:
            event = named(raw)
            if event["type"] == "BlockRemoved":
                self.removed += len(event["block_hashes"])
            self.naive.apply(event)


def late_ports(count: int) -> list[int]:
    """Ports that are bound a minute from now, so of those that the system hands to nobody by itself."""
    ports = random.sample(range(20_000, 32_000), k=100)
    return [port for port in ports if not is_taken("127.0.0.1", port)][:count]


def answers(url: str) -> bool:
    """Whether this answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - ours, on loopback
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
