"""What a command reads a request from: a file, or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from warmroute.process.lifecycle import StartupError


def read_input(name: str, limit_bytes: int, *, argument: str) -> bytes:
    """The file, or stdin for `-`. `argument`: what the file is to the command, for messages. Raises StartupError."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(limit_bytes + 1)
    except OSError as error:
        raise StartupError(f"{argument}: {name} cannot be read: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise StartupError(
            f"{argument}: {name} has more than the {limit_bytes} bytes that gateway.body_limit_bytes allows"
        )
    return data
