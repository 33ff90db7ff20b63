"""Numbers as engines write them: taken for what they are, or for nothing. No I/O."""

from __future__ import annotations

import math
from typing import Final

# What the messages of the index carry; no engine counts further.
MOST: Final = (1 << 31) - 1


def count(value: object) -> int:
    """A count that is a number or decimal digits, at most `MOST`; 0 for everything else, negative ones too."""
    if isinstance(value, str):
        if not value.isascii() or not value.isdigit():
            return 0
        return min(MOST, int(value[-4000:]))  # Python reads no longer ones
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value < 0:
        return 0
    return int(min(value, MOST))
