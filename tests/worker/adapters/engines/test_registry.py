"""What every engine's adapter must keep, and that none is forgotten."""

from __future__ import annotations

import ast
import asyncio
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import worker.adapters
from tests.worker.adapters.stand_in import engine_http
from tests.worker.adapters.support import JUNK, fixtures
from warmroute.config.engines import AGENT_ENGINES, ENGINES
from worker.adapters.engine_client import EngineError, engine_client
from worker.adapters.engine_metrics import MetricsReader
from worker.adapters.engines.base import Engine
from worker.adapters.engines.registry import engine_named, known_metrics
from worker.adapters.events import DecodeError
from worker.adapters.profile import MOST_BLOCK_TOKENS
from worker.adapters.sources import EventSource, SourcesError

FOLDER = Path(worker.adapters.__path__[0])
ALL = pytest.mark.parametrize("name", AGENT_ENGINES)


def test_every_file_is_an_engine_of_the_list_and_every_engine_has_its_file() -> None:
    files = {path.stem for path in (FOLDER / "engines").glob("*.py")} - {"__init__", "base", "registry"}
    assert files == set(AGENT_ENGINES.values())
    for name, module in AGENT_ENGINES.items():
        assert engine_named(name) is import_module(f"worker.adapters.engines.{module}").ENGINE


def test_nothing_else_asks_for_an_engines_name() -> None:
    names = {entry.name for entry in ENGINES}
    for path in FOLDER.glob("*.py"):
        constants = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not names & {each for each in constants if isinstance(each, str)}, path.name


@ALL
def test_it_says_all_that_is_asked_of_it(name: str) -> None:
    engine = engine_named(name)
    assert Engine in type(engine).__mro__
    assert 1 <= engine.default_block_tokens <= MOST_BLOCK_TOKENS
    assert set(engine.tiers.values()) == {"device", "host"}
    assert set(engine.metrics.all) <= set(known_metrics().all)
    drain = engine.drain(engine.default_block_tokens)
    assert drain is None or (drain.path.startswith("/") and drain.remedy)


@ALL
@given(st.one_of(st.text(), JUNK.map(str)))
def test_metrics_of_any_text_are_read(name: str, text: str) -> None:
    engine = engine_named(name)
    scrape = engine.read_metrics(text, MetricsReader(engine.metrics, quiet=True))
    assert all(0 <= load.kv_cache_usage <= 1 for load in scrape.loads.values())


@ALL
@given(st.binary())
def test_a_payload_that_is_no_batch_is_a_decode_error(name: str, payload: bytes) -> None:
    with suppress(DecodeError):
        engine_named(name).decode(payload)


@ALL
@given(JUNK)
def test_a_drained_answer_of_any_shape_is_read_or_counted(name: str, answer: object) -> None:
    drain = engine_named(name).drain(16)
    if drain is not None:
        events = [event for rank in drain.decoder.decode(answer).values() for event in rank.events]
        assert events or drain.decoder.undecodable or not answer


@ALL
def test_an_engine_that_says_nothing_of_itself_has_no_events(name: str) -> None:
    async def ask() -> None:
        engine = engine_named(name)
        async with engine_http(sources=None) as http, engine_client(http.url, timeout_seconds=5, key=None) as client:
            about = await engine.about(client)
            assert about.block_tokens >= 0
            assert about.cache_tokens >= 0
            found: list[EventSource] = []
            with suppress(SourcesError):
                found += await engine.sources(client)
            assert found == []

    asyncio.run(ask())


@ALL
def test_an_engine_that_is_not_there_is_an_error(name: str) -> None:
    async def ask() -> None:
        async with engine_http() as http:
            url = http.url
        async with engine_client(url, timeout_seconds=5, key=None) as client:
            with pytest.raises(EngineError, match="does not answer"):
                await engine_named(name).about(client)

    asyncio.run(ask())


def test_a_captured_engines_load_is_read_by_its_own_names() -> None:
    text = (fixtures() / "vllm-metrics-busy.txt").read_text()
    engine = engine_named("vllm")
    assert engine.read_metrics(text, MetricsReader(engine.metrics)).loads[0].running_requests == 3
