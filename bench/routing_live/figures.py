"""From the replies of one workload through one gateway to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.routing_live.clients import Answer, Replies


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all requests of a workload, the first ones, which nobody could have cached, among them.

    `hit`: share of the prompt tokens that were in the cache of the engine that answered. `ttft_*`: milliseconds from
    sending a request to the first event of its reply, of streamed replies. `imbalance`: prompt tokens computed by the
    busiest engine over the mean of all.
    `cpu_us`: CPU of the gateway a request, streamed chunks, index and loads with it,
    less what it takes without requests.
    """

    requests: int
    failed: int
    hit: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    imbalance: float
    cpu_us: float
    requests_per_second: float


def figures(replies: Replies, *, engines: int, cpu_seconds: float) -> Figures:
    """Raises ValueError without a streamed reply."""
    answers = replies.answers
    times = sorted(answer.first_seconds * 1e3 for answer in answers if answer.first_seconds is not None)
    if not times:
        raise ValueError(f"no request got a streamed reply; the first failures: {replies.failures[:3]}")
    computed: Counter[str] = Counter()
    for answer in answers:
        computed[answer.engine] += answer.computed_tokens
    return Figures(
        requests=len(answers),
        failed=len(replies.failures),
        hit=hit(answers),
        ttft_mean_ms=fmean(times),
        ttft_p50_ms=percentile(times, 0.5),
        ttft_p90_ms=percentile(times, 0.9),
        ttft_p99_ms=percentile(times, 0.99),
        imbalance=max(computed.values()) * engines / max(1, computed.total()),
        cpu_us=cpu_seconds / len(answers) * 1e6,
        requests_per_second=len(answers) / replies.seconds,
    )


def hit(answers: Sequence[Answer]) -> float:
    """Share of the prompt tokens that came from cache."""
    return sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers)


def endless_hit(answers: Sequence[Answer]) -> float:
    """The share with one endless cache for all engines: a tenant's first prompt is new, its other chats have its system
    prompt, which is a word a token, and each turn has all that came before it."""
    found = 0
    seen: set[str] = set()
    before: dict[int, Answer] = {}
    for answer in sorted(answers, key=lambda answer: (answer.chat.at, answer.turn)):
        earlier = before.get(id(answer.chat))
        if earlier is not None:
            found += earlier.prompt_tokens + earlier.reply_tokens
        elif answer.chat.tenant in seen:
            found += answer.chat.system.count(" ") + 1
        seen.add(answer.chat.tenant)
        before[id(answer.chat)] = answer
    return found / sum(answer.prompt_tokens for answer in answers)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered values lies below."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
