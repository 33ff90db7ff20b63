"""Generate warmroute/v1 from proto/, or with --check say whether it is current.

Run by `make proto` and, with --check, by `make lint`.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
GENERATED = ("index_pb2.py", "index_pb2.pyi", "index_pb2_grpc.py", "index_pb2_grpc.pyi")


def generate(out: Path) -> None:
    bin_folder = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={HERE}",
            f"--plugin=protoc-gen-mypy={bin_folder / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={bin_folder / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out={out}",
            f"--mypy_grpc_out={out}",
            str(HERE / "warmroute/v1/index.proto"),
        ],
        check=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is not current")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / "warmroute/v1"
        stale = [
            name for name in GENERATED if not filecmp.cmp(fresh / name, ROOT / "warmroute/v1" / name, shallow=False)
        ]
    if stale:
        print(f"warmroute/v1 is not what proto/ generates: {', '.join(stale)}. Run: make proto", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
