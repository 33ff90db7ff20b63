"""Bytes that nearly mean something: what fuzz tests feed to parsers of what others send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
"""How many inputs a fuzz test takes."""


def damaged(random: Random, data: bytes, pieces: Sequence[bytes]) -> bytes:
    """`data` with pieces put in, parts taken out, doubled and moved, and bytes changed."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at, length = random.randrange(len(changed) + 1), random.randrange(40)
        match random.randrange(6):
            case 0:
                changed[at:at] = random.choice(pieces)
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length]
            case 3:
                to = random.randrange(len(changed) + 1)
                changed[to:to] = changed[at : at + length]
            case 4:
                del changed[at:]
            case _:
                if at < len(changed):
                    changed[at] = random.randrange(256)
    return bytes(changed)
