"""Several gateways' routers on one clock, and the channel between them: messages arrive after `delay` seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.routed_request import PoolAssignment
from gateway.routing.state.peer_sync import TOTALS_SECONDS
from tests.gateway.routing.support import NAMES, Pool


class Replicas:
    """`at` plans, `run` lets time pass. Each gateway sends as the exchange does: at once, then after its pause; none
    does where they are not `shared`. `config`: the pool's."""

    def __init__(
        self, number: int, names: tuple[str, ...] = NAMES, *, delay: float = 0.002, shared: bool = True, **config
    ) -> None:
        self.pools = [Pool(names, **config) for _ in range(number)]
        for position, pool in enumerate(self.pools):
            # Else all would break ties alike.
            pool.router.random = Random(position)
        self.delay = delay
        self.shared = shared
        self.now = 100.0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._due = [0.0] * number
        self._dead: set[int] = set()
        for position, pool in enumerate(self.pools):
            pool.router.state.peers.start(name=f"g{position}", incarnation=1, wake=lambda p=position: self._wake(p))
            if shared:
                pool.router.state.peers.connected()
                self._tick(position)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (when, next(self._order), what))

    def run(self, until: float) -> None:
        while self._plan and self._plan[0][0] <= until:
            when, _, what = heapq.heappop(self._plan)
            self._set(when)
            what()
        self._set(until)

    def kill(self, position: int) -> None:
        """It sends nothing more, and nothing takes its bookings back."""
        self._dead.add(position)

    def is_dead(self, position: int) -> bool:
        return position in self._dead

    def _set(self, now: float) -> None:
        self.now = max(self.now, now)
        for pool in self.pools:
            pool.now = self.now

    def _wake(self, position: int) -> None:
        self.at(max(self.now, self._due[position]), lambda: self._send(position))

    def _tick(self, position: int) -> None:
        if position not in self._dead:
            self._send(position)
            self.at(self.now + TOTALS_SECONDS / 2, lambda: self._tick(position))

    def _send(self, position: int) -> None:
        peers = self.pools[position].router.state.peers
        if not self.shared or position in self._dead or self.now < self._due[position]:
            return
        packed = peers.outgoing(self.now)
        if packed is None:
            return
        self._due[position] = self.now + peers.pause
        self.at(self._due[position], lambda: self._send(position))
        peers.published(len(self.pools))
        self.at(self.now + self.delay, lambda: self._receive(packed))

    def _receive(self, packed: bytes) -> None:
        for pool in self.pools:
            pool.router.state.peers.receive(packed, self.now)


class Worker:
    """Computes one prompt after the other, and holds what it has computed."""

    def __init__(self, tokens_per_second: float) -> None:
        self.rate = tokens_per_second
        self.free_at = 0.0
        self.held: set[int] = set()

    def take(self, prompt: Prompt, now: float, block_tokens: int = 64) -> tuple[int, float]:
        """Tokens that it found, and when the first byte comes."""
        depth = 0
        while depth < len(prompt.keys) and prompt.keys[depth] in self.held:
            depth += 1
        self.held.update(prompt.keys)
        found = min(depth * block_tokens, prompt.tokens - 1)
        self.free_at = max(self.free_at, now) + (prompt.tokens - found) / self.rate
        return found, self.free_at


def answer(replicas: Replicas, assignment: PoolAssignment, first_byte_at: float, seconds: float = 0.5) -> None:
    """Plan the reply."""
    replicas.at(first_byte_at, assignment.first_byte)
    replicas.at(first_byte_at + seconds, lambda: assignment.close(Outcome.COMPLETED))
