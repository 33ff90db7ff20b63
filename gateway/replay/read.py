"""Reading a trace's file, in whichever of the known formats it is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from gateway.replay.logged import is_logged, read_logged
from gateway.replay.mooncake import is_mooncake, read_mooncake
from gateway.replay.trace import Trace
from gateway.replay.weka import is_weka, read_weka

FORMATS = (
    "known are Mooncake's traces (timestamp, hash_ids), Weka's sessions (reqs, block_size) and the decision log of a "
    "gateway (v, keys)"
)


class TraceError(ValueError):
    """The file cannot be read as a trace; the message names it, the line and the remedy."""


def read_trace(path: Path, *, context_limit: int) -> Trace:
    """The trace of a file of JSON lines, plain or gzip. Requests of more than `context_limit` tokens, prompt and reply,
    are left out, and of a decision log lines that are no JSON. Raises TraceError."""
    lines = _Lines(path)
    try:
        trace = _read(path.name, lines, context_limit)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error}; give a file of JSON lines, plain or gzip") from error
    except KeyError as error:
        raise TraceError(f"{lines.place}: the field {error} is missing") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise TraceError(f"{lines.place}: {error}") from error
    if len(trace) == 0:
        raise TraceError(f"{path} has no request of at most {context_limit} tokens; raise the limit")
    return replace(trace, damaged=lines.damaged)


def _read(name: str, lines: _Lines, context_limit: int) -> Trace:
    rows = iter(lines)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"it is empty; {FORMATS}")
    rows = chain((first,), rows)
    if is_mooncake(first):
        return read_mooncake(name, rows, context_limit=context_limit)
    if is_weka(first):
        return read_weka(name, rows, context_limit=context_limit)
    if is_logged(first):
        lines.leaves_out_damaged = True
        return read_logged(name, rows, context_limit=context_limit)
    raise ValueError(f"its fields are {', '.join(first) or 'none'}; {FORMATS}")


class _Lines:
    """The file's objects, and where the one that was read last stands."""

    def __init__(self, path: Path) -> None:
        self.number = 0
        self.damaged = 0
        """Lines that are no JSON and were left out."""
        self.leaves_out_damaged = False
        self._path = path

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        with self._path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(self._path) if packed else self._path.open("rb") as file:
            for self.number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError:
                    if not self.leaves_out_damaged:
                        raise
                    self.damaged += 1
                    continue
                if not isinstance(row, dict):
                    raise ValueError("a line is to be one JSON object")  # noqa: TRY004 - as all that is wrong with one
                yield row
        self.number = 0

    @property
    def place(self) -> str:
        """The file, and the line that was read last unless all were."""
        return f"{self._path}, line {self.number}" if self.number else str(self._path)
