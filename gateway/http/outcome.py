"""How one attempt to have a worker answer a request ended."""

from __future__ import annotations

from enum import StrEnum


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
