"""The text of `warmroute index`: within 100 columns, and honest about what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from indexer.inspection.view import PartView, PoolView, ServerView, TierView, WorkerView
from warmroute.cli.index_prompt import HolderView, PromptView
from warmroute.cli.index_report import Report
from warmroute.cli.index_streams import IndexerView, StreamView
from warmroute.cli.index_table import age, align, cut, prompt_text, report_text, size

WORKER = WorkerView(
    worker_id="0b7d6a0c-9b1e-4c0a-8f2e-3b5b8a1f0c11/dp7",
    part=0,
    address="10.20.117.203:8000",
    model="org/model",
    engine="tensorrt-llm",
    engine_version="1.2.0rc3",
    epoch="0123456789abcdef",
    seq=1_234_567,
    slot=1_795_999_925_097_000,
    tiers={"device": TierView(999_999, 1_000_000, 0.999999), "host": TierView(1_234_567, 2_000_000, 0.617)},
    beat_age_seconds=0.4,
    late=False,
    publishes_events=True,
    snapshot_chunks=None,
)
STREAM = StreamView("i:1", 60.0, 0.1, 12, 3, 4000, 0.5, 4096, 0.25, 17)
PART = PartView(0, 65_536, 0.2, 200_000_000, 3_000_000, 0)
POOL = PoolView("a pool", 1, [PART], [WORKER], [])
SERVER = ServerView(1, 12_345_678, 1_000_000_000, "noeviction")
INDEXER = IndexerView("10.0.0.1:50051", "0.1.0", True, 1, None)


def report(pools: list[PoolView], streams=None, **changes) -> Report:
    fields = {"redis": "redis://r:6379/0", "server": SERVER, "survey_complete": True, "indexers": [INDEXER]}
    return Report(**{**fields, "pools": pools, "streams": streams or {}, "read_seconds": 0.1, **changes})


def full() -> Report:
    return report([POOL], {("a pool", WORKER.worker_id): STREAM})


def test_everything_stands_within_100_columns_and_nothing_is_noted() -> None:
    text = report_text(full())
    assert max(map(len, text.splitlines())) <= 100
    assert "?" not in text
    assert "note" not in text
    for shown in ("12.3 MB used, of 1.0 GB", "about 203.0 MB", "999,999", "100.0%", "61.7%", "0.2 s", "4,096", "17"):
        assert shown in text
    assert "0123456789" not in text
    assert "epoch 01234567, state 1234567" in text


def test_what_no_indexer_says_is_a_question_mark_and_a_note() -> None:
    silent = IndexerView("i:1", None, None, None, "unavailable: refused")
    text = report_text(report([POOL], indexers=[silent]))
    assert "i:1 does not answer" in text
    assert "note: indexer i:1 does not answer: unavailable: refused" in text
    assert "no indexer that answered has a load of" in text
    (row,) = [line for line in text.splitlines() if "0.4 s" in line]
    assert row.split()[-5:] == ["?"] * 5
    assert max(map(len, text.splitlines())) <= 100


def test_a_stream_without_a_load_is_as_unknown() -> None:
    early = StreamView("i:1", 0.1, None, None, None, None, None, None, None, None)
    assert "has a load of" in report_text(report([POOL], {("a pool", WORKER.worker_id): early}))


def test_a_user_who_may_not_ask_and_a_walk_that_was_cut_are_noted() -> None:
    blind = replace(PART, log_bytes=None, keys_bytes=None, stray_sets=None)
    text = report_text(
        report([replace(POOL, parts=[blind])], server=ServerView(1, None, None, None), survey_complete=False)
    )
    assert "? used" in text
    assert "the index about ?" in text
    assert "may not run INFO" in text
    assert "more keys than were looked at" in text


def test_what_is_wrong_is_noted() -> None:
    pool = replace(
        POOL,
        parts=[replace(PART, stray_sets=2), replace(PART, part=3)],
        problems=["the record of worker x is malformed"],
    )
    text = report_text(report([pool], server=replace(SERVER, policy="allkeys-lru")))
    assert "2 sets of keys belong to no worker" in text
    assert "parts [3] are left over: it has 1" in text
    assert "record of worker x is malformed" in text
    assert "set maxmemory-policy noeviction, not allkeys-lru" in text


def test_workers_in_odd_states_are_told_apart() -> None:
    odd = [
        replace(WORKER, late=True, beat_age_seconds=600.0),
        replace(WORKER, worker_id="new", slot=0, seq=0, snapshot_chunks=3, tiers={}, beat_age_seconds=None),
        replace(WORKER, worker_id="silent", publishes_events=False, tiers={}),
    ]
    text = report_text(report([replace(POOL, workers=odd)]))
    assert "3 workers, 1 late" in text
    assert "10 min late" in text
    assert "no slot yet, 3 chunks of a snapshot" in text
    assert "publishes no events" in text


def test_an_empty_index_and_an_empty_pool_say_so() -> None:
    assert "No pool is in the index" in report_text(report([]))
    empty = replace(POOL, workers=[], parts=[PartView(0, 0, None, 0, 0, 0)])
    text = report_text(report([empty]))
    assert "Pool a pool: 0 workers, 0 late; 0 keys on device" in text
    assert "?" not in text


def test_a_tier_that_no_worker_has_takes_no_column() -> None:
    workers = [replace(WORKER, tiers={"device": TierView(1, 2, 0.5)})]
    text = report_text(report([replace(POOL, workers=workers)]))
    assert "HOST" not in text
    assert "on host" not in text


def holder(worker_id: str, blocks: int, host: int = 0, *, late: bool = False) -> HolderView:
    return HolderView(
        worker_id, "h:1", late, blocks, blocks - host, host, blocks * 64, (blocks - host) * 64, host * 64, blocks * 0.32
    )


def test_a_prompt_and_its_holders() -> None:
    view = PromptView("p", "chat", 200, 3, 64, "f", (holder("a", 3, 1), holder("b", 1, late=True), holder("c", 0)))
    text = prompt_text(view)
    assert "Pool p: chat, 200 tokens = 3 index blocks of 64 tokens, and 8 tokens without a key" in text
    row = next(line for line in text.splitlines() if line.startswith("a "))
    assert row.split() == ["a", "h:1", "3", "192", "96.0%", "128", "64"]
    assert "late: routed by load" in text
    assert "1 of 3 workers hold nothing of it." in text
    short = prompt_text(replace(view, tokens=3, blocks=0, holders=(holder("a", 0),)))
    assert "shorter than an index block" in short


def test_ids_lose_their_middle_and_control_characters_their_effect() -> None:
    assert cut("a" * 40) == "a" * 40
    assert cut("0123456789" * 5, 11) == "01234…56789"
    assert len(cut("x" * 256, 16)) == 16
    assert "\x1b" not in cut("\x1b[31mred")


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0.0, "0.0 s"), (99.9, "99.9 s"), (120, "2 min"), (7200, "2 h")]
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "?"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2.0 GB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_columns_are_aligned_and_empty_ones_go() -> None:
    assert align([("A", "B", "C"), ("x", "", "10"), ("long", "-", "9")]) == ["A      C", "x     10", "long   9"]
