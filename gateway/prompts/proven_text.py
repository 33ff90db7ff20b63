"""The texts for which two tokenizer libraries are proven to give the same ids."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

# tiktoken's regex engine panics on runs of blanks of 100,000 to a million characters. A run of twice the window
# contains a whole window, wherever the run begins.
BLANK_WINDOW: Final = 50_000
STRETCH: Final = 32_768
_BMP: Final = 0x10000


class ProvenText:
    """Decides whether a text is proven. The libraries may differ where

    - a character is newer than the Unicode tables of one of them: characters that are unassigned in Python's tables are
      not proven, nor are lone surrogates;
    - a text must be normalised first, which each library does by its own tables;
    - a run of blanks is at least BLANK_WINDOW characters long.
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
        # In stretches: one search holds the GIL from its beginning to its end, 10 ns a character.
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
    """Finds characters that may be unassigned: exactly those of the first plane, and all of the others, which are rare
    and whose exact ranges would make each search slower."""
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
