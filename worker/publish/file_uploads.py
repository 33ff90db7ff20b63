"""Sends the indexer the model's files that it asks for, beside everything else on the stream.

One chunk is unacknowledged at a time, and the next is read from disk by another thread: deltas and loads go in between
and never wait for either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from warmroute.v1 import index_pb2 as pb
from worker.publish.offered_files import ModelFiles, OfferedFile

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 65_536
ACK_SECONDS: Final = 15.0


class FileUploads:
    """The uploads of one stream. Bounded by the files offered, each queued at most once."""

    def __init__(self, files: ModelFiles, *, wake: Callable[[], None]) -> None:
        """`wake` is called, on the loop, when a chunk is ready to be sent."""
        self._files = files
        self._wake = wake
        self._queue: deque[OfferedFile] = deque()
        self._file: OfferedFile | None = None
        """The file under way."""
        self._offset = 0
        self._reading: asyncio.Task[bytes] | None = None
        self._sent_at: float | None = None
        """When the chunk was sent that is not acknowledged; None: there is none."""

    def want(self, digests: Iterable[str]) -> None:
        """Queue what the indexer asks for; what is not offered, or is under way, is left out."""
        for file in map(self._files.get, digests):
            if file is not None and file != self._file and file not in self._queue:
                self._queue.append(file)
        if self._file is None:
            self._begin_next()

    def next_chunk(self, now: float) -> pb.FileChunk | None:
        """The chunk to send now, if one is ready. `now` in seconds of `time.monotonic`."""
        if self._sent_at is not None and now - self._sent_at > ACK_SECONDS:
            self._give_up(f"the indexer has not answered for {ACK_SECONDS:.0f} s")
        file, reading = self._file, self._reading
        if file is None or reading is None or not reading.done():
            return None
        self._reading = None
        try:
            data = reading.result()
        except OSError as error:
            self._give_up(str(error))
            return None
        if not data:
            self._give_up("it became shorter")
            return None
        self._sent_at = now
        return pb.FileChunk(digest=file.digest, offset=self._offset, data=data)

    def acknowledged(self, ack: pb.FileAck) -> None:
        """Go on after the indexer's answer to the last chunk."""
        file = self._file
        if file is None or ack.digest != file.digest or self._sent_at is None:
            return
        if ack.refused:
            self._give_up(ack.refused)
        elif self._offset < ack.received < file.size:
            self._offset = ack.received
            self._read(file)
        else:
            self._begin_next()

    async def close(self) -> None:
        """End the reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _give_up(self, reason: str) -> None:
        if self._file is not None:
            logger.warning("%s is not sent to the indexer: %s", self._file.path, reason)
        self._begin_next()

    def _begin_next(self) -> None:
        self._sent_at, self._offset = None, 0
        self._file = self._queue.popleft() if self._queue else None
        if self._file is not None:
            self._read(self._file)

    def _read(self, file: OfferedFile) -> None:
        self._sent_at = None
        # No more than Hello said, should the file have grown.
        count = min(CHUNK_BYTES, file.size - self._offset)
        work = asyncio.to_thread(self._files.read, file.digest, self._offset, count)
        self._reading = asyncio.get_running_loop().create_task(work)
        self._reading.add_done_callback(lambda _: self._wake())
