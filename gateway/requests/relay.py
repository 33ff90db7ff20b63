"""The life of a relayed request: try workers until one replies, relay the reply, free every booking."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
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


@dataclass(slots=True)  # not frozen: see Request
class RelayResult:
    """What became of a relayed request; for metrics, logs and usage."""

    status: int
    """The status the client got; 499 when it left before any."""
    outcome: Outcome | None
    """How the last attempt ended; CLIENT_GONE when the client had left before any; None when no worker could be
    assigned."""
    worker_id: str | None
    """The worker of the last attempt."""
    attempts: int
    """Workers tried."""
    started_at: float
    """Loop time at which the relay began."""
    first_byte_at: float | None
    """Loop time of the reply's first byte; None when there was no reply, or only refusals."""
    tail: bytes
    """The last bytes of the worker's body, at most 8 KiB, encoded as `content_encoding` says."""
    content_encoding: bytes | None
    """The reply's content-encoding header."""
    reply_tokens: int
    """About how many tokens the worker's body had, as far as it came; see `Exchange.reply_tokens`."""
    event_stream: bool
    """The reply is text/event-stream."""


async def relay(
    request: Request,
    body: bytes,
    reply: Reply,
    assigner: Assigner,
    upstreams: UpstreamPool,
    edit: ReplyEdit | None = None,
) -> RelayResult:
    """Forward `request` with `body` in place of its own, and answer the client in every case; raises nothing of the
    network's. `upstreams.limits` gives attempts and deadlines, `edit` changes the reply's body on its way.

    Workers are tried one after another until one's reply has begun. One whose connection fails, breaks or is silent
    for too long before that, whose reply is malformed, or that answers 502, 503 or 504, is followed by the next. When
    none is left the client gets the last one's 5xx, or 502 or 504, or 503 when there was none at all.
    """
    loop = asyncio.get_running_loop()
    limits = upstreams.limits
    started_at = loop.time()
    ends_at = request.arrived_at + limits.total_seconds if limits.total_seconds else NEVER
    tried: set[str] = set()
    assignment: Assignment | None = None
    exchange: Exchange | None = None
    attempts = 0
    while attempts < limits.attempts and not reply.closed:
        candidate = assigner.assign(tried)
        if candidate is None:
            break
        assignment = candidate
        attempts += 1
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
            outcome = await exchange.run(head, body)
        finally:
            assignment.close(outcome)
        if reply.started or loop.time() >= ends_at:
            break
    if not reply.started and not reply.closed:
        _answer_failure(reply, assignment, exchange)
    return RelayResult(
        status=reply.final_status,
        outcome=exchange.outcome if exchange is not None else Outcome.CLIENT_GONE if reply.closed else None,
        worker_id=None if assignment is None else assignment.worker_id,
        attempts=attempts,
        started_at=started_at,
        first_byte_at=None if exchange is None else exchange.first_byte_at,
        tail=b"" if exchange is None else exchange.tail,
        content_encoding=None if exchange is None else exchange.content_encoding,
        reply_tokens=0 if exchange is None else exchange.reply_tokens,
        event_stream=exchange is not None and exchange.event_stream,
    )


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
