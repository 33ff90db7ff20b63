"""`python -m bench.chaos`."""

import sys

from bench.chaos import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
