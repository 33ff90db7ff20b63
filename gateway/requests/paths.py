"""The paths of the public port that go to workers, and what is special about each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.http.errors import ANTHROPIC
from gateway.prompts.body import BodyKind


@dataclass(frozen=True, slots=True)
class Route:
    """One path."""

    prompt: BodyKind | None = None
    """How its prompts are made, for their keys; None: it is routed by load."""
    salted: bool = False
    """Its prompts meet the prefix cache: the tenant's `cache_salt` is added."""
    anthropic: bool = False
    """Its clients read Anthropic's errors."""
    model_optional: bool = False
    """Engines take it without `model`."""
    counts_usage: bool = False
    """Its streams tell usage on request, by `stream_options.include_usage`."""
    prioritised: bool = False
    """Engines schedule its requests by `priority`."""
    stores: bool = False
    """Its replies are kept by the worker under their id."""
    form: bool = False
    """Its body may be multipart/form-data."""


_GENERATES: Final = Route(salted=True)
_POOLS: Final = Route(salted=True, model_optional=True)
_FORM: Final = Route(form=True)

POST_ROUTES: Final[dict[str, Route]] = {
    "/v1/chat/completions": Route(BodyKind.CHAT, salted=True, counts_usage=True, prioritised=True),
    "/v1/completions": Route(BodyKind.COMPLETION, salted=True, counts_usage=True, prioritised=True),
    "/v1/embeddings": _GENERATES,
    "/v1/responses": Route(BodyKind.RESPONSE, salted=True, stores=True, prioritised=True),
    "/v1/messages": Route(BodyKind.MESSAGES, salted=True, anthropic=True),
    "/v1/messages/count_tokens": Route(anthropic=True),
    "/v1/rerank": _POOLS,
    "/rerank": _POOLS,
    "/v1/score": _POOLS,
    "/score": _POOLS,
    "/classify": _POOLS,
    "/pooling": _POOLS,
    # Written out, since a prefix would let `..` through to an engine's other paths.
    "/v1/audio/transcriptions": _FORM,
    "/v1/audio/translations": _FORM,
    "/v1/audio/speech": Route(),
    "/v1/images/generations": Route(),
    "/v1/images/edits": _FORM,
    "/v1/images/variations": _FORM,
    "/tokenize": Route(model_optional=True),
    "/detokenize": Route(model_optional=True),
}

ERROR_SHAPES: Final = {path: ANTHROPIC for path, route in POST_ROUTES.items() if route.anthropic}
"""The paths whose clients read other errors than OpenAI's."""
STORED: Final = Route()
"""All paths about one stored response: no body is edited, no prompt is keyed."""
HEALTH: Final = "/health"
MODELS: Final = "/v1/models"
POST: Final = ("POST",)
READS: Final = ("GET", "HEAD")

_STORED: Final = re.compile(r"/v1/responses/([A-Za-z0-9_-]{1,128})(/cancel|/input_items)?")
_STORED_METHODS: Final = {None: ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}


@dataclass(frozen=True, slots=True)
class StoredPath:
    """A path below /v1/responses/."""

    response_id: str
    methods: tuple[str, ...]


def stored_path(path: str) -> StoredPath | None:
    """What a path says of a stored response; None for any other path."""
    match = _STORED.fullmatch(path)
    return None if match is None else StoredPath(match[1], _STORED_METHODS[match[2]])
