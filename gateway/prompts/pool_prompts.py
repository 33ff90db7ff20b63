"""Which keyer serves a pool now, and where its tokenizer is from.

A folder or a model of the hub, where the configuration names one; else the files that the pool's workers offer, fetched
from the index when they are first seen and again when the workers change to others. Until then, and where anything is
wrong, the pool's requests are routed by load, and `/readyz` says why.

Workers of one pool may offer different files, during a rollout say. One set is keyed with, that of most workers; the
others' workers match nothing and are routed by load. Keying every request once for each set would cost as much again on
every request's path, to find blocks in caches that are about to go or have just begun to fill.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from redis.exceptions import NoPermissionError, RedisError

from gateway.prompts.hub import HubError, hub_folder
from gateway.prompts.keyer import PromptKeyer, TokenizerError
from gateway.prompts.metrics import PromptMetrics
from gateway.prompts.offered_files import (
    FileSet,
    ModelFile,
    ModelFilesError,
    NotThereYetError,
    fetch,
    most_common,
    unpack,
)
from gateway.prompts.self_check import SelfCheck
from indexer.layout import WorkerFacts
from warmroute.config.pool import PoolConfig
from warmroute.redis.access import gateway_rules
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
# Workers send their files within seconds; until then a look costs one small call.
ABSENT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = (1.0, 30.0)
HUB_RETRY_SECONDS: Final = (5.0, 300.0)
# A gateway that starts takes no requests this long for workers' files that are on their way.
SETTLE_SECONDS: Final = 10.0
# Requests that began with a keyer are through with it, or have given up, long before.
RETIRE_SECONDS: Final = 10.0

NOTHING_OFFERED: Final = "no worker has offered its tokenizer yet"

Source = Literal["folder", "hub", "workers", "none"]
SOURCES: Final[tuple[Source, ...]] = ("folder", "hub", "workers", "none")
Attempt = Literal["done", "absent", "failed"]


@dataclass(slots=True)
class PoolPrompts:
    """What a pool's prompts are keyed with now; `keyer` None: requests go by load, and `trouble` says why."""

    keyer: PromptKeyer | None = None
    origin: str = ""
    """Where the tokenizer is from, for people."""
    trouble: str = NOTHING_OFFERED
    check: SelfCheck = field(default_factory=SelfCheck)
    """What replies say of this keyer's token ids."""

    def describe(self) -> str:
        """Where the tokenizer is from, or why there is none."""
        if self.keyer is None:
            return f"none: {self.trouble}"
        return f"{self.origin}; {self.trouble}" if self.trouble else self.origin


