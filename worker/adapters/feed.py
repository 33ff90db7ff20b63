"""One rank's event stream in order: live messages, what a replay fills in, and when to start over. No I/O.

The owner offers every live message, and runs a replay whenever `replay_wanted` says so. Messages that come meanwhile
wait here, bounded in number and bytes; one that finds no room is dropped and shows as a gap later. Nothing is guessed:
where messages are lost for good, removals among them perhaps, a new epoch starts with what can still be read.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from worker.adapters.events import DecodeError, EngineBatch
from worker.adapters.sequence import Sequence as StreamSequence
from worker.adapters.sequence import Verdict
from worker.adapters.translate import Translator
from worker.events import CacheCleared, CacheEvent

logger = logging.getLogger(__name__)

WAITING_MESSAGES: Final = 20_000
WAITING_BYTES: Final = 128 * 1024 * 1024


class Feed:
    """Puts one rank's messages in order and hands their events to `sink`.

    `counts` of what happened, by word: `batches` applied, `repeats`, `gaps` (each asked from the replay), `lost` (gaps
    that no replay filled: a new epoch), `lives` (restarts noticed: a new epoch), `dropped` (no room to wait),
    `undecodable` messages and events, `unknown` events of later versions.
    """

    def __init__(
        self,
        translator: Translator,
        sink: Callable[[Sequence[CacheEvent]], None],
        decode: Callable[[bytes], EngineBatch],
        *,
        replay_keeps: bool = False,
    ) -> None:
        """`decode`: `Engine.decode`. `replay_keeps`: the engine's replay is known to keep batches, so that one that is
        empty tells something."""
        self.translator = translator
        self.counts: Counter[str] = Counter()
        self.replay_wanted = True
        self.lives = 0
        """Counts up whenever everything is to be read anew: a replay that runs is then of no use."""
        self._sink = sink
        self._decode = decode
        self._sequence = StreamSequence()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        # Whether the running replay brought anything, and whether any ever did.
        self._replayed = False
        self._replays_work = replay_keeps

    @property
    def resume_from(self) -> int:
        """The number to ask a replay for."""
        return self._sequence.resume_from

    def offer(self, number: int, payload: bytes) -> None:
        """Take a live message."""
        if not self.replay_wanted and not self._waiting:
            self._take(number, payload)
            return
        if len(self._waiting) >= WAITING_MESSAGES or self._waiting_bytes + len(payload) > WAITING_BYTES:
            self.counts["dropped"] += 1
            return
        self._waiting.append((number, payload))
        self._waiting_bytes += len(payload)

    def new_life(self, started_at: float | None = None) -> None:
        """The engine is known to have started anew: forget all, read what it has.

        `started_at`, by the engine's clock: nothing is done where what is known came after that, or nothing is known.
        """
        if started_at is not None and (self._sequence.last is None or self._sequence.began_at >= started_at):
            return
        self.counts["lives"] += 1
        self.lives += 1
        self._forget()
        self.replay_wanted = True

    def begin_replay(self) -> None:
        """A replay from `resume_from` on was asked for."""
        self._replayed = False
        self.replay_wanted = True

    def replayed(self, number: int, payload: bytes) -> None:
        """Take a message of the replay; they come in order."""
        self._replayed = self._replays_work = True
        batch = self._decoded(number, payload)
        if batch is None:
            return
        verdict = self._judge(number, batch)
        if verdict is Verdict.GAP:
            self._lose()
        if verdict is not Verdict.REPEAT:
            self._apply(number, batch)

    def end_replay(self, *, complete: bool) -> None:
        """The replay is over; `complete` when the engine said so. Then what has waited is taken."""
        if complete and not self._replayed and self._replays_work and self._sequence.last is not None:
            # The last message seen should have come again: another life, to be read from its beginning.
            self.counts["lives"] += 1
            self._forget()
            return
        self.replay_wanted = False
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for number, payload in waiting:
            if self.replay_wanted:
                self.offer(number, payload)
            else:
                self._take(number, payload, filled=True)

    def _take(self, number: int, payload: bytes, *, filled: bool = False) -> None:
        """`filled`: a replay has just brought what it could."""
        batch = self._decoded(number, payload)
        if batch is None:
            return
        lives = self.counts["lives"]
        match self._judge(number, batch):
            case Verdict.REPEAT:
                self.counts["repeats"] += 1
            case Verdict.GAP if not filled or self.counts["lives"] != lives:
                self.counts["gaps"] += 1
                self.replay_wanted = True
                self.offer(number, payload)
            case Verdict.GAP:
                self._lose()
                self._apply(number, batch)
            case _:
                self._apply(number, batch)

    def _judge(self, number: int, batch: EngineBatch) -> Verdict:
        verdict = self._sequence.judge(number, batch.at)
        if verdict is not Verdict.NEW_LIFE:
            return verdict
        self.counts["lives"] += 1
        self._forget()
        return self._sequence.judge(number, batch.at)

    def _decoded(self, number: int, payload: bytes) -> EngineBatch | None:
        try:
            return self._decode(payload)
        except DecodeError as error:
            if not self.counts["undecodable"]:
                logger.warning("a message of the engine is left out, as more of its kind will be: %s", error)
            self.counts["undecodable"] += 1
            self._sequence.skip(number)
            return None

    def _apply(self, number: int, batch: EngineBatch) -> None:
        self._sequence.advance(number, batch.at)
        self.counts["batches"] += 1
        self.counts["undecodable"] += batch.undecodable
        self.counts["unknown"] += batch.ignored
        self._sink(self.translator.translate(batch.events))

    def _lose(self) -> None:
        """What came between is gone: perhaps removals, so that nothing known before can be trusted."""
        self.counts["lost"] += 1
        self._forget()

    def _forget(self) -> None:
        if self._sequence.last is not None:
            self.translator.forget()
            self._sink([CacheCleared()])
        self._sequence.restart()
