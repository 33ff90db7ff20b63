"""One request on its way through the gateway: what each stage has found out about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.http.exchange import ReplyEdit
from gateway.http.message import Request
from gateway.prompts.keyer import Prompt
from gateway.prompts.prompt_input import Unkeyed
from gateway.prompts.self_check import SelfCheck
from gateway.requests.hints import NO_HINTS, Hints
from gateway.requests.large_body import LargeBody
from gateway.requests.models import Pool, Served
from gateway.requests.multipart import FormModel
from gateway.requests.paths import Route
from gateway.requests.stored_responses import Owner
from gateway.routing.candidates import NO_CONSTRAINTS, Constraints
from gateway.routing.state.sessions import NO_SESSION, session_key
from gateway.tenants.tenant import Tenant

UNKNOWN_PROMPT: Final = Prompt(0, [])
"""Of a request of which not even the length is known; nobody changes it."""


NOTHING: Final[frozenset[str]] = frozenset()


class InferenceRequest:
    """Made by `resolve`; the stages after it take it and add to it, in the order of `App.serve`.

    A class with slots and a constructor of its own: what every request makes must be cheap, and mypyc compiles it.
    """

    __slots__ = (
        "body",
        "census",
        "check",
        "drops_usage",
        "fields",
        "form",
        "hints",
        "http",
        "keyed",
        "large",
        "own_tokens",
        "owner",
        "pinned",
        "pool",
        "prompt",
        "reply_edit",
        "response_id",
        "route",
        "salt",
        "served",
        "shown_model",
        "started_at",
        "stripped",
        "tenant",
    )

    def __init__(
        self, http: Request, route: Route, tenant: Tenant, served: Served, fields: Mapping[str, Any] | None = None
    ) -> None:
        # resolve: whose request it is, for which model, and what it says of itself
        self.http = http
        self.route = route
        self.tenant = tenant
        self.served = served
        self.pool: Pool = served.pool
        self.census = served.pool.router.census.current()
        """What the pool's workers say; refreshed once a request."""
        self.fields = fields
        """The body, parsed; None where it is a form or has none."""
        self.large: LargeBody | None = None
        """What was read of a large body, beside its fields; None where it is short."""
        self.form: FormModel | None = None
        """Where the model's name stands in a form."""
        self.shown_model: str | None = None
        """The public name that the reply must show; None where the engine's own name is the public one."""
        self.hints: Hints = NO_HINTS
        self.response_id: str | None = None
        """The stored response that this is about, or that it continues."""
        self.owner: Owner | None = None
        """Where that response is; None where nobody knows."""
        # permit
        self.pinned: frozenset[str] | None = None
        """The workers that it may go to, by uid; None: all."""
        # edit
        self.body = http.body
        """As the worker gets it."""
        self.salt: str | None = None
        """What the engine keeps its prompt apart by; None: what the body says."""
        self.stripped: frozenset[str] = NOTHING
        """Fields that were taken out of the body, since tenants may not steer an engine."""
        self.drops_usage = False
        """The gateway asked the engine for the usage, so that the client must not see it."""
        # key
        self.keyed: Prompt | Unkeyed = UNKNOWN_PROMPT
        """Its keys, or why it has none."""
        self.prompt: Prompt | None = None
        """What is booked: the keyed prompt, or its length as far as that is known; None for no prompt at all."""
        self.own_tokens: int | None = None
        """How many tokens the gateway itself makes of it, where its reply is to be compared with that."""
        self.check: SelfCheck | None = None
        """The verdict that the comparison goes into."""
        # place and relay
        self.reply_edit: ReplyEdit | None = None
        self.started_at = 0.0
        """When its routing began, by the router's clock."""

    def constraints(self) -> Constraints:
        """Which workers it may go to or should."""
        adapter, owner, pinned, session = self.served.adapter, self.owner, self.pinned, self.hints.session
        if not adapter and owner is None and pinned is None and session is None:
            return NO_CONSTRAINTS  # most requests
        return Constraints(
            adapter,
            None if owner is None else owner.worker,
            pinned,
            NO_SESSION if session is None else session_key(self.tenant.name, session),
        )

    def take_body(self) -> bytes:
        """The worker's body, for the one who sends it: nothing else is needed of the request's any more, and it may
        take minutes until its reply begins."""
        body = self.body
        self.body = self.http.body = b""
        self.fields = self.large = None
        return body
