"""The life of a relayed request: try workers until one replies, relay the reply, free every booking."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import Protocol

from gateway.http.deadlines import NEVER
from gateway.http.errors import RequestError
from gateway.http.exchange import Destination, Exchange, ReplyEdit
from gateway.http.forwarding import reply_headers, request_head
from gateway.http.message import Request
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.http.upstream_connection import Failure


class Assignment(Destination, Protocol):
    """One request's booking on one worker."""

    @property
    def worker_id(self) -> str: ...

    @property
    def request_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that the worker gets in place of the client's of the same name; lower-case names."""
        ...

    def close(self, outcome: Outcome) -> None:
        """The attempt ended; frees the rest of the booking. Called exactly once."""
        ...


class Assigner(Protocol):
    """Picks workers for one request."""

    def assign(self, exclude: AbstractSet[str]) -> Assignment | None:
        """Book the best worker whose id is not in `exclude`; None when there is none."""
        ...


async def relay(
    request: Request,
    body: bytes,
    reply: Reply,
    assigner: Assigner,
    upstreams: UpstreamPool,
    edit: ReplyEdit | None = None,
) -> Exchange | None:
    """Forward `request` with `body` in place of its own, and answer the client in every case; raises nothing of the
    network's. `upstreams.limits` gives attempts and deadlines, `edit` changes the reply's body on its way.

    Workers are tried one after another until one's reply has begun. One whose connection fails, breaks or is silent
    for too long before that, whose reply is malformed, or that answers 502, 503 or 504, is followed by the next. When
    none is left the client gets the last one's 5xx, or 502 or 504, or 503 when there was none at all.

    Returns the last attempt; None where no worker was asked.
    """
    loop = asyncio.get_running_loop()
    limits = upstreams.limits
    ends_at = request.arrived_at + limits.total_seconds if limits.total_seconds else NEVER
    tried: set[str] = set()
    assignment: Assignment | None = None
    exchange: Exchange | None = None
    while len(tried) < limits.attempts and not reply.closed:
        candidate = assigner.assign(tried)
        if candidate is None:
            break
        assignment = candidate
        outcome = Outcome.CLIENT_GONE  # what a cancelled or failed attempt says: the worker is not to blame
        try:
            tried.add(assignment.worker_id)
            reply.upstream = assignment.worker_id
            head = request_head(
                request,
                assignment.host,
                assignment.port,
                len(body),
                upstreams.authorization,
                assignment.request_headers,
            )
            exchange = Exchange(reply, assignment, upstreams, edit, ends_at)
            # The attempt alone holds the body, and lets go of it when the reply begins.
            attempt = exchange.run(head, body)
            body = b""
            outcome = await attempt
            body = exchange.body
        finally:
            assignment.close(outcome)
        if reply.started or loop.time() >= ends_at:
            break
    if not reply.started and not reply.closed:
        _answer_failure(reply, assignment, exchange)
    return exchange


def last_outcome(reply: Reply, exchange: Exchange | None) -> Outcome | None:
    """How the last attempt ended; CLIENT_GONE where the client had left before any; None where no worker was asked."""
    if exchange is not None:
        return exchange.outcome
    return Outcome.CLIENT_GONE if reply.closed else None


def _answer_failure(reply: Reply, assignment: Assignment | None, exchange: Exchange | None) -> None:
    """Answer for workers of which none began a reply."""
    if exchange is None or assignment is None:
        message = "no worker is ready for this model; try again later"
        reply.send_error(RequestError(503, message, "no_worker", headers=((b"retry-after", b"1"),)))
    elif exchange.failure is Failure.TIMEOUT:
        message = "the worker did not reply in time; try again later"
        reply.send_error(RequestError(504, message, "worker_timeout"))
    elif exchange.head is None or exchange.failure is not None:
        message = "the worker could not be reached; try again later"
        reply.send_error(RequestError(502, message, "worker_unreachable"))
    elif exchange.refusal is None:
        reply.send_error(RequestError(exchange.head.status, "the worker refused the request", "worker_refused"))
    else:
        headers = reply_headers(exchange.head, assignment.reply_headers)
        reply.send(exchange.head.status, headers, exchange.refusal)
