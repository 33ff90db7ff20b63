"""What relaying costs: CPU a small request, a request of 8 KB and a streamed chunk, beside other proxies.

Each figure stands beside nginx's and an aiohttp proxy's of the same run; ours has its keys, limits and
accounting on. `bench.relay.run` is the command.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    # Here, since the servers are modules of this package that are run by themselves.
    from bench.relay.run import main as run

    return run(argv)
