"""`python -m bench.index`."""

import sys

from bench.index.run import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
