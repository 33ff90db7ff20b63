"""A request's keys for routing: of the gateway's own token ids while they can be trusted, else of the engine's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import choice
from typing import Any, Final

from gateway.prompts.body import CHARACTERS_PER_TOKEN
from gateway.prompts.conversation import Completion, Unkeyed
from gateway.prompts.engine_tokens import EngineTokensError
from gateway.prompts.keyer import Prompt, PromptKeyer
from gateway.prompts.self_check import SelfCheck, Source
from gateway.requests.metrics import RequestMetrics
from gateway.requests.paths import Route
from gateway.requests.pools import Pool, Served
from gateway.requests.usage import Usage

logger = logging.getLogger(__name__)

_UNJUDGED: Final = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "continue_final_message",
        "documents",
        "truncate_prompt_tokens",
        "truncation_side",
    }
)
"""Fields of vLLM's own that other engines, and some of its versions, leave unread: what one client asks for with them
must not decide for all others of the pool."""
_NO_PROMPT: Final = Unkeyed("path")
_NO_TOKENIZER: Final = Unkeyed("no_tokenizer")
_NO_KEY_SPACE: Final = Unkeyed("no_key_space")


@dataclass(slots=True)  # not frozen: every request makes one
class Keyed:
    """What is known of a request's prompt. `own`: how many tokens the gateway itself makes of it, where replies are to
    be compared with that; `check` is the verdict that they go into."""

    prompt: Prompt | Unkeyed
    own: int | None = None
    check: SelfCheck | None = None


class PromptSource:
    """Makes keys, and learns from replies whether they were right."""

    def __init__(self, metrics: RequestMetrics, *, budget_seconds: float) -> None:
        """`budget_seconds`: longest wait for an engine's answer."""
        self._metrics = metrics
        self._budget_seconds = budget_seconds

    async def key(
        self,
        served: Served,
        route: Route,
        path: str,
        body: bytes,
        fields: Mapping[str, Any] | None,
        salt: str | None,
        *,
        counted: bool = True,
    ) -> Keyed:
        """The keys of a request; Unkeyed, `counted` by reason, where it is routed by load alone.

        `path` and `body`: as the worker gets them; `fields`: the body, parsed, None for a form. `salt`: what
        the engine keeps prompts apart by, None: the body's own.
        """
        keyed = await self._key(served, route, path, body, fields, salt)
        if counted and isinstance(keyed.prompt, Unkeyed):
            self._metrics.load_only.labels(served.pool.name, keyed.prompt.reason).inc()
        return keyed

    async def _key(
        self, served: Served, route: Route, path: str, body: bytes, fields: Mapping[str, Any] | None, salt: str | None
    ) -> Keyed:
        pool = served.pool
        if fields is None:
            return Keyed(_NO_PROMPT)
        if route.prompt is None:
            return Keyed(Unkeyed("path", len(body) // CHARACTERS_PER_TOKEN))
        keyer, check = pool.keyer, pool.prompts.check
        if keyer is None:
            return Keyed(_NO_TOKENIZER)
        space = pool.router.key_space()
        if space is None:
            return Keyed(_NO_KEY_SPACE)
        deadline = keyer.deadline()
        routed = await keyer.read(fields, len(body), route.prompt, deadline=deadline)
        if isinstance(routed, Unkeyed):
            return Keyed(routed)
        if salt is not None or served.adapter:
            routed = replace(routed, salt=routed.salt if salt is None else salt, adapter=served.adapter)
        prompt = await keyer.key(routed, space, deadline=deadline)
        if isinstance(prompt, Unkeyed):
            return Keyed(prompt)
        request = routed.prompt
        if isinstance(request, Completion) and not any(map(_is_text, request.prompts)):
            return Keyed(prompt)  # its ids are the client's own
        own = prompt.tokens if prompt.exact and _UNJUDGED.isdisjoint(fields) else None
        if check.trusted:
            return Keyed(prompt, own, check)
        ids = await self._ask(pool, check, path, body, fields) if prompt.exact else None
        asked = Unkeyed("mismatch", prompt.tokens) if ids is None else PromptKeyer.key_ids(ids, routed, space)
        return Keyed(asked, own, check)

    async def _ask(
        self, pool: Pool, check: SelfCheck, path: str, body: bytes, fields: Mapping[str, Any]
    ) -> bytes | None:
        """The engine's token ids; None where it does not tell."""
        now = pool.router.clock()
        workers = [worker for worker in pool.router.workers.all if worker.healthy]
        if check.source(now) is not Source.ENGINE or not workers:
            return None
        try:
            ids = await pool.engine_tokens.ask(choice(workers).target.address, path, body, fields, self._budget_seconds)
        except EngineTokensError as error:
            self._metrics.engine_tokens.labels(pool.name, "failed").inc()
            if check.ask_failed(pool.router.clock(), unserved=error.unserved):
                logger.warning("pool %s: its engine does not tell token ids, prompts go by load: %s", pool.name, error)
            return None
        check.asked()
        self._metrics.engine_tokens.labels(pool.name, "told").inc()
        return ids

    def compare(self, pool: Pool, keyed: Keyed, usage: Usage, predicted_cached: int | None) -> None:
        """Take what a complete reply says it used. `predicted_cached`: tokens that routing expected to be cached, None
        without keys."""
        name = pool.name
        if predicted_cached is not None and usage.cached_tokens is not None:
            self._metrics.cached_tokens_error.labels(name).observe(predicted_cached - usage.cached_tokens)
        check, own = keyed.check, keyed.own
        if check is None or own is None:
            return
        if own != usage.prompt_tokens:
            self._metrics.prompt_tokens_mismatch.labels(name).inc()
        if not check.compare(own, usage.prompt_tokens):
            return
        if check.trusted:
            logger.info("pool %s: replies agree with this gateway's token ids again", name)
        else:
            logger.error(
                "pool %s: most replies count other prompt tokens than this gateway (last: %s here, %s there): prompts "
                "are tokenised by the engine now, where it can, else routed by load. Check that tokenizer and chat "
                "template are the engine's (--chat-template, --tokenizer)",
                name,
                *(check.last_difference or ()),
            )


def _is_text(prompt: object) -> bool:
    return isinstance(prompt, str)
