"""Ports for servers that tests start as processes of their own, or that come back on the port that they had."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 20_000
EACH: Final = 1_500
"""Ports a process of the run has. All lie below those that Linux gives to sockets that ask for any (from 32,768): no
other test takes one between the moment it is found free and the moment a server binds it."""


def _candidates() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    # Two runs on one machine begin at different places.
    start = os.getpid() % EACH
    return itertools.cycle([FIRST + worker * EACH + (start + number) % EACH for number in range(EACH)])


_next = _candidates()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now."""
    found: list[int] = []
    while len(found) < count:
        port = next(_next)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found
