"""What a request's head says already against it: asked before a body is taken that is not there yet, or is not small.

Whoever sends no key, or the wrong one, holds no memory, and no client sends 32 MiB to read that its path is unknown.
All is asked again of the whole request (`App`).
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.prompts.body import CHARACTERS_PER_TOKEN
from gateway.requests.access import Access
from gateway.requests.paths import HEALTH, MODELS, POST, POST_ROUTES, READS, stored_path


class HeadCheck:
    """For `gateway.http.server.Server`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __call__(self, head: Request) -> str:
        """Whose share of memory the body is in: a tenant's, or an address's. Raises RequestError."""
        path = head.path
        route = POST_ROUTES.get(path)
        if route is not None:
            check_method(head, POST)
            check_coding(head.first_values)
            tenant = self._access.identify(head, anthropic=route.anthropic)
            length = head.header(b"content-length")
            self._access.foresee(tenant, 0 if length is None else int(length) // CHARACTERS_PER_TOKEN)
        else:
            stored = stored_path(path)
            if stored is None and path != HEALTH and path != MODELS and not path.startswith(MODELS + "/"):
                raise unknown_path(head)
            check_method(head, READS if stored is None else stored.methods)
            if path == HEALTH:
                return f"address {head.client}"
            tenant = self._access.identify(head, anthropic=False)
        return f"address {head.client}" if tenant.anonymous else f"tenant {tenant.name}"


def check_method(http: Request, methods: tuple[str, ...]) -> None:
    """Raises RequestError for another."""
    if http.method not in methods:
        names = ", ".join(methods)
        raise RequestError(
            405, f"{http.path} takes {names}", "method_not_allowed", headers=((b"allow", names.encode()),)
        )


def check_coding(headers: Mapping[bytes, bytes]) -> None:
    """Raises RequestError for a compressed body."""
    coding = headers.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise RequestError(415, "send the body without Content-Encoding", "unsupported_content_encoding")


def unknown_path(http: Request) -> RequestError:
    """404."""
    known = ", ".join([*POST_ROUTES, HEALTH, MODELS])
    return RequestError(404, f"there is no {http.method} {http.path[:200]} here; known paths: {known}", "not_found")
