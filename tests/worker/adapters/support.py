"""Captures of real engines, and a naive reading of them that shares no code with the adapters."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from indexer.keys import prompt_keys
from worker.adapters.msgpack_events import TIERS, decode_batch
from worker.adapters.sequence import Sequence, Verdict
from worker.adapters.translate import Translator
from worker.events import Tier
from worker.publish.index_blocks import Changes, IndexBlocks

FINGERPRINT = "f"
VARIABLE = "WARMROUTE_TEST_FIXTURES"


def fixtures() -> Path:
    """The folder of the captures; skips the test where there is none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with captures of real engines")
    return Path(folder)


def scenario_names(kind: str) -> list[str]:
    """Names of the captures of one engine, for parametrising; one stand-in where there are none."""
    folder = os.environ.get(VARIABLE)
    found = sorted(path.parent.name for path in Path(folder, kind).glob("*/frames.jsonl")) if folder else []
    return found or ["(no captures)"]


@dataclass
class Scenario:
    """One capture: ZMQ frames, the same decoded, and the requests that caused them."""

    name: str
    frames: list[list[bytes]]
    decoded: list[dict[str, Any]]
    about: dict[str, Any]

    @property
    def block_tokens(self) -> int:
        for batch in self.batches():
            for event in batch["batch"][1]:
                if kind(event) == "BlockStored":
                    return event["block_size"] if isinstance(event, dict) else event[4]
        return self.about.get("block_size", 16)

    def batches(self) -> list[dict[str, Any]]:
        """Decoded messages without the end marker of a replay."""
        return [message for message in self.decoded if message["batch"] is not None]


def scenario(engine: str, name: str) -> Scenario:
    folder = fixtures() / engine / name
    lines = (folder / "frames.jsonl").read_text(encoding="utf-8").splitlines()
    frames = [[base64.b64decode(frame) for frame in json.loads(line)["frames"]] for line in lines]
    decoded = json.loads((folder / "decoded.json").read_text(encoding="utf-8"))
    return Scenario(name, frames, decoded, json.loads((folder / "requests.json").read_text(encoding="utf-8")))


def kind(event: Any) -> str:
    return event["type"] if isinstance(event, dict) else event[0]


def named(event: Any) -> dict[str, Any]:
    """An event as a map, whatever it is."""
    if isinstance(event, dict):
        return event
    stored = ("block_hashes", "parent_block_hash", "token_ids", "block_size")
    stored += ("lora_id", "medium", "lora_name", "extra_keys")
    names = stored if event[0] == "BlockStored" else ("block_hashes", "medium")
    return {"type": event[0], **dict(zip(names, event[1:], strict=False))}


@dataclass
class Naive:
    """Copies of every block, and of each the whole prompt before it. No index, no keys kept."""

    copies: Counter[Any] = field(default_factory=Counter)
    prompt: dict[Any, tuple[list[int], str, str]] = field(default_factory=dict)

    def apply(self, raw: Any) -> None:
        event = named(raw)
        if event["type"] == "AllBlocksCleared":
            self.copies.clear()
            return
        if event.get("group_idx"):
            return
        hashes = [str(block_hash) for block_hash in event["block_hashes"]]
        if event["type"] == "BlockRemoved":
            self.copies.subtract(hashes)
            return
        parent = event["parent_block_hash"]
        lora = event.get("lora_name") or (f"#{event['lora_id']}" if event.get("lora_id") is not None else "")
        salt = event.get("cache_salt") or ""
        for keys in (event.get("extra_keys") or [None])[:1]:
            salt = next((key for key in keys or () if isinstance(key, str) and key != lora), salt)
        before, salt, lora = ([], salt, lora) if parent is None else self.prompt[str(parent)]
        for number, block_hash in enumerate(hashes):
            tokens = event["token_ids"][number * event["block_size"] :][: event["block_size"]]
            before = before + tokens
            self.prompt[block_hash] = (before, salt, lora)
            self.copies[block_hash] += 1

    def keys(self, block_tokens: int, index_tokens: int, fingerprint: str = FINGERPRINT) -> set[int]:
        """Keys of all index blocks whose engine blocks are all held."""
        held = {name for name, copies in self.copies.items() if copies > 0}
        prefixes = {(salt, lora, tuple(tokens)) for tokens, salt, lora in map(self.prompt.__getitem__, held)}
        keys: set[int] = set()
        for salt, lora, tokens in prefixes:
            chain = prompt_keys(tokens, fingerprint, block_tokens=index_tokens, adapter=lora, salt=salt)
            for number, key in enumerate(chain):
                begin, end = number * index_tokens, (number + 1) * index_tokens
                first, last = begin // block_tokens + 1, -(-end // block_tokens)
                ends = [block * block_tokens for block in range(first, last + 1)]
                if all((salt, lora, tokens[:stop]) in prefixes for stop in ends if stop <= len(tokens)):
                    keys.add(key)
        return keys


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from([0, 1, -1, 2**32, float("inf"), "1", "GPU", "CPU"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "old", "hash"]), inner),
    max_leaves=5,
)
"""Values of every kind that msgpack and JSON know, wrong ones above all."""


def places(value: Any) -> int:
    """How many values there are in nested lists and maps, the whole of it included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(places, inner))


def replaced(value: Any, place: int, junk: Any) -> Any:
    """The same with `junk` in place of the value of that number, counted from the outside."""
    place %= places(value)
    if not place:
        return junk
    place -= 1
    copy = value.copy()
    for key in value if isinstance(value, dict) else range(len(value)):
        if place < places(value[key]):
            copy[key] = replaced(value[key], place, junk)
            break
        place -= places(value[key])
    return copy


class Reader:
    """The adapter's pure core over raw frames: sequence, decoder, translator, table."""

    def __init__(self, block_tokens: int, index_tokens: int, tiers: Mapping[str, Tier] = TIERS, **bounds: int) -> None:
        self.sequence = Sequence()
        self._tiers = tiers
        self.translator = Translator(block_tokens, tiers, most_host_blocks=1000)
        self.table = IndexBlocks(
            engine_block_tokens=block_tokens, index_block_tokens=index_tokens, fingerprint=FINGERPRINT, **bounds
        )
        self.keys: dict[str, set[int]] = {"device": set(), "host": set()}
        self.lives = 0

    def message(self, frames: list[bytes], *, first: bool = False) -> None:
        """One live message. `first`: whatever its number, nothing is missing before it."""
        number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        batch = decode_batch(payload)
        assert batch.undecodable == 0
        verdict = self.sequence.judge(number, batch.at)
        if verdict is Verdict.NEW_LIFE:
            self.sequence.restart()
            self.lives += 1
            self.translator = Translator(self.table.engine_block_tokens, self._tiers, most_host_blocks=1000)
            self.apply([], clear=True)
            verdict = self.sequence.judge(number, batch.at)
        if verdict is Verdict.REPEAT:
            return
        assert verdict is Verdict.APPLY or (first and verdict is Verdict.GAP)
        self.sequence.advance(number, batch.at)
        self.apply(self.translator.translate(batch.events))

    def apply(self, events: list[Any], *, clear: bool = False) -> None:
        from worker.events import CacheCleared

        device, host = Changes(), Changes()
        if self.table.apply([CacheCleared(), *events] if clear else events, device, host):
            self.keys = {"device": set(), "host": set()}
        for tier, changes in (("device", device), ("host", host)):
            held = self.keys[tier]
            assert changes.added.isdisjoint(held)
            assert changes.removed <= held
            self.keys[tier] = (held - changes.removed) | changes.added
            assert self.keys[tier] == self.table.held(tier)
