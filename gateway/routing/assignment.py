"""What the relay and routing say to each other about one request.

The relay asks an `Assigner` for a worker, tries it, and asks again while nothing has been sent to the client. Every
assignment has booked capacity on its worker before the relay sees it and is closed exactly once, whatever happens.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How one attempt ended; a string, so that it is a metric's label as it is."""

    COMPLETED = "completed"
    """The whole reply was relayed, with a status below 400."""
    REFUSED = "refused"
    """The whole reply was relayed, and the worker refused the request with a 4xx; it is not to blame."""
    UNREACHABLE = "unreachable"
    """No connection, or it broke, or it timed out, before the first byte: another worker may be tried."""
    SERVER_ERROR = "server_error"
    """The worker answered 5xx."""
    BROKEN = "broken"
    """The reply broke off after its first byte: never tried again."""
    CLIENT_GONE = "client_gone"
    """The client left; the worker is not to blame."""


class Assignment(Protocol):
    """One request's booking on one worker."""

    @property
    def worker_id(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def reply_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers to add to the reply, such as x-warmroute-worker; lower-case names."""
        ...

    @property
    def request_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that the worker gets in place of the client's of the same name; lower-case names."""
        ...

    def first_byte(self, *, streamed: bool = True) -> None:
        """The first body byte of the reply came; of a stream the first event that counts, see `gateway.http.sse`.
        At most once; frees the prefill part of the booking. `streamed`: it is a stream, so that the prompt has
        just been computed; other replies begin when they are done."""
        ...

    def close(self, outcome: Outcome) -> None:
        """The attempt ended; frees the rest of the booking. Called exactly once."""
        ...


class Assigner(Protocol):
    """Picks workers for one request."""

    def assign(self, exclude: AbstractSet[str]) -> Assignment | None:
        """Book the best worker whose id is not in `exclude`; None when there is none."""
        ...
