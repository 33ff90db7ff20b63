"""Every capture of a real engine: the keys are those of what the engine says it holds, and of what it was asked."""

from __future__ import annotations

import pytest

from indexer.keys import prompt_keys
from tests.worker.adapters.support import FINGERPRINT, Naive, Reader, Scenario, kind, named, scenario, scenario_names

VLLM, SGLANG = scenario_names("vllm-events"), scenario_names("sglang-events")
# Reported with items of pictures, which the naive reading knows nothing of: see test_msgpack_events.
PICTURES = "inproc-0.32-multimodal"


def read(found: Scenario, index_tokens: int) -> tuple[Reader, Naive]:
    reader, naive = Reader(found.block_tokens, index_tokens), Naive()
    before = None
    for number, message in enumerate(found.batches()):
        reader.message(found.frames[number], first=before is None)
        if before is not None and message["seq"] <= before:
            naive.copies.clear()
        before = message["seq"]
        for event in message["batch"][1]:
            naive.apply(event)
        assert reader.keys["device"] == naive.keys(found.block_tokens, index_tokens)
    return reader, naive


@pytest.mark.parametrize("factor", [0.5, 1, 2, 4])
@pytest.mark.parametrize("name", [name for name in VLLM if name not in {PICTURES, "18-data-parallel-2"}])
def test_vllm_after_every_message_the_keys_are_those_of_the_blocks_held(name: str, factor: float) -> None:
    found = scenario("vllm-events", name)
    if name == "16-session-and-full-report":
        # The naive reading takes the report of reused blocks for copies; nothing is removed here.
        assert not any(kind(event) == "BlockRemoved" for message in found.batches() for event in message["batch"][1])
    reader, _ = read(found, int(found.block_tokens * factor))
    # That capture lacks the event of three blocks under an adapter, and has their removal.
    assert reader.table.skipped == (3 if name == "inproc-0.10.2-text" else 0)
    assert reader.table.orphaned == reader.table.overfull == 0
    assert reader.lives == (name == "10-restart")


# Captures that lack something: the token ids of replies, or messages before their first.
PARTIAL = {"11-abort", "13-n3", "15-preemption", "21-replay-buffer-of-3", PICTURES, "18-data-parallel-2"}
# The salt or the adapter is in no event of that version, or an adapter is loaded anew under its name.
UNNAMED = {"inproc-0.10.2-text", "inproc-0.16.0-text", "05-lora"}


@pytest.mark.parametrize("name", [name for name in VLLM if name not in PARTIAL | UNNAMED])
def test_vllm_keys_are_those_of_the_requests(name: str) -> None:
    """From the token ids of requests and replies alone."""
    found = scenario("vllm-events", name)
    requests = [request for request in found.about["requests"] if request.get("prompt_token_ids")]
    if name == "10-restart":
        requests = requests[3:]
    expected: set[int] = set()
    for request in requests:
        body = request.get("body") or {}
        model = body.get("model", "tiny-qwen")
        adapter = request.get("lora") or (model if model.startswith("lora") else "")
        replied = request.get("output_token_ids")
        # The last token of a reply is never computed.
        tokens = request["prompt_token_ids"] + (replied[:-1] if replied else [])
        whole = tokens[: len(tokens) - len(tokens) % found.block_tokens]
        root = {"adapter": adapter, "salt": salt_of(request)}
        expected |= set(prompt_keys(whole, FINGERPRINT, block_tokens=found.block_tokens, **root))
    reader, _ = read(found, found.block_tokens)
    kinds = {kind(event) for message in found.batches() for event in message["batch"][1]}
    if requests and kinds == {"BlockStored"}:
        assert reader.keys["device"] == expected
    elif requests:
        assert reader.keys["device"] <= expected
        assert bool(reader.keys["device"]) == bool(kinds)


def test_data_parallel_ranks_have_streams_of_their_own() -> None:
    found = scenario("vllm-events", "18-data-parallel-2")
    readers = {0: Reader(16, 16), 1: Reader(16, 16)}
    for frames, message in zip(found.frames, found.batches(), strict=True):
        readers[message["batch"][2]].message(frames)
    for request, reader in zip(found.about["requests"], readers.values(), strict=True):
        whole = request["prompt_token_ids"][:32]
        assert reader.keys["device"] == set(prompt_keys(whole, FINGERPRINT, block_tokens=16))


@pytest.mark.parametrize("name", SGLANG)
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_sglang_after_every_message_the_keys_are_those_of_the_pages_held(name: str, factor: int) -> None:
    found = scenario("sglang-events", name)
    reader, _ = read(found, found.block_tokens * factor)
    assert reader.table.orphaned == reader.table.skipped == 0
    last = [request for request in found.about["requests"] if request.get("prompt_token_ids")][-1]
    keys = prompt_keys(last["prompt_token_ids"], FINGERPRINT, block_tokens=found.block_tokens * factor)
    assert reader.keys["device"] == set(keys)


@pytest.mark.parametrize("name", ["04-cache-salt", "inproc-0.32-text", "inproc-0.23.0-text"])
def test_salted_prompts_do_not_match_without_their_salt(name: str) -> None:
    found = scenario("vllm-events", name)
    reader, _ = read(found, 16)
    salted = [request for request in found.about["requests"] if salt_of(request)]
    assert salted
    for request in salted:
        other = prompt_keys(request["prompt_token_ids"], FINGERPRINT, block_tokens=16, salt="another")
        assert reader.keys["device"].isdisjoint(other)


def salt_of(request: dict) -> str:
    return request.get("cache_salt") or (request.get("body") or {}).get("cache_salt") or ""


def test_a_restarted_engine_has_nothing_of_its_former_life() -> None:
    found = scenario("vllm-events", "10-restart")
    reader = Reader(16, 16)
    for frames in found.frames[:4]:
        reader.message(frames)
    first = named(found.batches()[3]["batch"][1][0])["token_ids"]
    assert reader.lives == 1
    assert reader.keys["device"] == set(prompt_keys(first, FINGERPRINT, block_tokens=16))


def test_an_adapter_loaded_anew_under_its_name_brings_nothing_of_the_old_one() -> None:
    found = scenario("vllm-events", "05-lora")
    reader = Reader(16, 16)
    for number, frames in enumerate(found.frames):
        reader.message(frames, first=number == 0)
    served: dict[str, set[int]] = {}
    for message in found.batches():
        for event in map(named, message["batch"][1]):
            name, number = event["lora_name"] or "", event["lora_id"]
            salt = next((key for key in event["extra_keys"][0] or () if key != name), "")
            keys = set(prompt_keys(event["token_ids"], FINGERPRINT, block_tokens=16, adapter=name, salt=salt))
            if f"{name}/{number}" not in served:
                served = {other: held for other, held in served.items() if other.split("/")[0] != name}
            served.setdefault(f"{name}/{number}", set()).update(keys)
    assert reader.keys["device"] == set().union(*served.values())
