"""What became of the requests that were routed: the latest in memory, and all in a file where one is configured.

Of a request there is its id and how many tokens it had; no prompt, no API key, no salt. The file has the prompt's index
keys too, for `warmroute replay`: hashes, see `gateway.routing.decision_log`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import xxhash

from gateway.http.exchange import Exchange
from gateway.http.log_writer import LogWriter
from gateway.http.reply import Reply
from gateway.prompts.keyer import Prompt
from gateway.prompts.prompt_input import Unkeyed
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.metrics import RequestMetrics
from gateway.requests.relay import last_outcome
from gateway.requests.usage import Usage
from gateway.routing.decision_log import LoggedDecision
from gateway.routing.routed_request import RoutedRequest
from warmroute.config.gateway import GatewayConfig

PENDING_KEYS: Final = 500_000
"""Most keys, and lines, that wait to be written, about 20 MB; further lines are dropped and counted."""


@dataclass(slots=True)  # not frozen: every request makes one. Compiled it costs as much
class Decided:
    """One request that was routed and has ended. Tokens, and seconds from the last pick; None: not known.

    `time`: of the last pick, or of the end without one, in seconds since 1970. `outcome`: of the last attempt, see
    `gateway.http.outcome.Outcome`; `no_worker` where there was none. `load_only`: why the prompt had no keys, ""
    where it had. `matched_tokens` and `estimated_seconds` were expected, `cached_tokens` and `first_byte_seconds` came.
    """

    time: float
    request_id: str
    pool: str
    worker: str
    status: int
    outcome: str
    retries: int
    load_only: str
    prompt_tokens: int
    matched_tokens: int = 0
    cached_tokens: int | None = None
    reply_tokens: int | None = None
    streamed: bool = False
    estimated_seconds: float | None = None
    first_byte_seconds: float | None = None
    candidates: int = 0
    unit: str = ""
    cost: float = 0.0
    pending_tokens: float = 0.0
    uncached_tokens: float = 0.0
    in_flight: int = 0


class Decisions:
    """One gateway process's. Bounded: `decisions_kept` in memory, `PENDING_KEYS` on their way to the file."""

    def __init__(self, config: GatewayConfig, metrics: RequestMetrics) -> None:
        self._kept: deque[Decided] = deque(maxlen=config.decisions_kept)
        self._log: LogWriter[LoggedDecision] | None = None
        if config.decision_log is not None:
            self._log = LogWriter(
                "gateway.decision_log",
                config.decision_log,
                _line,
                limit=PENDING_KEYS,
                on_drop=metrics.decision_log_dropped.inc,
            )

    def ended(
        self,
        request: InferenceRequest,
        routed: RoutedRequest,
        reply: Reply,
        exchange: Exchange | None,
        usage: Usage | None,
    ) -> None:
        """Note a request that has ended. `exchange`: its last attempt."""
        if not self._kept.maxlen and self._log is None:
            return
        router, prompt, assignment = request.pool.router, request.keyed, routed.assignment
        last, pool, status = last_outcome(reply, exchange), router.config.name, reply.final_status
        outcome = "no_worker" if last is None else last.value
        load_only = prompt.reason if isinstance(prompt, Unkeyed) else ""
        if assignment is None or exchange is None:
            self._kept.append(
                Decided(time.time(), request.http.request_id, pool, "", status, outcome, 0, load_only, prompt.tokens)
            )
            return
        choice, terms = assignment.choice, assignment.terms
        decided = Decided(
            time.time() - (router.clock() - choice.chosen_at),
            request.http.request_id,
            pool,
            choice.worker.name,
            status,
            outcome,
            routed.attempts - 1,
            load_only,
            prompt.tokens,
            terms.matched_tokens,
            None if usage is None else usage.cached_tokens,
            None if usage is None else usage.completion_tokens,
            exchange.event_stream,
            assignment.estimated_seconds,
            assignment.first_byte_seconds,
            len(choice.decision.terms),
            choice.decision.unit,
            terms.cost,
            terms.pending_tokens,
            terms.uncached_tokens,
            terms.in_flight,
        )
        self._kept.append(decided)
        if self._log is not None:
            self._write(self._log, request, decided, exchange.reply_tokens)

    def latest(self, limit: int, pool: str | None = None) -> list[dict[str, Any]]:
        """The latest to end, of one pool or all, newest first."""
        chosen = (each for each in reversed(self._kept) if pool is None or each.pool == pool)
        return [asdict(each) for each in islice(chosen, limit)]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What writes the file; its owner calls `stop` after it."""
        return [] if self._log is None else [self._log.run()]

    async def stop(self) -> None:
        """Write what is left, as far as that is done in time."""
        if self._log is not None:
            await self._log.stop()

    @staticmethod
    def _write(log: LogWriter[LoggedDecision], request: InferenceRequest, decided: Decided, about_tokens: int) -> None:
        """`about_tokens`: the reply's length, where the engine counted only its prompt."""
        space, prompt, session = request.census.space, request.keyed, request.hints.session
        if space is None or not decided.prompt_tokens:
            return  # nothing to learn from a prompt of which not even the length is known
        keys = prompt.keys if isinstance(prompt, Prompt) else []
        reply_tokens = decided.reply_tokens
        logged = LoggedDecision(
            time=round(decided.time, 6),
            pool=decided.pool,
            worker=decided.worker,
            outcome=decided.outcome,
            block_tokens=space.index_block_tokens,
            prompt_tokens=decided.prompt_tokens,
            matched_tokens=decided.matched_tokens,
            keys=keys,
            cached_tokens=decided.cached_tokens,
            reply_tokens=about_tokens or None if reply_tokens is None else reply_tokens,
            first_byte_seconds=None if decided.first_byte_seconds is None or not decided.streamed
            else round(decided.first_byte_seconds, 6),
            session="" if not session else xxhash.xxh3_64_hexdigest(session.encode("utf-8", "surrogatepass")),
        )  # fmt: skip
        log.add(logged, 1 + len(keys))


def _line(logged: LoggedDecision) -> bytes:
    return logged.to_json() + b"\n"
