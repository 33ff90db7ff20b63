"""The sockets of one rank: a SUB for what it publishes, a DEALER for what it can still say.

The engine is never held back: its PUB socket drops for a reader that is slow, which shows as a gap and is asked from
the replay. PUB and SUB have no heartbeat of their own and a silent engine looks like a dead one, so every few silent
seconds the last message is asked for again: that finds what was lost at the end, and restarts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from worker.adapters.feed import Feed
from worker.adapters.sources import EventSource

logger = logging.getLogger(__name__)

# Messages in ZMQ's own queue while the loop is busy; more are dropped by ZMQ and asked from the replay.
RECEIVE_MESSAGES: Final = 10_000
MESSAGE_BYTES: Final = 64 * 1024 * 1024
# Messages taken before others on the loop have a turn: some milliseconds.
TURN_MESSAGES: Final = 64
# vLLM serves replays between its own publications, at most 0.1 s late.
REPLAY_SILENCE_SECONDS: Final = 5.0
REPLAY_SECONDS: Final = 120.0
# The subscription itself takes a moment, in which messages pass unseen.
FIRST_AUDIT_SECONDS: Final = 1.0
AUDIT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0

_END: Final = b"\xff" * 8
_ABSENT: Final = "nobody publishes at"


class ZmqSource:
    """Reads one rank into its feed. `run` is the one task; its owner cancels and watches it."""

    def __init__(self, source: EventSource, feed: Feed, context: zmq.asyncio.Context) -> None:
        self.source = source
        self.feed = feed
        self.bound = False
        self._trouble = ""
        self._peers = 0
        self._absence_said = False
        self._context = context
        self._heard_at = 0.0
        self._audit_seconds = FIRST_AUDIT_SECONDS

    @property
    def trouble(self) -> str:
        """Why the socket cannot be used, or the last replay failed; empty when all is well."""
        return self._trouble or ("" if self._peers else f"{_ABSENT} {self.source.events}")

    async def run(self) -> None:
        """Read until cancelled. An endpoint that cannot be used is tried again: another may yet let go of it."""
        subscriber = self._context.socket(zmq.SUB)
        monitor = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            subscriber.setsockopt(zmq.RCVHWM, RECEIVE_MESSAGES)
            subscriber.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            subscriber.setsockopt(zmq.LINGER, 0)
            # A half-open connection is noticed, and made again with these waits.
            subscriber.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            subscriber.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
            subscriber.setsockopt(zmq.RECONNECT_IVL, 100)
            subscriber.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
            subscriber.setsockopt(zmq.IPV6, 1)
            subscriber.subscribe(b"")  # whatever the topic is
            while True:
                if self._open(subscriber):
                    break
                await asyncio.sleep(RETRY_SECONDS)
            await self._read(subscriber, zmq.Socket.shadow(monitor.underlying))
        finally:
            subscriber.disable_monitor()
            monitor.close(0)
            subscriber.close(0)

    def _open(self, subscriber: zmq.asyncio.Socket) -> bool:
        try:
            self._bind_or_connect(subscriber)
        except zmq.ZMQError as error:
            verb = "bound" if self.source.bind else "used"
            self._complain(
                f"the events' endpoint {self.source.events} cannot be {verb}: {error}; give another as "
                "--events-endpoint, and --events-bind true only where the engine connects to it"
            )
            return False
        self._trouble = ""
        return True

    def _bind_or_connect(self, subscriber: zmq.asyncio.Socket) -> None:
        if self.source.bind is not False:
            try:
                subscriber.bind(self.source.events)
                self.bound = True
                logger.info("waiting for rank %d to connect to %s", self.source.rank, self.source.events)
            except zmq.ZMQError as error:
                if self.source.bind or error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENODEV}:
                    raise
        if not self.bound:
            subscriber.connect(self.source.events)
            logger.info("reading events of rank %d from %s", self.source.rank, self.source.events)

    async def _read(self, subscriber: zmq.asyncio.Socket, monitor: zmq.Socket[bytes]) -> None:
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(subscriber.underlying)
        self._heard_at = time.monotonic()
        while True:
            self._count_peers(monitor)
            if self.feed.replay_wanted:
                await self._replay(lambda: self._drain(plain))
                self._heard_at = time.monotonic()
            quiet_until = self._heard_at + self._audit_seconds
            wait = max(0.0, quiet_until - time.monotonic())
            if await subscriber.poll(int(wait * 1000) + 1):
                if self._drain(plain):
                    self._heard_at = time.monotonic()
                await asyncio.sleep(0)
            elif time.monotonic() >= quiet_until:
                if self._audit_seconds == AUDIT_SECONDS and not self._peers and not self._absence_said:
                    logger.warning(
                        "rank %d: %s %s, or it cannot be reached", self.source.rank, _ABSENT, self.source.events
                    )
                    self._absence_said = True
                self._audit_seconds = AUDIT_SECONDS
                self.feed.replay_wanted = self.source.replay is not None
                self._heard_at = time.monotonic()

    def _count_peers(self, monitor: zmq.Socket[bytes]) -> None:
        """Who has come and gone: without anybody there are no events, which looks like an idle engine."""
        while monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"]
            self._peers = max(0, self._peers + (1 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else -1))

    def _drain(self, plain: zmq.Socket[bytes]) -> int:
        """Offer what is there, up to a turn's worth; says how many."""
        for taken in range(TURN_MESSAGES):
            try:
                frames = plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return taken
            if len(frames) < 2 or len(frames[-2]) != 8:
                self.feed.counts["undecodable"] += 1
                continue
            self.feed.offer(int.from_bytes(frames[-2], "big"), frames[-1])
        return TURN_MESSAGES

    async def _replay(self, drain: Callable[[], int]) -> None:
        """Ask for everything from the last message seen on; live messages are taken off meanwhile, and wait."""
        self.feed.begin_replay()
        if self.source.replay is None:
            self.feed.end_replay(complete=False)
            return
        lives = self.feed.lives
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            dealer.setsockopt(zmq.IPV6, 1)
            dealer.connect(self.source.replay)
            # A REQ socket would take the first answer only. The number is unsigned, of 8 bytes.
            await dealer.send_multipart([b"", self.feed.resume_from.to_bytes(8, "big")])
            complete = await self._take_replay(dealer, drain, lives)
        except (TimeoutError, zmq.ZMQError) as error:
            why = str(error) or f"no answer for {REPLAY_SILENCE_SECONDS:.0f} s"
            self._complain(f"the replay at {self.source.replay} failed: {why}")
            complete = False
        else:
            self._trouble = ""
        finally:
            dealer.close(0)
        if self.feed.lives == lives:
            self.feed.end_replay(complete=complete)
        if not complete:
            await asyncio.sleep(0)

    async def _take_replay(self, dealer: zmq.asyncio.Socket, drain: Callable[[], int], lives: int) -> bool:
        """Whether the end marker came."""
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(dealer.underlying)
        deadline = time.monotonic() + REPLAY_SECONDS
        while time.monotonic() < deadline and self.feed.lives == lives:
            drain()
            if not await dealer.poll(int(REPLAY_SILENCE_SECONDS * 1000)):
                raise TimeoutError
            for _ in range(TURN_MESSAGES):
                try:
                    frames = plain.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                # With a topic before the number in later versions, without it in earlier ones.
                if len(frames) < 2 or len(frames[-2]) != 8:
                    self.feed.counts["undecodable"] += 1
                    continue
                if frames[-2] == _END:
                    return True
                self.feed.replayed(int.from_bytes(frames[-2], "big"), frames[-1])
            await asyncio.sleep(0)
        return False

    def _complain(self, trouble: str) -> None:
        if not self._trouble:
            logger.warning("rank %d: %s", self.source.rank, trouble)
        self._trouble = trouble
