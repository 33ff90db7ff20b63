"""One request on its way through a pool: an assignment for each attempt, which books and frees."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.candidates import NO_CONSTRAINTS, Constraints
from gateway.routing.decision_header import decision_header
from gateway.routing.router import Choice, PoolRouter
from gateway.routing.state.rates import first_byte_seconds


class RoutedRequest:
    """One request on its way through a pool: hands out assignments, one an attempt. Implements `Assigner`."""

    __slots__ = (
        "_constraints",
        "_explained",
        "_headers",
        "_prompt",
        "_router",
        "assignment",
        "attempts",
        "decided_at",
    )

    def __init__(
        self,
        router: PoolRouter,
        prompt: Prompt | None,
        constraints: Constraints = NO_CONSTRAINTS,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        explained: bool = False,
    ) -> None:
        """`headers` are added to the reply, with `explained` the decision."""
        self.assignment: PoolAssignment | None = None
        """The latest attempt's."""
        self.attempts = 0
        """Workers that were assigned."""
        self.decided_at: float | None = None
        """When the first pick was made, by the router's clock."""
        self._router = router
        self._prompt = prompt
        self._constraints = constraints
        self._headers = headers
        self._explained = explained
        router.next_request()

    def assign(self, exclude: AbstractSet[str]) -> PoolAssignment | None:
        router, constraints = self._router, self._constraints
        choice = router.choose(self._prompt, exclude, constraints)
        if choice is None:
            return None
        if self.attempts:
            if not router.state.retry_budget.take(choice.chosen_at):
                router.metrics.refused_retries.labels(router.config.name).inc()
                return None
            router.metrics.retries.labels(router.config.name).inc()
        else:
            self.decided_at = choice.chosen_at
        self.attempts += 1
        if constraints.session:
            router.session_routed(constraints.session, choice)
        headers = self._headers
        if self._explained:
            headers = (*headers, decision_header(choice, router.config.policy))
        assignment = self.assignment = PoolAssignment(router, choice, self._prompt, headers)
        return assignment


class PoolAssignment:
    """One attempt's booking. Implements `Assignment`; `worker_id` is the target's uid."""

    __slots__ = (
        "_booking",
        "_headers",
        "_prediction",
        "_prompt",
        "_rate",
        "_router",
        "_streamed",
        "choice",
        "first_byte_seconds",
        "host",
        "matched_tokens",
        "port",
        "request_headers",
        "terms",
        "worker_id",
    )

    def __init__(
        self,
        router: PoolRouter,
        choice: Choice,
        prompt: Prompt | None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        worker = choice.worker
        target = worker.target
        self.worker_id = target.uid
        self.host = target.host
        self.port = target.port
        self.request_headers = worker.rank_headers
        self.choice = choice
        self.terms = terms = choice.terms
        """What was expected of the worker."""
        self.matched_tokens = terms.matched_tokens
        self.first_byte_seconds: float | None = None
        """From the pick to the first byte; None where none came."""
        self._router = router
        self._prompt = prompt
        self._headers = headers
        self._rate = router.state.rates.learned.get(self.worker_id)
        self._booking, self._prediction = router.book(choice, prompt)
        self._streamed = False

    @property
    def reply_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        matched = (b"x-warmroute-matched-tokens", b"%d" % self.matched_tokens)
        return (self.choice.worker.header, matched, *self._headers)

    @property
    def estimated_seconds(self) -> float | None:
        """From the pick to the first byte, as was to be expected then; None where the worker's rate was not learned."""
        return first_byte_seconds(self._rate, self.terms, 0 if self._prompt is None else self._prompt.tokens)

    def first_byte(self, *, streamed: bool = True) -> None:
        self._booking.first_byte()
        state, now = self._router.state, self._router.clock()
        self._streamed, self.first_byte_seconds = streamed, now - self.choice.chosen_at
        if self._prediction is not None:
            state.predictions.first_byte(self._prediction, now)
        if self._prompt is not None:
            state.computed(self.choice.worker, self._prompt)

    def close(self, outcome: Outcome) -> None:
        self._booking.close()
        router, worker, seconds = self._router, self.choice.worker, self.first_byte_seconds
        state, workers = router.state, router.census.workers
        completed = seconds is not None and outcome is Outcome.COMPLETED
        if self._prediction is not None and not completed:
            state.predictions.withdraw(self._prediction)
        if seconds is not None and completed:
            state.replied(router.clock() - self.choice.chosen_at, seconds, streamed=self._streamed)
        if seconds is not None and completed and self._streamed and self._prompt is not None:
            terms = self.terms
            state.rates.observe(
                self.worker_id,
                seconds,
                pending=terms.pending_tokens,
                uncached=terms.uncached_tokens,
                cached=self._prompt.tokens - terms.uncached_tokens,
            )
        workers.ended(worker, outcome, router.clock())
        if workers.get(self.worker_id) is worker:  # else it left, and its series were removed
            router.metrics.worker_requests.labels(router.config.name, worker.name, outcome).inc()
