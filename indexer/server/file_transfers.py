"""Model files from workers to Redis: which are lacking, who is asked for them, what comes of it.

Every stream that offers files has an `Offer` here. Its task asks Redis twice a minute, and soon after a Hello,
which files of a pool are lacking; one worker is then asked for them, by an answer to one of its loads.
Nothing of this waits on a stream: chunks are taken on the loop, Redis is written by a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import RedisError, ResponseError

from indexer.server.file_store import FileStore, FullError
from indexer.server.file_upload import FileUpload, RefusedFileError
from indexer.server.metrics import IndexerMetrics
from warmroute.model_files import offered
from warmroute.process.log_limit import LogLimit
from warmroute.v1 import index_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
RECHECK_SECONDS: Final = 30.0
# Workers that are asked at once, and what for: it lies here compressed, 1 to 10 MB as a rule.
WORKERS_AT_ONCE: Final = 2
ASK_BYTES: Final = 134_217_728
STALLED_SECONDS: Final = 20.0
FULL_SECONDS: Final = 600.0
FAILED_SECONDS: Final = 5.0
DIGESTS_A_CHECK: Final = 256


@dataclass(slots=True)
class _Pool:
    """What is known of a pool that has offers. Bounded by what they name."""

    offers: set[Offer] = field(default_factory=set)
    lacking: frozenset[str] = frozenset()
    check_at: float = 0.0
    # Digests that could not be stored, and when they may be asked for again.
    not_before: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Transfer:
    """One file between the question and Redis."""

    offer: Offer
    upload: FileUpload
    name: str
    storing: bool = False


class Offer:
    """What one stream offers, and its side of the upload under way. Everything here is done in a moment."""

    def __init__(
        self, transfers: FileTransfers, pool: str, worker_id: str, files: Mapping[str, tuple[str, int]]
    ) -> None:
        self.pool = pool
        self.worker_id = worker_id
        self.files = {digest: (name, size) for name, (digest, size) in files.items()}
        # What this stream was asked for and is not asked for again: it sent none, or not what Hello says.
        self.spent: set[str] = set()
        self.moved_at = 0.0
        """When something last came that was asked for."""
        self._transfers = transfers

    def wanted(self) -> list[str]:
        """Digests to ask this worker for now; none as a rule."""
        return self._transfers.wanted(self, time.monotonic())

    def take(self, chunk: pb.FileChunk) -> pb.FileAck:
        """Take a piece; the answer says what came so far, or why the file is refused."""
        return self._transfers.take(self, chunk, time.monotonic())

    def close(self) -> None:
        """The stream is over."""
        self._transfers.close_offer(self)


class FileTransfers:
    """`run` is the one task; its owner cancels and watches it. Without it nothing is asked for."""

    def __init__(
        self, store: FileStore, metrics: IndexerMetrics, *, enabled: bool, ledger_up: Callable[[], bool]
    ) -> None:
        """`ledger_up`: whether Redis is worth a call."""
        self._store = store
        self._metrics = metrics
        self._enabled = enabled
        self._ledger_up = ledger_up
        self._pools: dict[str, _Pool] = {}
        self._transfers: dict[tuple[str, str], _Transfer] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._log_limit = LogLimit()

    # --- for streams -------------------------------------------------------------------------------------------------

    def offer(self, pool: str, worker_id: str, files: Iterable[object]) -> Offer:
        """Take the files of a Hello; those that are too many, too large or of other names are left out."""
        offer = Offer(self, pool, worker_id, offered(files))
        if self._enabled and offer.files:
            known = self._pools.setdefault(pool, _Pool())
            known.offers.add(offer)
            known.check_at = 0.0
        return offer

    def close_offer(self, offer: Offer) -> None:
        known = self._pools.get(offer.pool)
        if known is None:
            return
        known.offers.discard(offer)
        for transfer in [one for one in self._transfers.values() if one.offer is offer and not one.storing]:
            self._end(transfer, "abandoned")
        if not known.offers:
            del self._pools[offer.pool]

    def wanted(self, offer: Offer, now: float) -> list[str]:
        known = self._pools.get(offer.pool)
        if known is None or not known.lacking:
            return []
        asked = {transfer.offer for transfer in self._transfers.values()}
        if offer in asked or len(asked) >= WORKERS_AT_ONCE:
            return []
        digests: list[str] = []
        room = ASK_BYTES
        for digest, (name, size) in offer.files.items():
            free = digest in known.lacking and (offer.pool, digest) not in self._transfers
            if free and size <= room and digest not in offer.spent and known.not_before.get(digest, 0.0) <= now:
                offer.spent.add(digest)
                self._transfers[offer.pool, digest] = _Transfer(offer, FileUpload(digest, size), name)
                digests.append(digest)
                room -= size
        offer.moved_at = now
        return digests

    def take(self, offer: Offer, chunk: pb.FileChunk, now: float) -> pb.FileAck:
        transfer = self._transfers.get((offer.pool, chunk.digest))
        if transfer is None or transfer.offer is not offer or transfer.storing:
            return pb.FileAck(digest=chunk.digest, refused="it was not asked for, or too long ago")
        offer.moved_at = now
        try:
            compressed = transfer.upload.add(chunk.offset, chunk.data)
        except RefusedFileError as error:
            self._end(transfer, error.outcome, str(error))
            return pb.FileAck(digest=chunk.digest, refused=str(error))
        if compressed is not None:
            transfer.storing = True
            write = asyncio.get_running_loop().create_task(self._put(transfer, compressed))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)
        return pb.FileAck(digest=chunk.digest, received=transfer.upload.received)

    # --- for the pool ------------------------------------------------------------------------------------------------

    async def forget(self, pool: str) -> None:
        """Delete the files of a pool without workers. Raises RedisError when Redis cannot be reached."""
        if not self._enabled or pool in self._pools:
            return
        try:
            await self._store.forget(pool)
        except ResponseError as error:  # about these keys alone
            self._failed(error)

    async def run(self) -> None:
        """Look what is lacking, and give up what does not come."""
        try:
            while True:
                now = time.monotonic()
                for transfer in list(self._transfers.values()):
                    if not transfer.storing and now - transfer.offer.moved_at > STALLED_SECONDS:
                        self._end(transfer, "abandoned")
                for pool, known in list(self._pools.items()):
                    if known.check_at <= now and self._ledger_up():
                        known.check_at = now + RECHECK_SECONDS
                        await self._check(pool, known)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for write in self._writes:
                write.cancel()
            await asyncio.gather(*self._writes, return_exceptions=True)

    async def _check(self, pool: str, known: _Pool) -> None:
        now = time.monotonic()
        known.not_before = {digest: until for digest, until in known.not_before.items() if until > now}
        digests = sorted({digest for offer in known.offers for digest in offer.files})[:DIGESTS_A_CHECK]
        try:
            known.lacking = await self._store.lacking(pool, digests)
        except RedisError as error:
            known.lacking = frozenset()
            self._failed(error)

    async def _put(self, transfer: _Transfer, compressed: bytes) -> None:
        digest, pool = transfer.upload.digest, transfer.offer.pool
        known = self._pools.get(pool)
        try:
            await self._store.put(pool, digest, compressed)
        except FullError:
            if known is not None:
                known.not_before[digest] = time.monotonic() + FULL_SECONDS
            self._end(transfer, "full", "the pool's files leave no room for it: give more indexer.model_files_bytes")
        except RedisError as error:
            # Not the worker's fault: it may be asked again.
            transfer.offer.spent.discard(digest)
            if known is not None:
                known.not_before[digest] = time.monotonic() + FAILED_SECONDS
            self._failed(error)
            self._end(transfer, "failed")
        else:
            if known is not None:
                known.lacking -= {digest}
            logger.info(
                "pool %s: %s (%.8s) of worker %s is stored: %.1f MB, %.1f MB compressed",
                *(pool, transfer.name, digest, transfer.offer.worker_id),
                *(transfer.upload.size / 1e6, len(compressed) / 1e6),
            )
            self._end(transfer, "stored")
        finally:
            self._transfers.pop((pool, digest), None)

    def _end(self, transfer: _Transfer, outcome: str, reason: str = "") -> None:
        pool, digest = transfer.offer.pool, transfer.upload.digest
        self._transfers.pop((pool, digest), None)
        self._metrics.model_files.labels(pool, outcome).inc()
        if reason and self._log_limit.take(outcome, time.monotonic()) is not None:
            worker_id = transfer.offer.worker_id
            logger.warning("pool %s: %s (%.8s) of worker %s: %s", pool, transfer.name, digest, worker_id, reason)

    def _failed(self, error: RedisError) -> None:
        self._metrics.ledger_errors.labels("files").inc()
        if self._log_limit.take("failed", time.monotonic()) is not None:
            logger.warning("model files are not kept now: %s", error)
