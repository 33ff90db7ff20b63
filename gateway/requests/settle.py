"""The last stage of a request: what it used, against the tenant's limits, in metrics, in the record of decisions."""

from __future__ import annotations

from gateway.http.exchange import Exchange
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.prompts.prompt_input import Unkeyed
from gateway.requests.decisions import Decisions
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.key import PromptKeys
from gateway.requests.metrics import RequestMetrics
from gateway.requests.paths import STORED
from gateway.requests.relay import last_outcome
from gateway.requests.shared_responses import SharedResponses
from gateway.requests.usage import Usage, read_usage
from gateway.routing.routed_request import RoutedRequest
from gateway.tenants.limiter import Admission


class Settlement:
    """The one place that counts what became of requests."""

    def __init__(
        self, metrics: RequestMetrics, keys: PromptKeys, decisions: Decisions, responses: SharedResponses
    ) -> None:
        self._metrics = metrics
        self._keys = keys
        self._decisions = decisions
        self._responses = responses

    def keyed(self, request: InferenceRequest) -> None:
        """The request is about to be routed: count what could not be used of it."""
        for name in request.hints.ignored:
            self._metrics.ignored_hints.labels(name).inc()
        for name in request.stripped:
            self._metrics.stripped_fields.labels(name).inc()
        if isinstance(request.keyed, Unkeyed):
            self._metrics.load_only.labels(request.pool.name, request.keyed.reason).inc()

    def ended(
        self,
        request: InferenceRequest,
        routed: RoutedRequest,
        admission: Admission,
        reply: Reply,
        exchange: Exchange | None,
    ) -> None:
        """The request's reply is whole, or will never be. `exchange`: its last attempt."""
        outcome = last_outcome(reply, exchange)
        if request.route is STORED:
            if request.http.method == "DELETE" and outcome is Outcome.COMPLETED and request.response_id:
                self._responses.forget(request.response_id)
            return
        metrics, name, keyed, assignment = self._metrics, request.pool.name, request.keyed, routed.assignment
        matched_tokens = None if assignment is None or isinstance(keyed, Unkeyed) else assignment.matched_tokens
        if routed.decided_at is not None:
            metrics.route_seconds.labels(name).observe(routed.decided_at - request.started_at)
        if exchange is not None and exchange.first_byte_at is not None:
            metrics.first_byte_seconds.labels(name).observe(exchange.first_byte_at - request.http.arrived_at)
        if outcome is Outcome.COMPLETED and matched_tokens is not None:
            metrics.keyed_tokens.labels(name).inc(keyed.tokens)
            metrics.matched_tokens.labels(name).inc(matched_tokens)
        usage = self._account(name, exchange, admission)
        if usage is not None:
            self._keys.compare(request, usage, matched_tokens)
        self._decisions.ended(request, routed, reply, exchange, usage)

    def _account(self, pool: str, exchange: Exchange | None, admission: Admission) -> Usage | None:
        """Settle what the reply says it used with the tenant's limits, and count it; None where it does not say."""
        if exchange is None:
            admission.settle(0)
            return None
        outcome = exchange.outcome
        if outcome is not Outcome.COMPLETED:
            # Leaving is not for free, neither before the usage comes nor while a worker computes the first byte.
            begun = exchange.first_byte_at is not None and outcome not in {Outcome.REFUSED, Outcome.SERVER_ERROR}
            if begun or outcome is Outcome.CLIENT_GONE:
                admission.settle_estimate(exchange.reply_tokens)
            else:
                admission.settle(0)
            return None
        usage = read_usage(exchange.tail, identity=exchange.content_encoding in {None, b"identity"})
        if usage is None:
            # Lost by compression, or by what the client had repeated after it: not for free either.
            admission.settle_estimate(exchange.reply_tokens)
            return None
        admission.settle(usage.prompt_tokens + (usage.completion_tokens or 0))
        if usage.cached_tokens is not None:
            self._metrics.prompt_tokens.labels(pool).inc(usage.prompt_tokens)
            self._metrics.cached_tokens.labels(pool).inc(usage.cached_tokens)
        return usage
