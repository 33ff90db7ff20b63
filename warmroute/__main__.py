"""`python -m warmroute` is `warmroute`."""

from warmroute.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
