"""Which texts two engines cut and join alike for certain."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

# tiktoken's pattern engine gives up, in a panic, on runs of blanks between 100,000 and a million characters long. A run
# of twice the window holds a whole one, wherever it begins.
BLANK_WINDOW: Final = 50_000
STRETCH: Final = 32_768
_BMP: Final = 0x10000


class ProvenText:
    """Says whether the engines agree on a text whatever it says. They differ where

    - characters are younger than the Unicode tables of one of them: those unassigned in Python's tables are left out,
      and half surrogates, which are no characters at all;
    - a text has to be normalised first, which each engine would do by tables of its own;
    - blanks run on beyond any sense.
    """

    def __init__(self, *, nfc: bool) -> None:
        self._nfc = nfc
        self._doubtful = _doubtful()

    def covers(self, text: str) -> bool:
        if len(text) >= 2 * BLANK_WINDOW and self._has_blank_window(text):
            return False
        if text.isascii():
            return True
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            return False
        # By stretches: one search holds the interpreter's lock from its beginning to its end, 10 ns a character.
        find = self._doubtful.findall
        for start in range(0, len(text), STRETCH):
            for character in set(find(text, start, start + STRETCH)):
                if unicodedata.category(character) in {"Cn", "Cs"}:
                    return False
        return True

    @staticmethod
    def _has_blank_window(text: str) -> bool:
        return any(
            text[start : start + BLANK_WINDOW].isspace()
            for start in range(0, len(text) - BLANK_WINDOW + 1, BLANK_WINDOW)
        )


@cache
def _doubtful() -> re.Pattern[str]:
    """Finds characters that may be unassigned: those of the first plane exactly, all of the others, where text is rare
    and a class of their own ranges would be searched one by one."""
    ranges: list[str] = []
    first: int | None = None
    for code_point in range(_BMP + 1):
        doubtful = code_point < _BMP and unicodedata.category(chr(code_point)) in {"Cn", "Cs"}
        if doubtful and first is None:
            first = code_point
        elif not doubtful and first is not None:
            ranges.append(f"\\u{first:04x}-\\u{code_point - 1:04x}")
            first = None
    return re.compile(f"[{''.join(ranges)}\U00010000-\U0010ffff]")
