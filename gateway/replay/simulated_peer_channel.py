"""A simulated channel between gateways, for messages about their bookings and predictions.

`gateway.routing.state.peer_sync` is the production code; this replaces `gateway.discovery.peer_channel` and
Redis: every message comes to every gateway, its sender included, `DELAY_SECONDS` later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.replay.events import Events
from gateway.routing.state.peer_sync import TOTALS_SECONDS, PeerSync

DELAY_SECONDS: Final = 0.002


class SimulatedPeerChannel:
    """Carries messages from its construction to the end of the simulation."""

    def __init__(self, peers: Sequence[PeerSync], events: Events) -> None:
        self._peers = peers
        self._events = events
        self._free_at = [0.0] * len(peers)
        """The simulated time from which each gateway may send again, in seconds."""
        self._planned = [False] * len(peers)
        for position, peer in enumerate(peers):
            peer.start(name=f"gateway-{position}", incarnation=1, wake=partial(self._wake, position))
            peer.connected()
            self._tick(position)

    def _wake(self, position: int) -> None:
        if not self._planned[position]:
            self._planned[position] = True
            self._events.at(max(self._events.now, self._free_at[position]), self._send, position)

    def _tick(self, position: int) -> None:
        self._wake(position)
        self._events.at(self._events.now + TOTALS_SECONDS / 2, self._tick, position)

    def _send(self, position: int) -> None:
        self._planned[position] = False
        peer, now = self._peers[position], self._events.now
        packed = peer.outgoing(now)
        if packed is None:
            return
        self._free_at[position] = now + peer.pause
        self._events.at(now + DELAY_SECONDS, self._receive, packed)
        peer.published(len(self._peers))

    def _receive(self, packed: bytes) -> None:
        for peer in self._peers:
            peer.receive(packed, self._events.now)
