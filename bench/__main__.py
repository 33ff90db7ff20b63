"""`python -m bench [NAME...]`: all benchmarks, or those named."""

from __future__ import annotations

import importlib
import sys

NAMES = ("index", "relay", "engine")


def main(argv: list[str]) -> int:
    unknown = [name for name in argv if name not in NAMES]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in argv or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.{name}").main([])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
