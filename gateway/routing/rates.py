"""How fast each worker computes prompts, learned from the first bytes of streamed replies.

A reply's first byte comes once the worker has computed what was pending on it and the prompt itself:

    seconds = f + a * (pending + uncached * (1 + k * (cached + uncached / 2)))

with the symbols of `gateway.routing.warm_seconds`. `a` and `f` are each worker's, `k` the pool's, since it follows from
the model. All three are medians: of the slopes between the light and the heavy half of the latest samples (Theil's
incomplete method), so that up to a quarter of the samples may be anything.

Only prompts that find next to nothing pending are samples: what a queue costs also depends on memory and on others,
and a full worker would look like a slow one. Replies that are not streamed are none either: their first byte comes with
the last. A worker without enough samples has no rate; routing takes the median of the others' or counts in tokens.

No I/O; whoever calls has the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from gateway.routing.facts import PrefillRate, Terms

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
    context: float | None = None
    own: PrefillRate | None = None
    """As estimated."""


class PrefillRates:
    """The rates of one pool's workers. Bounded: `SAMPLES` a worker, and workers are forgotten with `forget`."""

    def __init__(self) -> None:
        self.context = 0.0
        """k, the pool's."""
        self.learned: dict[str, PrefillRate] = {}
        """The workers that have a rate."""
        self._workers: dict[str, _Worker] = {}

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
        known.since += 1
        if known.since >= REFRESH and len(known.samples) >= ENOUGH:
            known.since = 0
            self._estimate(known)

    def forget(self, worker: str) -> None:
        """The worker left."""
        self._workers.pop(worker, None)
        self.learned.pop(worker, None)

    def _estimate(self, changed: _Worker) -> None:
        changed.context = _context(changed.samples, changed.own.fixed if changed.own is not None else 0.0)
        contexts = [known.context for known in self._workers.values() if known.context is not None]
        self.context = median(contexts) if contexts else 0.0
        changed.own = _fit(changed.samples, self.context)
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
                self.learned[name] = shared if abs(own.per_token - usual) <= SAME_SPEED * usual else own


def first_byte_seconds(rate: PrefillRate | None, terms: Terms, prompt_tokens: int) -> float | None:
    """From the pick to the reply's first byte, by the terms of the decision; None without a rate or a prompt."""
    if rate is None or not prompt_tokens:
        return None
    uncached = terms.uncached_tokens
    return rate.first_byte_seconds(terms.pending_tokens, uncached, max(0.0, prompt_tokens - uncached))


def _fit(samples: Sequence[_Sample], context: float) -> PrefillRate | None:
    """a and f of one worker; None where the samples are too much alike and too small to tell."""
    points = [(sample.work(context), sample.seconds) for sample in samples]
    slopes = _slopes(points)
    if len(slopes) >= ENOUGH // 2:
        per_token = _within(median(slopes), PER_TOKEN)
        fixed = _within(median(seconds - per_token * work for work, seconds in points), FIXED)
        return PrefillRate(per_token, fixed, context)
    ratios = [seconds / work for work, seconds in points if work >= LEAST_SPREAD]
    if len(ratios) < ENOUGH // 2:
        return None
    return PrefillRate(_within(median(ratios), PER_TOKEN), 0.0, context)


def _context(samples: Sequence[_Sample], fixed: float) -> float | None:
    """k by one worker's prompts; None where they are too short to tell, or all about as long."""
    points = []
    for sample in samples:
        if sample.uncached >= LEAST_SPREAD:
            mean_context = sample.cached + sample.uncached / 2
            points.append((mean_context, (sample.seconds - fixed) / (sample.uncached + sample.pending)))
    slopes = _slopes(points)
    if len(slopes) < ENOUGH // 2:
        return None
    slope = median(slopes)
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
