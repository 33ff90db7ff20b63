"""The command: options, order of the measurements, and the last line."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence

from bench.index import end_to_end, keys_cpu, mirror_cpu, mirror_memory
from bench.index.processes import ProcessDiedError
from bench.index.report import Report
from bench.index.workload import FULL, QUICK, Sizes

MEASUREMENTS: dict[str, Callable[[Report, int, Sizes], None]] = {
    "keys": keys_cpu.measure,
    "cpu": mirror_cpu.measure,
    "memory": mirror_memory.measure,
    "path": end_to_end.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, each beside its baseline; the last line of stdout is one JSON object."""
    arguments = _parser().parse_args(argv)
    report = Report(json_only=arguments.json, judged=not arguments.quick)
    sizes = QUICK if arguments.quick else FULL
    started_at = time.monotonic()
    report.note("bench", "index")
    report.note("seed", arguments.seed)
    report.note("quick", arguments.quick)
    report.note("machine", f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all processes end as on Ctrl-C
    try:
        for name in arguments.only or MEASUREMENTS:
            MEASUREMENTS[name](report, arguments.seed, sizes)
    except KeyboardInterrupt:
        return 130
    except (ProcessDiedError, TimeoutError) as error:
        print(f"bench.index: {error}", file=sys.stderr)
        return 1
    report.heading(f"took {time.monotonic() - started_at:.0f} s; seed {arguments.seed}")
    print(report.to_json(), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.index",
        description="What the index costs: a lookup, a key in memory, a key from worker to mirror, and its delay.",
        epilog="Example: python -m bench.index --seed 3 --only path",
    )
    parser.add_argument("--seed", type=int, default=1, help="of keys, prompts and holders (default 1)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it works; the figures mean little"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument(
        "--only", action="append", choices=MEASUREMENTS, help="one measurement of four; may be given several times"
    )
    return parser
