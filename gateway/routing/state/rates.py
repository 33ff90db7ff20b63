"""How fast each worker computes prompts, learned from the first bytes of streamed replies.

A reply's first byte comes once the worker has computed what was pending on it and the prompt itself:

    seconds = f + a * (pending + uncached * (1 + k * (cached + uncached / 2)))

with the symbols of `policies.warm_seconds`. `a` and `f` are each worker's, `k` the pool's, since it follows from
the model. All three are medians: of the slopes between the light and the heavy half of the latest samples (Theil's
incomplete method), so that up to a quarter of the samples may be anything. Where prompts are too much alike for their
slopes to stand out from the noise of single replies, the worker has the pool's usual `f`, and `a` is what is left a
token; where most workers' are, `f` is 0.

Only prompts that find next to nothing pending are samples: what a queue costs also depends on memory and on others,
and a full worker would look like a slow one. Replies that are not streamed are none either: their first byte comes with
the last. A worker without enough samples has no rate; routing takes the median of the others' or counts in tokens. One
that has had none for long has none any more: were it slow for a while, it would get no requests to show that it no
longer is.

No I/O; whoever calls has the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, quantiles
from typing import Final, NamedTuple

from gateway.routing.policies.facts import PrefillRate, Terms

SAMPLES: Final = 128
"""Latest samples kept of a worker; its rate follows a change of the machine within as many requests."""
ENOUGH: Final = 24
"""Samples before a worker has a rate."""
REFRESH: Final = 16
"""Samples between two estimates of a worker's rate: one takes about 0.1 ms."""
LEAST_SPREAD: Final = 256
"""Tokens by which two samples must differ for their slope to say anything."""
SHORT_QUEUE: Final = 0.05
"""Most that may be pending, as a share of the prompt's own work."""
SAME_SPEED: Final = 0.2
"""Workers within this share of the pool's median count as equally fast: what is left is noise of the estimate, and
would send requests away from what they could reuse."""
CLEAR_ERROR: Final = 0.2
"""Standard error of the slopes' median, as a share of it, up to which they say something."""
FASTEST: Final = 8.0
"""Times the pool's usual speed that a worker counts as at most: one whose replies begin at once since they are errors
would draw all requests, and of a machine that is that much faster the queue tells the rest."""
FORGOTTEN: Final = 4
"""Times as many samples of the pool as it keeps of all workers, with none of a worker's, after which its rate goes."""
PER_TOKEN: Final = (1e-7, 0.1)
FIXED: Final = (0.0, 2.0)
CONTEXT: Final = (0.0, 1e-3)
"""Bounds of a, f and k: ten million tokens a second to ten; 0 to 2 s; each thousand tokens of context double the cost
of a token at most."""


class _Sample(NamedTuple):
    seconds: float
    pending: float
    uncached: float
    cached: float

    def work(self, context: float) -> float:
        return self.pending + self.uncached * (1 + context * (self.cached + self.uncached / 2))


@dataclass(slots=True)
class _Worker:
    samples: deque[_Sample]
    since: int = 0
    latest: int = 0
    """The number of its latest sample among the pool's."""
    context: float | None = None
    own: PrefillRate | None = None
    """As estimated."""
    own_fixed: float | None = None
    """The fixed part, where its own samples show it."""


