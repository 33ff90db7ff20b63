"""A picture of a replay: how long first tokens took, and how much was cached. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.replay.figures import Figures

POINTS: Final = 400
LEAST_SECONDS: Final = 1e-3


class PlotError(Exception):
    """The picture cannot be made; the message says why and what to do."""


def plot(
    path: Path, title: str, figures: Sequence[Figures], times: Mapping[str, Sequence[float]], bound: float
) -> None:
    """Write a PNG: each policy's times to first token (`times`, sorted, by policy) as a distribution, and its hit rate
    under the bound. Raises PlotError."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotError("--plot needs matplotlib: pip install 'warmroute[plot]'") from error
    picture = Figure(figsize=(11, 4.5), layout="constrained")
    distribution, hits = picture.subplots(1, 2, width_ratios=(3, 2))
    for each in figures:
        ordered = times[each.policy]
        count = len(ordered)
        places = sorted({round(step * (count - 1) / POINTS) for step in range(POINTS + 1)})
        distribution.plot(
            [max(LEAST_SECONDS, ordered[place]) for place in places],
            [100 * (place + 1) / count for place in places],
            label=each.policy,
        )
    distribution.set(xscale="log", xlabel="time to first token (s)", ylabel="requests (%)", title=title)
    distribution.grid(alpha=0.3)
    distribution.legend()
    hits.barh([each.policy for each in figures], [100 * each.hit_rate for each in figures])
    hits.axvline(100 * bound, linestyle="--", color="black", label="one endless cache")
    hits.set(xlabel="prompt tokens found in cache (%)")
    hits.invert_yaxis()
    hits.legend()
    try:
        picture.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise PlotError(f"{path} cannot be written: {error}") from error
