"""`python -m bench.relay`."""

import sys

from bench.relay import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
