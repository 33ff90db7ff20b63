"""A model of the hub: from the library's own cache, and what is said where there is none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.metrics import PromptMetrics
from gateway.prompts.pool_prompts import KeyerSupply
from tests.indexer.support import running
from tests.support import eventually, folder_of
from warmroute.config.pool import PoolConfig
from warmroute.config.redis import RedisConfig
from warmroute.redis.client import connect

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import sys
from gateway.prompts.hub import HubError, hub_folder
try:
    print(hub_folder(sys.argv[1]))
except HubError as error:
    print("HubError", error)
"""


def ask(home: Path, name: str, **environment: str) -> str:
    """In a process of its own, since the library reads its environment when it is imported."""
    variables = {"PATH": "/usr/bin:/bin", "HF_HOME": str(home), "HOME": str(home), "PYTHONPATH": ".", **environment}
    done = subprocess.run([sys.executable, "-c", ASK, name], env=variables, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def cached(home: Path, files: dict[str, bytes], revision: str = "main") -> Path:
    """The library's cache with one model, as a download leaves it."""
    model = home / "hub" / "models--org--name"
    folder_of(model, {f"refs/{revision}": COMMIT.encode()})
    return folder_of(model / "snapshots" / COMMIT, files)


@pytest.mark.parametrize(("name", "revision"), [("org/name", "main"), ("org/name@v2", "v2")])
def test_a_model_that_was_fetched_before_needs_no_hub(tmp_path: Path, name: str, revision: str) -> None:
    folder = cached(tmp_path, {"tokenizer.json": b"{}"}, revision)
    assert ask(tmp_path, name, HF_HUB_OFFLINE="1") == str(folder)


def test_what_is_not_there_is_said_with_what_else_there_is(tmp_path: Path) -> None:
    said = ask(tmp_path, "org/name", HF_HUB_OFFLINE="1")
    assert said.startswith("HubError tokenizer: org/name cannot be fetched from the hub: ")
    assert said.endswith("leave both out to take the files that the pool's workers offer")
    cached(tmp_path, {"config.json": b"{}"})
    assert "org/name has no tokenizer.json" in ask(tmp_path, "org/name", HF_HUB_OFFLINE="1")


class NothingHere(BaseHTTPRequestHandler):
    """A hub without models."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        pass


def test_a_hub_that_does_not_have_the_model(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), NothingHere) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            said = ask(tmp_path, "org/name", HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}", NO_PROXY="127.0.0.1")
        finally:
            hub.shutdown()
            thread.join()
    assert said.startswith("HubError tokenizer: org/name cannot be fetched from the hub: ")


def supply(config: PoolConfig) -> KeyerSupply:
    return KeyerSupply(
        config,
        PromptMetrics(CollectorRegistry()),
        redis=connect(RedisConfig()),
        workers=list,
        use_tokenizer=lambda _: None,
        make=partial(PromptKeyer.from_folder, budget_seconds=1.0),
    )


def test_a_pool_takes_the_hubs_model(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        here = supply(PoolConfig(model="m", tokenizer="org/name"))
        assert here.prompts.describe() == "none: org/name is being fetched from the hub"
        async with running(here.run()):
            await eventually(lambda: here.prompts.keyer is not None)
        assert here.prompts.describe() == "hub model org/name"
        here.close()

    monkeypatch.setattr("gateway.prompts.pool_prompts.hub_folder", lambda name: smollm2)
    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["name", "/name", "org/", "a/b/c", "../x", "org/..", "org/name@", "org/name@a b"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="tokenizer"):
        PoolConfig(model="m", tokenizer=name)


def test_one_source_is_enough(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="leave one of them out"):
        PoolConfig(model="m", tokenizer="org/name", model_path=tmp_path)
