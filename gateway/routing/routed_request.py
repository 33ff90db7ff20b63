"""One request on its way through a pool: an assignment for each attempt, which books and frees."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from gateway.prompts.keyer import Prompt
from gateway.routing.assignment import Outcome
from gateway.routing.router import Choice, PoolRouter


class RoutedRequest:
    """One request on its way through a pool: hands out assignments, one an attempt. Implements `Assigner`."""

    __slots__ = ("_adapter", "_attempts", "_headers", "_only", "_prompt", "_router", "decided_at", "last")

    def __init__(
        self,
        router: PoolRouter,
        prompt: Prompt | None,
        *,
        adapter: str = "",
        only: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """`adapter` and `only` as in `PoolRouter.choose`; `headers` are added to the reply."""
        self.last: Choice | None = None
        """The latest pick; its terms say what was expected of the worker."""
        self.decided_at: float | None = None
        """When the first pick was made, by the router's clock."""
        self._router = router
        self._prompt = prompt
        self._adapter = adapter
        self._only = only
        self._headers = headers
        self._attempts = 0
        router.next_request()

    def assign(self, exclude: AbstractSet[str]) -> PoolAssignment | None:
        router = self._router
        choice = router.choose(self._prompt, exclude, adapter=self._adapter, only=self._only)
        if choice is None:
            return None
        if self._attempts:
            if not router.retry_budget.take(router.clock()):
                router.metrics.refused_retries.labels(router.config.name).inc()
                return None
            router.metrics.retries.labels(router.config.name).inc()
        self.last = choice
        if self.decided_at is None:
            self.decided_at = router.clock()
        self._attempts += 1
        return PoolAssignment(router, choice, self._prompt, self._headers)


class PoolAssignment:
    """One attempt's booking. Implements `Assignment`; `worker_id` is the target's uid."""

    __slots__ = (
        "_answered",
        "_booking",
        "_headers",
        "_prediction",
        "_router",
        "_worker",
        "host",
        "matched_tokens",
        "port",
        "worker_id",
    )

    def __init__(
        self,
        router: PoolRouter,
        choice: Choice,
        prompt: Prompt | None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        target = choice.worker.target
        self.worker_id = target.uid
        self.host = target.host
        self.port = target.port
        self.matched_tokens = choice.terms.matched_tokens
        self._router = router
        self._headers = headers
        self._worker = choice.worker
        self._booking, self._prediction = router.book(choice, prompt)
        self._answered = False

    @property
    def reply_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (
            self._worker.header,
            (b"x-warmroute-matched-tokens", b"%d" % self.matched_tokens),
            *self._headers,
        )

    def first_byte(self) -> None:
        self._answered = True
        self._booking.first_byte()
        if self._prediction is not None:
            self._router.predictions.first_byte(self._prediction, self._router.clock())

    def close(self, outcome: Outcome) -> None:
        self._booking.close()
        if self._prediction is not None and not (self._answered and outcome is Outcome.COMPLETED):
            self._router.predictions.withdraw(self._prediction)
        router, worker = self._router, self._worker
        router.workers.ended(worker, outcome, router.clock())
        if router.workers.get(self.worker_id) is worker:  # else it is gone, and its series with it
            router.metrics.worker_requests.labels(router.config.name, worker.name, outcome).inc()
