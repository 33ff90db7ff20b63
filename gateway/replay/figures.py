"""What a replay found, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from gateway.replay.trace import WARM_UP_SHARE
from gateway.replay.worker import Job


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all requests but the first `WARM_UP_SHARE`; times to first token in seconds.

    `hit_rate`: share of the prompt tokens that were in the worker's cache. `imbalance`: the busiest worker's prefill
    time over the mean. `utilisation`: the share of the run that workers computed prompts. `token_seconds`: a reply's
    time per token after the first. `seconds`: simulated, from the first arrival to the last reply's end.
    """

    policy: str
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    hit_rate: float
    imbalance: float
    utilisation: float
    token_seconds: float
    requests_per_second: float
    seconds: float
    refused: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


def figures(policy: str, jobs: Sequence[Job], busy: Sequence[float], seconds: float, refused: int) -> Figures:
    """The figures of a run; `busy` is each worker's prefill time. Raises ValueError without a finished request."""
    first = min(WARM_UP_SHARE * len(jobs), len(jobs) - 1)
    counted = [job for job in jobs if job.number >= first]
    if not counted:
        raise ValueError("no request was finished: the trace has none that fits a worker's cache")
    times = sorted([job.first_byte_at - job.arrived_at for job in counted])
    streams = [job for job in counted if job.request.reply_tokens > 1]
    per_token = [(job.ended_at - job.first_byte_at) / (job.request.reply_tokens - 1) for job in streams]
    mean_busy = fmean(busy)
    return Figures(
        policy,
        requests=len(jobs),
        ttft_mean=fmean(times),
        ttft_p50=percentile(times, 0.5),
        ttft_p90=percentile(times, 0.9),
        ttft_p99=percentile(times, 0.99),
        hit_rate=sum(job.cached_tokens for job in counted) / sum(job.request.prompt_tokens for job in counted),
        imbalance=max(busy) / mean_busy if mean_busy else 1.0,
        utilisation=mean_busy / seconds if seconds else 0.0,
        token_seconds=fmean(per_token) if per_token else 0.0,
        requests_per_second=len(jobs) / seconds if seconds else 0.0,
        seconds=seconds,
        refused=refused,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered values lies below."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def mean_figures(runs: Sequence[Figures]) -> Figures:
    """The mean of the same policy's runs."""
    values = [asdict(run) for run in runs]
    means: dict[str, Any] = {name: fmean(value[name] for value in values) for name in values[0] if name != "policy"}
    for name in ("requests", "refused"):
        means[name] = round(means[name])
    return Figures(policy=runs[0].policy, **means)
