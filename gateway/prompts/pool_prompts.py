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
from gateway.prompts.limited_process import BrokenError
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
from gateway.prompts.refusals import Refusals
from gateway.prompts.self_check import SelfCheck
from gateway.prompts.tried_files import RefusedFilesError, Templates, try_templates, try_tokenizer
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
LOCAL_ALONE: Final = "model_files.trust is local: name model_path or tokenizer"
NAMED_WORKERS: Final = 8
"""Of those that offer one refused set of files."""

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
    refused: list[str] = field(default_factory=list)
    """Files that workers offer now and that are refused: which, whose, and why."""
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
        make: Callable[..., PromptKeyer],
    ) -> None:
        """`workers`: what the pool's workers say now. `use_tokenizer` is told the digest of a tokenizer put to use.
        `make` reads a model's folder, all of it at once, on a thread; it raises TokenizerError. Of workers' files it
        is given what came of their `templates`.
        """
        self.prompts = PoolPrompts()
        self._config = config
        self._metrics = metrics
        self._redis = redis
        self._workers = workers
        self._use_tokenizer = use_tokenizer
        self._make = make
        self._files: FileSet | None = None
        self._refusals = Refusals(redis, config.name)
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
            await self._take_strikes()
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
        """Fetch, try and use what most workers offer, unless that is what is in use."""
        if self._config.model_files.trust == "local":
            self.prompts.trouble = LOCAL_ALONE
            return "done"
        sets = list(filter(None, map(FileSet.of, facts)))
        files = most_common(self._usable(sets), self._files)
        if files is not None and files != self._files:
            # What other gateways have refused meanwhile, and this one before its restart.
            await self._refusals.load(time.time())
            files = most_common(self._usable(sets), self._files)
        if files is None or files == self._files:
            self._complained = ""
            nothing = "; ".join(self.prompts.refused) or NOTHING_OFFERED
            self.prompts.trouble = "" if self.prompts.keyer is not None else nothing
            return "done"
        self._offered_at = self._offered_at or time.monotonic()
        try:
            compressed = await fetch(self._redis, self._config.name, files)
            refused = self._refusals.reason(files.template, time.time())
            keyer, reason = await asyncio.to_thread(self._unpack_and_make, compressed, refused)
        except NotThereYetError as error:
            return self._absent(f"waiting for the workers' files: {error}")
        except NoPermissionError as error:
            return self._failed(
                f"our Redis user may not read model files ({error}). Permit it all of: {gateway_rules()}"
            )
        except RefusedFilesError as error:
            await self._refusals.add(files.tokenizer, str(error), time.time())
            return self._failed(f"the workers' files are refused: {error}")
        except (RedisError, OSError, ModelFilesError, TokenizerError) as error:
            return self._failed(f"the workers' files: {error}")
        except BrokenError as error:
            return self._failed(f"the workers' files cannot be tried: it {error}")
        except Exception as error:
            # Files come from workers: no error that the tokenizer raises for them may end the gateway.
            logger.exception("pool %s: its workers' files cannot be used", self._config.name)
            return self._failed(f"the workers' files cannot be used: {error!r}")
        self._files = files
        attempt = self._use(keyer, "workers", f"the workers' files, tokenizer {files.tokenizer[:8]}")
        if reason:
            await self._refuse_template(reason)
        return attempt

    def _usable(self, sets: Iterable[FileSet]) -> list[FileSet]:
        """Those that are not refused; with templates that are, where there are no others."""
        now, reason = time.time(), self._refusals.reason
        keyed = [files for files in sets if reason(files.tokenizer, now) is None]
        return [files for files in keyed if reason(files.template, now) is None] or keyed

    def _unpack_and_make(
        self, compressed: Mapping[ModelFile, bytes], refused: str | None
    ) -> tuple[PromptKeyer, str | None]:
        """On a thread. Templates are left out that are `refused`; returns why they are now."""
        with tempfile.TemporaryDirectory(prefix="warmroute-model-") as name:
            folder = Path(name)
            unpack(compressed, folder)
            try_tokenizer(folder)
            templates, reason = Templates(), None
            if refused is None:
                try:
                    templates = try_templates(folder)
                except RefusedFilesError as error:
                    reason = str(error)
            try:
                return self._make(folder, templates=templates), reason
            except BaseException:
                templates.close()
                raise

    async def _take_strikes(self) -> None:
        """Refuse a template whose small chats end the process that renders them."""
        keyer = self.prompts.keyer
        renderer = None if keyer is None or keyer.templates is None else keyer.templates.renderer
        if renderer is None or not renderer.trouble or self._files is None:
            return
        if self._refusals.reason(self._files.template, time.time()) is None:
            await self._refuse_template(renderer.trouble)

    async def _refuse_template(self, reason: str) -> None:
        if self._files is not None:
            logger.error("pool %s: chats are routed by load: their template is refused: %s", self._config.name, reason)
            self._metrics.tokenizer_loads.labels(self._config.name, "refused").inc()
            await self._refusals.add(self._files.template, reason, time.time())

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
        offering: dict[FileSet, list[str]] = {}
        for one in facts:
            if (files := FileSet.of(one)) is not None:
                offering.setdefault(files, []).append(one.address)
        name = self._config.name
        self._metrics.pool_fingerprints.labels(name).set(len({one.fingerprint for one in facts}))
        self._metrics.pool_file_sets.labels(name).set(sum(not files.bare for files in offering))
        counts = {"tokenizer": 0, "template": 0}
        refused: list[str] = []
        if self._config.model_files.trust == "workers":
            now = time.time()
            for files, addresses in offering.items():
                for kind, digest in (("tokenizer", files.tokenizer), ("template", files.template)):
                    if (reason := self._refusals.reason(digest, now)) is not None:
                        counts[kind] += 1
                        refused.append(f"{kind} of {_some(addresses)} is refused: {reason}")
        self.prompts.refused = refused
        for kind, count in counts.items():
            self._metrics.refused_files.labels(name, kind).set(count)

    def _close_retired(self, now: float) -> None:
        for due, keyer in self._retired:
            if due <= now:
                keyer.close()
        self._retired = [(due, keyer) for due, keyer in self._retired if due > now]


def _some(addresses: list[str]) -> str:
    more = f" and {len(addresses) - NAMED_WORKERS} others" if len(addresses) > NAMED_WORKERS else ""
    return ", ".join(addresses[:NAMED_WORKERS]) + more
