"""A pool's workers and what they say of themselves: engine, adapters, and how they key prompts.

Derived again whenever discovery's targets or the index's workers change; between changes it is plain attributes. No
I/O.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.prompts.keyer import KeySpace
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import Worker, WorkerTable
from indexer.keys import pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Mirror
from warmroute.config.pool import PoolConfig
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS

logger = logging.getLogger(__name__)

WARNINGS: Final = 16
"""Different warnings of a pool that are logged, each once."""


class IndexView(Protocol):
    """What routing reads of a pool's index: `indexer.reader.pool_index.PoolIndex`, or a replay's own."""

    @property
    def mirror(self) -> Mirror: ...

    @property
    def late(self) -> frozenset[str]:
        """Workers whose entries do not count now, by their id in the index."""
        ...


class PoolCensus:
    """Ask `current()` first, which derives the answers again where the index changed. Bounded by discovery's targets
    and WARNINGS."""

    def __init__(self, config: PoolConfig, index: IndexView, on_left: Callable[[Worker], None]) -> None:
        """`on_left` is called with every worker that requests can no longer go to."""
        self.workers = WorkerTable()
        """Discovery's workers, those that get no requests now among them."""
        self.space: KeySpace | None = None
        """What most workers key by; None where no worker keys with the gateway's own tokenizer."""
        self.engine: str | None = config.engine
        """The configured one, whatever workers say; the engine that most workers name where none is configured."""
        self.engines: frozenset[str] = frozenset()
        """The configured one alone, whatever workers say, for what a tenant may ask hangs on it; else all they name."""
        self.adapters: frozenset[str] = frozenset()
        """Adapters that at least one worker serves."""
        self.worker_facts: list[WorkerFacts] = []
        """What the workers say of themselves, of those that the index knows."""
        self.approximate = 0
        """Workers in approximate mode, see `gateway.routing.state.approximate`."""
        self._config = config
        self._index = index
        self._on_left = on_left
        self._mirror: Mirror | None = None
        self._mirror_changes = 0
        self._tokenizer_digest = ""
        self._warned: set[str] = set()
        self._derive()

    def current(self) -> PoolCensus:
        """The census itself, up to date with the index."""
        mirror = self._index.mirror
        if self._mirror is not mirror or self._mirror_changes != mirror.worker_changes:
            self._mirror, self._mirror_changes = mirror, mirror.worker_changes
            for worker in self.workers.set_index(mirror.workers, mirror.slots):
                self._on_left(worker)
            self._derive()
        return self

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take discovery's complete set; returns the workers that left."""
        left = self.workers.set_targets(targets)
        for worker in left:
            self._on_left(worker)
        self._derive()
        return left

    def use_tokenizer(self, digest: str) -> None:
        """Take the digest of the tokenizer that the gateway has for this pool."""
        self._tokenizer_digest = digest
        self._mirror = None

    def _derive(self) -> None:
        """All attributes, from the workers that requests can go to; others of the index do not count."""
        config = self._config
        self.worker_facts = [worker.facts for worker in self.workers.all if worker.facts is not None]
        self.approximate = sum([worker.approximate for worker in self.workers.all])
        engines = Counter([config.engine] if config.engine else [facts.engine for facts in self.worker_facts])
        self.engine = engines.most_common(1)[0][0] if engines else None
        self.engines = frozenset(engines)
        self.adapters = frozenset(adapter for facts in self.worker_facts for adapter in facts.adapters)
        self.space = self._key_space()

    def _key_space(self) -> KeySpace | None:
        """Workers' fingerprints are checked against the gateway's own files: with other files every key would be wrong,
        and nothing would show it."""
        spaces: Counter[KeySpace] = Counter()
        for facts in self.worker_facts:
            if facts.model != self._config.model:
                self._warn_of_model(facts)
            expected = self._fingerprint(facts.index_block_tokens, facts.model)
            if facts.fingerprint == expected:
                spaces[KeySpace(facts.fingerprint, facts.index_block_tokens)] += 1
            elif self._tokenizer_digest:
                self._warn_of_fingerprint(facts, expected)
        if len(spaces) > 1 and "mixed" not in self._warned:
            self._warned.add("mixed")
            logger.warning("pool %s: its workers key in %d ways; most win: %s", self._config.name, len(spaces), spaces)
        if spaces:
            return spaces.most_common(1)[0][0]
        if self.worker_facts or not len(self.workers) or not self._tokenizer_digest:
            return None
        # No worker sent Hello: prompts are keyed for approximate mode, as workers would.
        size = DEFAULT_INDEX_BLOCK_TOKENS
        return KeySpace(self._fingerprint(size, self._config.model), size)

    def _fingerprint(self, index_block_tokens: int, model: str) -> str:
        return pool_fingerprint(
            index_block_tokens=index_block_tokens, base_model=model, tokenizer=self._tokenizer_digest
        )

    def _warn_of_model(self, facts: WorkerFacts) -> None:
        if self._is_new(facts.model):
            logger.warning(
                "pool %s: worker %s says that it serves %s, not %s",
                self._config.name,
                facts.address,
                facts.model,
                self._config.model,
            )

    def _warn_of_fingerprint(self, facts: WorkerFacts, expected: str) -> None:
        if self._is_new(facts.fingerprint):
            logger.error(
                "pool %s: worker %s has fingerprint %s, this gateway's tokenizer gives %s: it is routed by load. "
                "Give all of the pool's workers the same files, and model_path too where it is set",
                self._config.name,
                facts.address,
                facts.fingerprint,
                expected,
            )

    def _is_new(self, subject: str) -> bool:
        """Whether to warn of it; not again then."""
        if subject in self._warned or len(self._warned) >= WARNINGS:
            return False
        self._warned.add(subject)
        return True
