"""The index from worker to mirror: what a lookup, a key in memory, a key on its way, and their delay cost.

Each figure stands beside a named baseline of the same run. `bench.index.run` is the command.
"""

from bench.index.run import main

__all__ = ["main"]
