"""What a pool's workers say of themselves, taken together: key space, engines, adapters."""

from __future__ import annotations

import pytest

from gateway.prompts.keyer import KeySpace
from gateway.routing.census.census import WARNINGS
from indexer.keys import pool_fingerprint
from tests.gateway.routing.support import FINGERPRINT, TOKENIZER, Pool


def test_each_foreign_fingerprint_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(("a", "b", "c"))
    for _ in range(5):
        for name in ("a", "b"):
            pool.hold(name, [], fingerprint=f"foreign-{name}")
        pool.router.census.current()
    assert len(caplog.records) == 2


def test_workers_that_key_otherwise_are_routed_by_load() -> None:
    pool = Pool(("a", "b"))
    assert pool.router.census.current().space == KeySpace(FINGERPRINT, 64)
    pool.hold("a", [], fingerprint="another")
    assert pool.router.census.current().space == KeySpace(FINGERPRINT, 64)
    pool.hold("b", [], fingerprint="another")
    assert pool.router.census.current().space is None


def test_workers_that_nobody_can_route_to_have_no_say_in_how_prompts_are_keyed() -> None:
    pool = Pool(("a", "b"))
    other = pool_fingerprint(index_block_tokens=64, base_model="other", tokenizer=TOKENIZER)
    for number in range(5):
        pool.hold(f"stranger-{number}", [], model="other", fingerprint=other, address=f"10.9.9.{number}:1")
    assert pool.router.census.current().space == KeySpace(FINGERPRINT, 64)


def test_an_empty_index_gives_no_key_space() -> None:
    assert Pool(()).router.census.current().space is None


def test_the_census_follows_the_index_and_names_what_workers_say() -> None:
    pool = Pool(("a", "b"))
    pool.hold("a", [], engine="x", adapters=("lora-a",))
    census = pool.router.census.current()
    assert census is pool.router.census
    assert (census.engine, census.engines, census.adapters) == ("x", {"x", "e"}, {"lora-a"})
    assert [facts.engine for facts in census.worker_facts] == ["x", "e"]
    pool.hold("b", [], engine="x", publishes_events=False)
    assert census.engines == {"x", "e"}  # until it is asked for again
    assert census.current().engines == {"x"}
    assert census.approximate == 1
    pool.targets([])
    assert (census.engines, census.adapters, census.worker_facts, census.approximate) == (set(), set(), [], 0)


def test_the_configured_engine_stands_in_where_no_worker_names_one() -> None:
    census = Pool((), engine="vllm").router.census.current()
    assert (census.engine, census.engines) == ("vllm", {"vllm"})


def test_the_configured_engine_wins_over_what_workers_say() -> None:
    pool = Pool(("a", "b"), engine="vllm")
    pool.hold("a", [], engine="tensorrt-llm")
    pool.hold("b", [], engine="tensorrt-llm")
    census = pool.router.census.current()
    assert (census.engine, census.engines) == ("vllm", {"vllm"})
    assert [facts.engine for facts in census.worker_facts] == ["tensorrt-llm"] * 2


def test_warnings_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(("a",))
    for number in range(2 * WARNINGS):
        pool.hold("a", [], fingerprint=f"foreign-{number}")
        pool.router.census.current()
    assert len(caplog.records) == WARNINGS
