"""The text of `warmroute explain`: within 100 columns, the winner marked, nothing left out silently."""

from __future__ import annotations

from typing import Any

from warmroute.cli.explain_table import ROWS, explanation_text


def worker(name: str, cost: float | None, **changes: Any) -> dict[str, Any]:
    terms = None
    if cost is not None:
        terms = {"pending_tokens": 100.0, "uncached_tokens": 614.4, "work_tokens": 614.4, "in_flight": 3}
        terms |= {"decode": 300.0, "memory": 0.0, "cost": cost}
    return {
        "worker": name,
        "address": "10.0.0.1:8000",
        "state": "ready",
        "removed_by": None if cost is not None else "ejected",
        "index": "current",
        "match": {
            "matched_tokens": 6144,
            "device_tokens": 6144,
            "host_tokens": 0,
            "approximate_tokens": 0,
            "predicted_tokens": 0,
        },
        "load": {"in_flight": 3, "reserved_tokens": 100, "waiting_tokens": 50, "kv_use": 0.5},
        "terms": terms,
        "estimate_seconds": None,
        **changes,
    }


def explanation(**changes: Any) -> dict[str, Any]:
    prompt = {"tokens": 6758, "blocks": 105, "index_block_tokens": 64, "load_only": None, "exact": True}
    prompt |= {"counted_by": "gateway", "salted": False}
    prompt["segments"] = [
        {"source": "messages[0] (system)", "first_token": 0, "tokens": 6000},
        {"source": "template", "first_token": 6000, "tokens": 8},
        {"source": "messages[1] (user)", "first_token": 6008, "tokens": 750},
    ]
    decision = {
        "policy": "warm",
        "unit": "tokens",
        "weights": {"g": None, "w": 0.2, "decode_tokens": 100.0},
        "bookings": "all gateways",
        "candidates": 2,
        "winner": {"worker": "vllm-0", "cost": 1234.5, "tied": 1, "next_best": "vllm-1", "margin": 4000.0},
        "workers": [worker("vllm-0", 1234.5), worker("vllm-1", 5234.5), worker("vllm-2", None)],
    }
    prompt |= changes.pop("prompt", {})
    decision |= changes.pop("decision", {})
    return {
        "path": "/v1/chat/completions",
        "pool": "chat",
        "model": "org/model",
        "adapter": "",
        "tenant": "anonymous",
        "routing": "by cache and load",
        "prompt": prompt,
        "decision": decision,
        **changes,
    }


def test_prompt_costs_matches_and_the_winner() -> None:
    text = explanation_text(explanation())
    for shown in (
        "model org/model; 6,758 tokens = 105 index blocks of 64 tokens",
        "38 without a key",
        "Tokens from messages[0] (system) 6,000, template 8, messages[1] (user) 750",
        "Policy warm (g measured, w 0.2, decode_tokens 100); costs in tokens:",
        "Not considered: vllm-2 (ejected; holds 6,144).",
        "Winner: vllm-0, at 1,234 tokens; vllm-1 would cost 4,000 more.",
    ):
        assert shown in text
    lines = text.splitlines()
    assert [line.split() for line in lines if line.startswith("*")] == [
        ["*", "vllm-0", "1,234", "100", "614", "3", "300"]
    ]
    assert "MEMORY" not in text
    assert "1ST BYTE" not in text
    assert "note:" not in text


