"""Routing live: the real gateway, index and publishers in front of simulated engines, one policy after another.

`bench.routing_live.run` is the command.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    # Here, since the engine is a module of this package that is run by itself, eight times.
    from bench.routing_live.run import main as run

    return run(argv)
