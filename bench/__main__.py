"""`python -m bench [NAME...]`: all benchmarks, or those named; `python -m bench NAME --flag...`: one with its flags."""

from __future__ import annotations

import importlib
import sys

NAMES = ("index", "prompts", "relay", "decision", "replay", "routing_live", "adapters", "engine", "chaos")


def main(argv: list[str]) -> int:
    flags_at = next((place for place, word in enumerate(argv) if word.startswith("-")), len(argv))
    names, flags = argv[:flags_at], argv[flags_at:]
    if flags and len(names) != 1:
        print(
            f"flags are for one benchmark: python -m bench NAME {' '.join(flags)}; there are: {', '.join(NAMES)}",
            file=sys.stderr,
        )
        return 2
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        if not flags:
            print(f"== {name}", flush=True)
        status = importlib.import_module(f"bench.{name}").main(flags)
        if status:
            return int(status)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
