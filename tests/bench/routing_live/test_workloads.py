"""Workloads of the live bench are seeded, and shaped as they say; figures are of the replies."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.routing_live.clients import Answer, Replies
from bench.routing_live.figures import endless_hit, figures
from bench.routing_live.workloads import RECIPES, Chat, Scale, Turn

LONG = Scale(seconds=200.0)


def test_a_seed_gives_the_same_chats_and_another_gives_others() -> None:
    for name, recipe in RECIPES.items():
        first = recipe.workload(name, 1, Scale(3.0))
        assert first == recipe.workload(name, 1, Scale(3.0))
        assert first != recipe.workload(name, 2, Scale(3.0))
        assert [chat.at for chat in first.chats] == sorted(chat.at for chat in first.chats)


def test_half_of_the_traffic_is_the_hot_tenants() -> None:
    workload = RECIPES["hot_tenant"].workload("hot_tenant", 1, LONG)
    chats = Counter(chat.tenant for chat in workload.chats)
    assert chats["tenant-0"] / len(workload.chats) == pytest.approx(0.5, abs=0.05)
    assert len(chats) == 17
    assert workload.requests / LONG.seconds == pytest.approx(40, rel=0.1)


def test_each_burst_has_a_prompt_of_its_own() -> None:
    workload = RECIPES["burst"].workload("burst", 1, Scale(4.0))
    assert set(Counter(chat.system for chat in workload.chats).values()) == {32}
    assert len({chat.turns[0].question for chat in workload.chats}) == len(workload.chats)


def answer(chat: Chat, turn: int, engine: str, prompt: int, cached: int, first: float | None) -> Answer:
    return Answer(chat, turn, engine, prompt, cached, 10, first)


def chat(tenant: str, at: float) -> Chat:
    return Chat(tenant, at, " ".join(["word"] * 60), (Turn("a", 10, 0.0),) * 2, streamed=True)


def test_figures_are_of_all_replies_and_times_of_the_streamed_ones() -> None:
    first, second = chat("a", 0.0), chat("a", 1.0)
    answers = [
        answer(second, 0, "engine-1", 100, 60, 0.3),
        answer(first, 0, "engine-0", 100, 0, 0.1),
        answer(first, 1, "engine-0", 200, 20, None),
    ]
    found = figures(Replies(answers, ["one"], seconds=2.0), engines=4, cpu_seconds=0.003)
    assert (found.requests, found.failed, found.requests_per_second) == (3, 1, 1.5)
    assert found.hit == pytest.approx(80 / 400)
    assert found.ttft_mean_ms == pytest.approx(200)
    assert (found.ttft_p50_ms, found.ttft_p99_ms) == (300, 300)
    assert found.imbalance == pytest.approx(280 / (320 / 4))
    assert found.cpu_us == pytest.approx(1000)
    # Nothing for the tenant's first prompt, prompt and reply for its next turn, the system prompt for the other chat.
    assert endless_hit(answers) == pytest.approx((110 + 60) / 400)


def test_a_run_without_replies_says_what_failed() -> None:
    with pytest.raises(ValueError, match="status 503"):
        figures(Replies([], ["status 503"]), engines=1, cpu_seconds=0)
