"""A naive engine against decoder, translator and table: salts, adapters, pictures, tiers and copies, all at once."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, NamedTuple

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.keys import Extra, prompt_keys
from tests.worker.adapters.support import FINGERPRINT, Reader
from worker.adapters.msgpack_events import _REMOVED, _STORED, decode_batch

BLOCK = 4
PICTURE, PICTURE_TOKENS = 3, 6


class Block(NamedTuple):
    """One engine block and all before it. `kinds`: what its prompt's blocks are; one of `PICTURE` begins a picture."""

    kinds: tuple[int, ...]
    salt: str
    adapter: str
    loading: int | None

    @property
    def name(self) -> int:
        return int.from_bytes(hashlib.sha256(repr(self).encode()).digest()[:8])

    @property
    def tokens(self) -> list[int]:
        return [kind for kind in self.kinds for _ in range(BLOCK)]

    def ancestor(self, blocks: int) -> Block:
        return self._replace(kinds=self.kinds[:blocks])

    def pictures(self, begin: int, end: int) -> list[Extra]:
        """Those that overlap these tokens, by offsets to the first of them; each begins at its block's second token."""
        starts = [number * BLOCK + 1 for number, kind in enumerate(self.kinds) if kind == PICTURE]
        return [(b"img", start - begin) for start in starts if start < end and start + PICTURE_TOKENS > begin]

    def extra_keys(self) -> list[Any] | None:
        end = len(self.tokens)
        keys: list[Any] = [self.adapter] if self.adapter else []
        keys += [["img", offset] for _, offset in self.pictures(end - BLOCK, end)]
        return keys + ([self.salt] if self.salt and len(self.kinds) == 1 else []) or None


class TruthMachine(RuleBasedStateMachine):
    """Copies of blocks by tier, and the keys of the index blocks whose engine blocks are all there."""

    @initialize(index_tokens=st.sampled_from([4, 8, 16]), arrays=st.booleans())
    def start(self, index_tokens: int, arrays: bool) -> None:
        self.reader = Reader(BLOCK, index_tokens)
        self.index_tokens, self.arrays = index_tokens, arrays
        self.copies: dict[str, Counter[Block]] = {"GPU": Counter(), "CPU": Counter()}
        self.loadings = {"a": 1, "b": 2}
        self.published: dict[str, int] = {}

    def publish(self, *events: dict[str, Any]) -> None:
        if self.arrays:
            names = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}
            raw = [[event["type"], *(event.get(name) for name in names[event["type"]])] for event in events]
            batch = decode_batch(msgpack.packb([1.0, raw]))
        else:
            batch = decode_batch(msgpack.packb({"ts": 1.0, "events": list(events), "a_later_field": 1}))
        assert not batch.undecodable
        self.reader.apply(self.reader.translator.translate(batch.events))

    def stored(self, block: Block, first: int, medium: str = "GPU", **fields: Any) -> dict[str, Any]:
        """The blocks of a prompt from number `first` on, in one event."""
        run = [block.ancestor(number + 1) for number in range(first, len(block.kinds))]
        tokens = block.tokens[first * BLOCK :]
        return {
            "type": "BlockStored", "block_hashes": [one.name for one in run], "token_ids": tokens,
            "parent_block_hash": block.ancestor(first).name if first else None, "block_size": BLOCK, "medium": medium,
            "lora_name": block.adapter or None, "lora_id": block.loading, "group_idx": 0,
            "extra_keys": [one.extra_keys() for one in run], "kv_cache_spec_kind": "full_attention", **fields,
        }  # fmt: skip

    def held(self, *media: str) -> list[Block]:
        return sorted({block for medium in media for block, number in self.copies[medium].items() if number})

    @rule(
        kinds=st.lists(st.sampled_from([1, 2, PICTURE]), min_size=1, max_size=9),
        salt=st.sampled_from(["", "s"]),
        adapter=st.sampled_from(["", "a", "b"]),
        anew=st.booleans(),
    )
    def request(self, kinds: list[int], salt: str, adapter: str, anew: bool) -> None:
        """Computes what is not cached; `anew` all of it, as for a prompt whose cached blocks were just taken away."""
        loading = self.loadings.get(adapter)
        block = Block(tuple(kinds), salt, adapter, loading)
        first = 0
        while not anew and first < len(kinds) and self.copies["GPU"][block.ancestor(first + 1)]:
            first += 1
        if first == len(kinds):
            return
        if loading is not None and self.published.setdefault(adapter, loading) != loading:
            for copies in self.copies.values():
                for old in [old for old in copies if old.adapter == adapter]:
                    del copies[old]
            self.published[adapter] = loading
        self.publish(self.stored(block, first))
        self.copies["GPU"].update(block.ancestor(number + 1) for number in range(first, len(kinds)))

    @rule(data=st.data(), medium=st.sampled_from(["GPU", "CPU"]))
    def evict(self, data: st.DataObject, medium: str) -> None:
        if blocks := self.held(medium):
            block = data.draw(st.sampled_from(blocks))
            self.copies[medium][block] -= 1
            self.publish({"type": "BlockRemoved", "block_hashes": [block.name], "medium": medium})

    @rule(data=st.data(), describing=st.booleans())
    def offload(self, data: st.DataObject, describing: bool) -> None:
        if blocks := self.held("GPU"):
            block = data.draw(st.sampled_from(blocks))
            self.copies["CPU"][block] += 1
            fields = {"extra_keys": None} if describing else {"token_ids": [], "block_size": 0, "extra_keys": None}
            self.publish(self.stored(block, len(block.kinds) - 1, "CPU", **fields))

    @rule(data=st.data())
    def load_back(self, data: st.DataObject) -> None:
        if blocks := self.held("CPU"):
            block = data.draw(st.sampled_from(blocks))
            self.copies["GPU"][block] += 1
            self.publish(self.stored(block, len(block.kinds) - 1))

    @rule(adapter=st.sampled_from(["a", "b"]))
    def load_adapter_anew(self, adapter: str) -> None:
        self.loadings[adapter] += 10

    @rule()
    def clear(self) -> None:
        self.copies = {"GPU": Counter(), "CPU": Counter()}
        self.publish({"type": "AllBlocksCleared"})

    def keys(self, *media: str) -> set[int]:
        """Keys of the index blocks all of whose engine blocks have a copy on one of the media."""
        size, there = self.index_tokens, set(self.held(*media))
        keys: set[int] = set()
        for block in there:
            number = len(block.tokens) // size - 1
            whole = [block.ancestor(part) for part in range(number * size // BLOCK + 1, len(block.kinds) + 1)]
            if number < 0 or len(block.tokens) % size or not there.issuperset(whole):
                continue
            extras = {part: block.pictures(part * size, (part + 1) * size) for part in range(number + 1)}
            root = {"adapter": block.adapter, "salt": block.salt}
            keys.add(prompt_keys(block.tokens, FINGERPRINT, block_tokens=size, extras=extras, **root)[-1])
        return keys

    @invariant()
    def the_index_is_the_truth(self) -> None:
        if hasattr(self, "reader"):
            device = self.keys("GPU")
            assert self.reader.keys == {"device": device, "host": self.keys("GPU", "CPU") - device}
            assert self.reader.table.orphaned == self.reader.table.skipped == 0


TestTruthMachine = TruthMachine.TestCase
TestTruthMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
