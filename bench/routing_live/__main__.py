"""`python -m bench.routing_live`."""

import sys

from bench.routing_live import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