def test_it_is_100_columns_wide_however_much_there_is_to_say() -> None:
    name = "inference-pool-0b7d6a0c-9b1e-4c0a-8f2e-3b5b8a1f0c11"
    big = {"matched_tokens": 999_999, "device_tokens": 999_999, "host_tokens": 999_999}
    big |= {"approximate_tokens": 999_999, "predicted_tokens": 999_999}
    load = {"in_flight": 99_999, "reserved_tokens": 9_999_999, "waiting_tokens": 9_999_999, "kv_use": 1.0}
    terms = {"pending_tokens": 9_999_999.0, "uncached_tokens": 999_999.0, "work_tokens": 1.0, "in_flight": 99_999}
    terms |= {"decode": 9_999_900.0, "memory": 50_000.0, "cost": 19_999_999.0}
    terms |= {"slot_wait": 20_000.0, "eviction": 8.25, "queued": 2.0}
    full = worker(name, 1.0, match=big, load=load, terms=terms, estimate_seconds=123.456, index="current")
    segments = [{"source": f"messages[{number}] (assistant)", "first_token": 0, "tokens": 9} for number in range(300)]
    winner = {"worker": name, "cost": 19_999_999.0, "tied": 1, "next_best": name, "margin": 9_999_999.0}
    decision = {"workers": [full], "bookings": "own", "winner": winner}
    text = explanation_text(explanation(prompt={"segments": segments}, decision=decision))
    assert max(map(len, text.splitlines())) <= 100
    assert "294 other parts 2,646" in " ".join(text.split())
    for column in ("PRICE", "SLOT", "MEMORY", "1ST BYTE", "DEVICE", "HOST", "ROUTED", "EXPECTED", "WAITING", "KV USE"):
        assert column in text


def test_a_prompt_without_keys_says_why() -> None:
    text = explanation_text(explanation(prompt={"load_only": "no_tokenizer", "blocks": 0, "segments": None}))
    assert "about 6,758 tokens, routed by load alone: the gateway has no tokenizer for this pool" in " ".join(
        text.split()
    )
    text = explanation_text(explanation(prompt={"load_only": "new_reason", "tokens": 0, "segments": None}))
    assert "of a length that is not known, routed by load alone: new_reason" in " ".join(text.split())


def test_no_worker_a_tie_and_a_single_one() -> None:
    none = {"winner": None, "unit": None, "workers": [worker("a", None)]}
    assert "No worker can be asked: a client would get 503." in explanation_text(explanation(decision=none))
    tied = {"worker": "vllm-1", "cost": 0.25, "tied": 2, "next_best": "vllm-0", "margin": 0.0}
    text = explanation_text(explanation(decision={"winner": tied, "unit": "seconds"}))
    assert "Winner: vllm-1, at 0.250 seconds; 2 cost the same, of which one is drawn each time." in text
    only = {"worker": "vllm-0", "cost": 3.0, "tied": 1, "next_best": None, "margin": None}
    assert "at 3 requests; there is no other." in explanation_text(
        explanation(decision={"winner": only, "unit": "requests"})
    )


def test_of_many_workers_the_cheapest_are_shown_and_the_winner_always() -> None:
    workers = [worker(f"w{number}", float(number)) for number in range(100)]
    gone = [worker(f"g{number}", None) for number in range(30)]
    winner = {"worker": "w77", "cost": 77.0, "tied": 1, "next_best": "w0", "margin": -77.0}
    text = explanation_text(explanation(decision={"workers": [*workers, *gone], "winner": winner}))
    assert sum(line.split()[:1] == ["*"] for line in text.splitlines()) == 1
    assert "*  w77" in text
    assert "w0 would cost 77 less." in text
    assert f"{100 - ROWS} more cost more or the same; --json has all." in text
    assert "and 10 more." in text


def test_notes_say_what_is_not_known() -> None:
    silent = {"in_flight": 0, "reserved_tokens": 0, "waiting_tokens": None, "kv_use": None}
    workers = [worker("vllm-0", 1.0), worker("b", 2.0, load=silent), worker("c", 3.0, index="late")]
    text = explanation_text(
        explanation(prompt={"counted_by": "engine", "exact": False}, decision={"workers": workers, "bookings": "own"})
    )
    for note in (
        "what other gateways",
        "1 worker without a fresh report",
        "1 worker late",
        "token ids are the engine's",
    ):
        assert f"note: {note}" in text or note in text
    assert "the engine may count otherwise" in " ".join(text.split())


def test_adapters_are_called_so() -> None:
    assert "model lora (an adapter)" in explanation_text(explanation(model="lora", adapter="lora"))