class KeyerSupply:
    """Fills a pool's `prompts`. `run` is the one task; its owner cancels and watches it, and calls `close` at the end.

    Memory: the keyer in use, one that is being made, and for `RETIRE_SECONDS` those that it replaced.
    """

    def __init__(
        self,
        config: PoolConfig,
        metrics: PromptMetrics,
        *,
        redis: Client,
        workers: Callable[[], Iterable[WorkerFacts]],
        use_tokenizer: Callable[[str], None],
        make: Callable[[Path], PromptKeyer],
    ) -> None:
        """`workers`: what the pool's workers say now. `use_tokenizer` is told the digest of a tokenizer put to use.
        `make` reads a model's folder, all of it at once, on a thread; it raises TokenizerError.
        """
        self.prompts = PoolPrompts()
        self._config = config
        self._metrics = metrics
        self._redis = redis
        self._workers = workers
        self._use_tokenizer = use_tokenizer
        self._make = make
        self._files: FileSet | None = None
        self._retired: list[tuple[float, PromptKeyer]] = []
        self._complained = ""
        self._offered_at: float | None = None
        """When a worker's files were first seen."""
        self._set_source("none")
        if config.model_path is not None:
            self._load_folder(config.model_path)
        elif config.tokenizer is not None:
            self.prompts.trouble = f"{config.tokenizer} is being fetched from the hub"

    async def run(self) -> None:
        """Keep the keyer what the configuration or the workers ask for."""
        name = self._config.tokenizer
        shortest, longest = RETRY_SECONDS if name is None else HUB_RETRY_SECONDS
        delay, retry_at = shortest, 0.0
        while True:
            now = time.monotonic()
            self._close_retired(now)
            facts = list(self._workers())
            self._count_sets(facts)
            if now >= retry_at and self._config.model_path is None:
                attempt = await (self._try_workers(facts) if name is None else self._try_hub(name))
                wait = {"done": 0.0, "absent": ABSENT_SECONDS, "failed": delay}[attempt]
                delay = min(longest, delay * 2) if attempt == "failed" else shortest
                retry_at = time.monotonic() + wait * random.uniform(0.5, 1.0)
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def settling(self) -> bool:
        """Whether the first keyer is about to be there: there are files, and nothing has gone wrong with them yet."""
        if self.prompts.keyer is not None or self._offered_at is None or self._complained:
            return False
        return time.monotonic() - self._offered_at < SETTLE_SECONDS

    def close(self) -> None:
        """End all keyers."""
        self._close_retired(math.inf)
        if self.prompts.keyer is not None:
            self.prompts.keyer.close()

    # --- from where --------------------------------------------------------------------------------------------------

    def _load_folder(self, folder: Path) -> None:
        """At the start, where there is nothing yet to hold up."""
        try:
            keyer = self._make(folder)
        except TokenizerError as error:
            self._failed(f"model_path: {error}")
        else:
            self._use(keyer, "folder", str(folder))

    async def _try_hub(self, name: str) -> Attempt:
        if self.prompts.keyer is not None:
            return "done"
        try:
            folder = await asyncio.to_thread(hub_folder, name)
            keyer = await asyncio.to_thread(self._make, folder)
        except (HubError, TokenizerError) as error:
            return self._failed(str(error))
        except Exception as error:
            logger.exception("pool %s: the files of %s cannot be used", self._config.name, name)
            return self._failed(f"the files of {name} cannot be used: {error!r}")
        return self._use(keyer, "hub", f"hub model {name}")

    async def _try_workers(self, facts: Iterable[WorkerFacts]) -> Attempt:
        """Fetch and use what most workers offer, unless that is what is in use."""
        files = most_common(filter(None, map(FileSet.of, facts)), self._files)
        if files is None or files == self._files:
            self._complained = ""
            self.prompts.trouble = "" if self.prompts.keyer is not None else NOTHING_OFFERED
            return "done"
        self._offered_at = self._offered_at or time.monotonic()
        try:
            compressed = await fetch(self._redis, self._config.name, files)
            keyer = await asyncio.to_thread(self._unpack_and_make, compressed)
        except NotThereYetError as error:
            return self._absent(f"waiting for the workers' files: {error}")
        except NoPermissionError as error:
            return self._failed(
                f"our Redis user may not read model files ({error}). Permit it all of: {gateway_rules()}"
            )
        except (RedisError, OSError, ModelFilesError, TokenizerError) as error:
            return self._failed(f"the workers' files: {error}")
        except Exception as error:
            # Files come from workers; whatever they make of the tokenizer's code must not end the gateway.
            logger.exception("pool %s: its workers' files cannot be used", self._config.name)
            return self._failed(f"the workers' files cannot be used: {error!r}")
        self._files = files
        return self._use(keyer, "workers", f"the workers' files, tokenizer {files.tokenizer[:8]}")

    def _unpack_and_make(self, compressed: Mapping[ModelFile, bytes]) -> PromptKeyer:
        """On a thread."""
        with tempfile.TemporaryDirectory(prefix="warmroute-model-") as name:
            folder = Path(name)
            unpack(compressed, folder)
            return self._make(folder)

    # --- in use ------------------------------------------------------------------------------------------------------

    def _use(self, keyer: PromptKeyer, source: Source, origin: str) -> Attempt:
        prompts = self.prompts
        if prompts.keyer is not None:
            self._retired.append((time.monotonic() + RETIRE_SECONDS, prompts.keyer))
        prompts.keyer, prompts.origin, prompts.trouble, self._complained = keyer, origin, "", ""
        prompts.check = SelfCheck()
        self._use_tokenizer(keyer.tokenizer.digest)
        self._set_source(source)
        self._metrics.tokenizer_loads.labels(self._config.name, "loaded").inc()
        logger.info("pool %s: prompts are keyed with %s", self._config.name, origin)
        return "done"

    def _failed(self, trouble: str) -> Attempt:
        self.prompts.trouble = trouble
        self._metrics.tokenizer_loads.labels(self._config.name, "failed").inc()
        if trouble != self._complained:
            self._complained = trouble
            kept = "its requests are routed by load" if self.prompts.keyer is None else "the tokenizer is not changed"
            logger.error("pool %s: %s: %s", self._config.name, kept, trouble)
        return "failed"

    def _absent(self, trouble: str) -> Attempt:
        """Nothing is wrong yet; said once, should it last."""
        self.prompts.trouble = trouble
        waited = time.monotonic() - (self._offered_at or math.inf)
        if waited > SETTLE_SECONDS and trouble != self._complained:
            self._complained = trouble
            name = self._config.name
            logger.warning("pool %s: %s. Do the indexers take files (indexer.model_files_bytes)?", name, trouble)
        return "absent"

    def _set_source(self, source: Source) -> None:
        for name in SOURCES:
            self._metrics.tokenizer.labels(self._config.name, name).set(name == source)

    def _count_sets(self, facts: Iterable[WorkerFacts]) -> None:
        sets = {files for one in facts if (files := FileSet.of(one)) is not None and not files.bare}
        self._metrics.pool_fingerprints.labels(self._config.name).set(len({one.fingerprint for one in facts}))
        self._metrics.pool_file_sets.labels(self._config.name).set(len(sets))

    def _close_retired(self, now: float) -> None:
        for due, keyer in self._retired:
            if due <= now:
                keyer.close()
        self._retired = [(due, keyer) for due, keyer in self._retired if due > now]
