"""The keyer that a pool uses now, and where its tokenizer comes from.

It comes from a folder or a model of the hub, where the configuration names one; else from the files that the pool's
workers offer. Those are fetched from the index when they are first offered, and again when the workers offer others.
Without a keyer the pool's requests are routed by load, and `/readyz` says why.

Workers of one pool may offer different files, for example during a rollout. Prompts are keyed with one set, that of
most workers; workers with another set match no keys and are routed by load. Keying each request with each set would
multiply its cost, to find blocks in caches that are about to end or still almost empty.
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
# Workers send their files within seconds; asking for them costs one small call.
ABSENT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = (1.0, 30.0)
HUB_RETRY_SECONDS: Final = (5.0, 300.0)
# After its start a gateway is not ready for this long while workers' files are missing.
SETTLE_SECONDS: Final = 10.0
# Longer than any request uses the keyer that it began with.
RETIRE_SECONDS: Final = 10.0

NOTHING_OFFERED: Final = "no worker has offered its tokenizer yet"

TokenizerSource = Literal["folder", "hub", "workers", "none"]
TOKENIZER_SOURCES: Final[tuple[TokenizerSource, ...]] = ("folder", "hub", "workers", "none")
Attempt = Literal["done", "absent", "failed"]


@dataclass(slots=True)
class PoolPrompts:
    """The keyer of a pool's prompts. None: requests are routed by load, and `trouble` says why."""

    keyer: PromptKeyer | None = None
    origin: str = ""
    """Where the tokenizer comes from, as text for logs and the console."""
    trouble: str = NOTHING_OFFERED
    check: SelfCheck = field(default_factory=SelfCheck)
    """Compares this keyer's token counts with those of replies."""

    def describe(self) -> str:
        """Where the tokenizer comes from, or why there is none."""
        if self.keyer is None:
            return f"none: {self.trouble}"
        return f"{self.origin}; {self.trouble}" if self.trouble else self.origin


class KeyerSupply:
    """Sets the keyer of a pool's `prompts`. `run` is its one task; the caller cancels it, then calls `close`.

    Memory: the keyer in use, one that is being made, and replaced ones for `RETIRE_SECONDS`.
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
        """`workers`: the facts of the pool's workers now. `use_tokenizer`: called with the digest of a new tokenizer.
        `make`: makes a keyer from a model's folder, on a thread; it raises TokenizerError and keeps no file open.
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
        """When a worker first offered files, in monotonic seconds."""
        self._set_source("none")
        if config.model_path is not None:
            self._load_folder(config.model_path)
        elif config.tokenizer is not None:
            self.prompts.trouble = f"{config.tokenizer} is being fetched from the hub"

    async def run(self) -> None:
        """Replace the keyer whenever the workers offer other files; retry after failures. Ends only when cancelled."""
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
        """Whether the first keyer is expected soon: workers offer files, and none has failed yet."""
        if self.prompts.keyer is not None or self._offered_at is None or self._complained:
            return False
        return time.monotonic() - self._offered_at < SETTLE_SECONDS

    def close(self) -> None:
        """Close all keyers."""
        self._close_retired(math.inf)
        if self.prompts.keyer is not None:
            self.prompts.keyer.close()

    # --- sources -----------------------------------------------------------------------------------------------------

    def _load_folder(self, folder: Path) -> None:
        """Blocks, which is allowed only before the loop serves requests."""
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
        """Fetch and use the most common files, unless they are in use."""
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
            # Files come from workers: no error that the tokenizer raises for them may end the gateway.
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

    def _use(self, keyer: PromptKeyer, source: TokenizerSource, origin: str) -> Attempt:
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
        """Logs a warning once where files are missing for more than SETTLE_SECONDS."""
        self.prompts.trouble = trouble
        waited = time.monotonic() - (self._offered_at or math.inf)
        if waited > SETTLE_SECONDS and trouble != self._complained:
            self._complained = trouble
            name = self._config.name
            logger.warning("pool %s: %s. Do the indexers take files (indexer.model_files_bytes)?", name, trouble)
        return "absent"

    def _set_source(self, source: TokenizerSource) -> None:
        for name in TOKENIZER_SOURCES:
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
