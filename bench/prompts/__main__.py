"""`python -m bench.prompts`."""

import sys

from bench.prompts.run import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
