"""Chaos: the real parts under a steady load, one fault after another; what clients lose, and how long it takes to heal.

`bench.chaos.run` is the command.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    # Here, since the engine is a module of this package that is run by itself, three times.
    from bench.chaos.run import main as run

    return run(argv)
