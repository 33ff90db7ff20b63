"""A request's keys for routing: of the gateway's own token ids while they can be trusted, else of the engine's."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import choice
from typing import Final

from gateway.engines.registry import dialect
from gateway.prompts.body import CHARACTERS_PER_TOKEN
from gateway.prompts.engine_tokens import EngineTokensError
from gateway.prompts.keyer import Prompt, PromptKeyer
from gateway.prompts.prompt_input import Completion, Unkeyed
from gateway.prompts.self_check import SelfCheck, TokenIdSource
from gateway.requests.inference_request import UNKNOWN_PROMPT, InferenceRequest
from gateway.requests.metrics import RequestMetrics
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


class PromptKeys:
    """Makes keys, and learns from replies whether they were right."""

    def __init__(self, metrics: RequestMetrics, *, budget_seconds: float) -> None:
        """`budget_seconds`: longest wait for an engine's answer."""
        self._metrics = metrics
        self._budget_seconds = budget_seconds

    async def key(self, request: InferenceRequest) -> None:
        """Find the prompt's keys, of the body as the worker gets it; Unkeyed where it is routed by load alone."""
        request.keyed = keyed = await self._key(request)
        if isinstance(keyed, Unkeyed):
            # A prompt without keys still brings work: its length, as far as it is known, is booked.
            request.prompt = Prompt(keyed.tokens, []) if keyed.tokens else UNKNOWN_PROMPT
        else:
            request.prompt = keyed

    async def _key(self, request: InferenceRequest) -> Prompt | Unkeyed:
        pool, fields, kind = request.pool, request.fields, request.route.prompt
        if fields is None:
            return _NO_PROMPT
        if kind is None:
            return Unkeyed("path", len(request.body) // CHARACTERS_PER_TOKEN)
        if request.large is not None and not request.large.whole:
            return Unkeyed("too_long", request.large.text_bytes // CHARACTERS_PER_TOKEN)
        keyer, check = pool.keyer, pool.prompts.check
        if keyer is None:
            return _NO_TOKENIZER
        space = request.census.space
        if space is None:
            return _NO_KEY_SPACE
        deadline = keyer.deadline()
        routed = await keyer.read(fields, len(request.body), kind, deadline=deadline)
        if isinstance(routed, Unkeyed):
            return routed
        salt, adapter = request.salt, request.served.adapter
        if salt is not None or adapter:
            routed = replace(routed, salt=routed.salt if salt is None else salt, adapter=adapter)
        prompt = await keyer.key(routed, space, deadline=deadline)
        if isinstance(prompt, Unkeyed):
            return prompt
        asked = routed.prompt
        if isinstance(asked, Completion) and not any(map(_is_text, asked.prompts)):
            return prompt  # its ids are the client's own
        request.own_tokens = prompt.tokens if prompt.exact and _UNJUDGED.isdisjoint(fields) else None
        request.check = check
        if check.trusted:
            return prompt
        ids = await self._ask(request, check) if prompt.exact else None
        return Unkeyed("mismatch", prompt.tokens) if ids is None else PromptKeyer.key_ids(ids, routed, space)

    async def _ask(self, request: InferenceRequest, check: SelfCheck) -> bytes | None:
        """The engine's token ids; None where it does not tell."""
        pool, path, fields = request.pool, request.http.path, request.fields or {}
        now = pool.router.clock()
        workers = [worker for worker in pool.router.census.workers.all if worker.healthy]
        if check.source(now) is not TokenIdSource.ENGINE or not workers:
            return None
        try:
            renders = dialect(request.census.engine).renders
            asked = choice(workers).target.address
            ids = await pool.engine_tokens.ask(asked, path, request.body, fields, self._budget_seconds, renders=renders)
        except EngineTokensError as error:
            self._metrics.engine_tokens.labels(pool.name, "failed").inc()
            if check.ask_failed(pool.router.clock(), unserved=error.unserved):
                logger.warning("pool %s: its engine does not tell token ids, prompts go by load: %s", pool.name, error)
            return None
        check.asked()
        self._metrics.engine_tokens.labels(pool.name, "told").inc()
        return ids

    def compare(self, request: InferenceRequest, usage: Usage, predicted_cached: int | None) -> None:
        """Take what a complete reply says it used. `predicted_cached`: tokens that routing expected to be cached, None
        without keys."""
        name = request.pool.name
        if predicted_cached is not None and usage.cached_tokens is not None:
            self._metrics.cached_tokens_error.labels(name).observe(predicted_cached - usage.cached_tokens)
        check, own = request.check, request.own_tokens
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
