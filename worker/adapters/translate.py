"""From an engine's events to those of `publish.index_blocks`: tiers, groups of layers, sizes, reports of repeats.

One translator a worker. Pure; the state is bounded as said at its fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from worker.adapters.events import Cleared, EngineEvent, Group, Moved, Removed, Stored
from worker.events import AdapterReplaced, BlockHash, BlocksRemoved, BlocksStored, CacheCleared, CacheEvent, Tier

# Names of adapters remembered; one that is forgotten and then loaded anew is not noticed.
MOST_ADAPTERS: Final = 4096


class Translator:
    """Translates the events of one rank, batch by batch, in order.

    `ignored` counts blocks left out, by reason: `medium` (disks and remote stores), `group` (layers that do not attend
    to everything), `size` (blocks of another size than the engine said).
    """

    def __init__(self, block_tokens: int, tiers: Mapping[str, Tier], *, most_host_blocks: int) -> None:
        """`block_tokens`: of the engine's device blocks. `tiers`: `Engine.tiers`. `most_host_blocks` bounds what is
        kept of larger ones."""
        self.block_tokens = block_tokens
        self.ignored: Counter[str] = Counter()
        self.seen_block_tokens = 0
        """Tokens in a device block of another size than was said; 0 while there was none."""
        self._group: Group | None = None
        # Host blocks of several device blocks: how many of those, and how many copies. Bounded by `most_host_blocks`.
        self._large: dict[BlockHash, list[int]] = {}
        self._tiers = tiers
        self._most_host_blocks = most_host_blocks
        self._adapters: dict[str, int] = {}

    def translate(self, events: Sequence[EngineEvent]) -> list[CacheEvent]:
        """The same as events of the table."""
        translated: list[CacheEvent] = []
        if self._choose_group(events):
            translated.append(self._clear())
        wanted = [event for event in events if self._wanted(event)]
        following = {id(one) for one, after in pairwise(wanted) if _repeats(one, after)}
        for event in wanted:
            match event:
                case Stored():
                    if event.adapter_number is not None and self._is_replaced(event.adapter, event.adapter_number):
                        translated.append(AdapterReplaced(event.adapter))
                    translated.extend(self._stored(event, repeats=id(event) in following))
                case Removed(block_hashes, None):
                    translated.append(BlocksRemoved(block_hashes, None))
                case Removed():
                    translated.extend(self._removed(event.block_hashes, event.medium))
                case Moved(block_hash, old, new):
                    if (tier := self._tiers.get(new)) is not None:
                        translated.append(BlocksStored((block_hash,), None, (), tier=tier))
                    translated.extend(self._removed((block_hash,), old))
                case Cleared():
                    translated.append(self._clear())
        return translated

    @property
    def numbers_adapters(self) -> bool:
        """Whether the engine's events tell one loading of an adapter from another."""
        return bool(self._adapters)

    def forget(self) -> None:
        """The cache is another one, of a new life of the engine perhaps."""
        self._large.clear()
        self._adapters.clear()
        self._group = None

    def _is_replaced(self, adapter: str, number: int) -> bool:
        """Whether this name stood for another loading before: perhaps for other weights."""
        before = self._adapters.get(adapter, number)
        if len(self._adapters) >= MOST_ADAPTERS and adapter not in self._adapters:
            del self._adapters[next(iter(self._adapters))]
        self._adapters[adapter] = number
        return before != number

    def _clear(self) -> CacheCleared:
        self._large.clear()
        return CacheCleared()

    def _choose_group(self, events: Iterable[EngineEvent]) -> bool:
        """Follow the group that attends furthest, the first of several; says whether it changed."""
        best = self._group
        for event in events:
            if isinstance(event, Stored):
                group = event.group
                if best is None or (group.window, -group.number) > (best.window, -best.number):
                    best = group
        changed = self._group is not None and best != self._group
        self._group = best
        return changed

    def _wanted(self, event: EngineEvent) -> bool:
        """Whether an event is of the followed group, and of a tier."""
        if isinstance(event, Cleared):
            return True
        number = event.group.number if isinstance(event, Stored) else event.group
        if self._group is not None and number != self._group.number:
            self.ignored["group"] += 1 if isinstance(event, Moved) else len(event.block_hashes)
            return False
        if not isinstance(event, Moved) and event.medium is not None and event.medium not in self._tiers:
            self.ignored["medium"] += len(event.block_hashes)
            return False
        return True

    def _stored(self, event: Stored, *, repeats: bool) -> list[CacheEvent]:
        tier = self._tiers[event.medium]
        hashes, parent = event.block_hashes, event.parent
        if not event.token_ids:
            return [BlocksStored(hashes, None, (), tier=tier)]
        if event.block_tokens != self.block_tokens:
            number, rest = divmod(event.block_tokens, self.block_tokens)
            whole = len(event.token_ids) == len(hashes) * event.block_tokens
            if tier != "host" or rest or number < 2 or not whole or len(self._large) >= self._most_host_blocks:
                self.ignored["size"] += len(hashes)
                if tier == "device":
                    self.seen_block_tokens = event.block_tokens
                return []
            # Named by numbers within the large one: its own hash names the device block that it ends with.
            for block_hash in hashes:
                self._large.setdefault(block_hash, [number, 0])[1] += 1
            hashes = [(block_hash, part) for block_hash in hashes for part in range(number)]
        if tier == "host" and parent in self._large:
            parent = (parent, self._large[parent][0] - 1)
        extras = event.extras if len(hashes) == len(event.block_hashes) else None
        return [BlocksStored(hashes, parent, event.token_ids, event.salt, event.adapter, tier, extras, repeats)]

    def _removed(self, hashes: Sequence[BlockHash], medium: str | None) -> list[CacheEvent]:
        tier = self._tiers.get(medium) if medium is not None else None
        if tier is None:
            return []
        if tier == "device" or not self._large:
            return [BlocksRemoved(hashes, tier)]
        parts: list[BlockHash] = []
        for block_hash in hashes:
            large = self._large.get(block_hash)
            if large is None:
                parts.append(block_hash)
                continue
            large[1] -= 1
            if not large[1]:
                del self._large[block_hash]
            parts.extend((block_hash, part) for part in range(large[0]))
        return [BlocksRemoved(parts, tier)]


def _repeats(one: EngineEvent, after: EngineEvent) -> bool:
    """Whether `one` only reports what a request found in the cache, before `after` says what it added.

    So does vLLM for requests with `kv_cache_report_mode: full`. Blocks that are computed a second time come in one
    event with those that follow them.
    """
    return (
        isinstance(one, Stored)
        and isinstance(after, Stored)
        and one.parent is None
        and bool(one.block_hashes)
        and after.parent == one.block_hashes[-1]
    )