class PrefillRates:
    """The rates of one pool's workers. Bounded: `SAMPLES` a worker, and workers are forgotten with `forget`."""

    def __init__(self) -> None:
        self.context = 0.0
        """k, the pool's."""
        self.learned: dict[str, PrefillRate] = {}
        """The workers that have a rate."""
        self._workers: dict[str, _Worker] = {}
        self._number = 0

    def rate(self, worker: str) -> PrefillRate | None:
        """The worker's rate; None while it is not learned."""
        return self.learned.get(worker)

    def observe(self, worker: str, seconds: float, *, pending: float, uncached: float, cached: float) -> None:
        """A streamed reply's first byte came `seconds` after the pick. The rest as the decision had it: tokens of work
        pending on the worker, and the prompt's own, those to compute and those in its cache."""
        if seconds <= 0 or uncached <= 0 or pending > SHORT_QUEUE * uncached:
            return
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker(deque(maxlen=SAMPLES))
        known.samples.append(_Sample(seconds, pending, uncached, cached))
        self._number += 1
        known.since, known.latest = known.since + 1, self._number
        if known.since >= REFRESH and len(known.samples) >= ENOUGH:
            known.since = 0
            self._estimate(known)

    def forget(self, worker: str) -> None:
        """The worker left."""
        self._workers.pop(worker, None)
        self.learned.pop(worker, None)

    def _estimate(self, changed: _Worker) -> None:
        oldest = self._number - FORGOTTEN * SAMPLES * len(self._workers)
        for name in [name for name, known in self._workers.items() if known.latest < oldest]:
            self.forget(name)
        changed.context = _context(changed.samples, changed.own.fixed if changed.own is not None else 0.0)
        contexts = [known.context for known in self._workers.values() if known.context is not None]
        self.context = median(contexts) if contexts else 0.0
        self._fit(changed)
        rates = [known.own for known in self._workers.values() if known.own is not None]
        if not rates:
            return
        usual = median(rate.per_token for rate in rates)
        usual_fixed = median(rate.fixed for rate in rates)
        # As used: the pool's speed where a worker's is about that.
        shared = PrefillRate(usual, usual_fixed, self.context)
        for name, known in self._workers.items():
            own = known.own
            if own is not None:
                if own.per_token < usual / FASTEST:
                    own = PrefillRate(usual / FASTEST, own.fixed, own.context)
                self.learned[name] = shared if abs(own.per_token - usual) <= SAME_SPEED * usual else own

    def _fit(self, changed: _Worker) -> None:
        """A worker's a and f; what it had where the samples are too small to tell."""
        points = [(sample.work(self.context), sample.seconds) for sample in changed.samples]
        slope = _clear(_slopes(points))
        changed.own_fixed = None
        if slope is not None:
            changed.own_fixed = _within(median(seconds - slope * work for work, seconds in points), FIXED)
        fixed = [known.own_fixed for known in self._workers.values() if known.own_fixed is not None]
        # All by one way or nearly: of equal workers those of the other way would look faster with long prompts.
        most = 2 * len(fixed) >= len(self._workers)
        usual = median(fixed) if most else 0.0
        if most and slope is not None and changed.own_fixed is not None:
            changed.own = PrefillRate(_within(slope, PER_TOKEN), changed.own_fixed, self.context)
            return
        ratios = [(seconds - usual) / work for work, seconds in points if work >= LEAST_SPREAD]
        if len(ratios) >= ENOUGH // 2:
            changed.own = PrefillRate(_within(median(ratios), PER_TOKEN), usual, self.context)


def first_byte_seconds(rate: PrefillRate | None, terms: Terms, prompt_tokens: int) -> float | None:
    """From the pick to the reply's first byte, by the terms of the decision; None without a rate or a prompt."""
    if rate is None or not prompt_tokens:
        return None
    uncached = terms.uncached_tokens
    return rate.first_byte_seconds(terms.pending_tokens, uncached, max(0.0, prompt_tokens - uncached))


def _clear(slopes: Sequence[float]) -> float | None:
    """The slopes' median; None where they are few, or scatter too much for it to mean something."""
    if len(slopes) < ENOUGH // 2:
        return None
    low, middle, high = quantiles(slopes)
    # The standard error of a median, by the quartiles of a normal distribution.
    return middle if 0.93 * (high - low) <= CLEAR_ERROR * middle * sqrt(len(slopes)) else None


def _context(samples: Sequence[_Sample], fixed: float) -> float | None:
    """k by one worker's prompts; None where they are too short to tell, or all about as long."""
    points = []
    for sample in samples:
        if sample.uncached >= LEAST_SPREAD:
            mean_context = sample.cached + sample.uncached / 2
            points.append((mean_context, (sample.seconds - fixed) / (sample.uncached + sample.pending)))
    slope = _clear(_slopes(points))
    if slope is None:
        return None
    base = median([seconds - slope * mean_context for mean_context, seconds in points])
    return _within(slope / base, CONTEXT) if base > 0 else None


def _slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Slopes between each point of the light half and its counterpart of the heavy half."""
    ordered = sorted(points)
    half = (len(ordered) + 1) // 2
    return [
        (heavy_y - light_y) / (heavy_x - light_x)
        for (light_x, light_y), (heavy_x, heavy_y) in zip(ordered, ordered[half:], strict=False)
        if heavy_x - light_x >= LEAST_SPREAD
    ]


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
