"""Routing policies against each other over public traces, through `gateway.replay`.

`bench.replay.run` is the command. `--data FOLDER` names the full traces, which are not part of the project; without it
ten minutes of one of them are replayed, for what can be said of so little.
"""

from bench.replay.run import main

__all__ = ["main"]
