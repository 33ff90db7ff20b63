"""Text to token ids, as the engine does it, with what was tokenised before remembered.

Special tokens are hard boundaries of a BPE tokenizer: the text between two of them tokenises independently of the
rest. So the ids of each such segment are remembered, and a conversation's next turn costs only its new segments.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tokenizers import Tokenizer

from indexer.keys import token_bytes, tokenizer_digest

DEFAULT_MEMO_BYTES: Final = 33_554_432
ENTRY_BYTES: Final = 200  # of an entry's objects, beside its text and ids

_PROBES: Final = (
    "{0}user\nHello, world! 12345 times.{1}\n{0}assistant\n",
    "a{0} b{1}{1}\n\n {0}ünïcödé 漢字 🙂\t{1} trailing ",
    "{0}def f(x):\n    return x ** 2  # {1}\r\n{0}",
)


class TokenizerError(ValueError):
    """The folder holds no usable tokenizer; the message says why."""


class PromptTokenizer:
    """One model's tokenizer. Safe to use from several threads at once."""

    def __init__(self, tokenizer_json: bytes, *, memo_bytes: int = DEFAULT_MEMO_BYTES) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
            declared: dict[str, Any] = json.loads(tokenizer_json)
        except Exception as error:
            raise TokenizerError(f"tokenizer.json is not usable: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.digest = tokenizer_digest(tokenizer_json)
        self.memo_bytes = memo_bytes
        self._memo: OrderedDict[str, bytes] = OrderedDict()
        self._memo_size = 0
        self._memo_lock = Lock()
        self._special = _hard_boundaries(declared)
        self._boundary: re.Pattern[str] | None = None
        if self._special:
            longest_first = sorted(self._special, key=len, reverse=True)
            self._boundary = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
            if not self._segments_are_independent():
                self._boundary = None

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Read `tokenizer.json` of a model's folder. Raises TokenizerError."""
        try:
            return cls((folder / "tokenizer.json").read_bytes())
        except OSError as error:
            raise TokenizerError(f"{folder / 'tokenizer.json'}: {error.strerror}") from error

    @property
    def segmented(self) -> bool:
        """Whether segments are tokenised one by one and remembered; proven on probes at load."""
        return self._boundary is not None

    @property
    def memo_size(self) -> int:
        """Bytes that the memo takes, about."""
        return self._memo_size

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """Token ids of a text, packed by `indexer.keys.token_bytes`."""
        if add_special_tokens or self._boundary is None:
            return self._tokenise(text, add_special_tokens=add_special_tokens)
        return b"".join([self._piece(piece) for piece in self._boundary.split(text) if piece])

    def new_characters(self, text: str) -> int:
        """How many characters of a chat's text have to be tokenised anew."""
        if self._boundary is None:
            return len(text)
        return sum(
            len(piece) for piece in self._boundary.split(text) if piece not in self._special and piece not in self._memo
        )

    def _piece(self, piece: str) -> bytes:
        special = self._special.get(piece)
        if special is not None:
            return special
        with self._memo_lock:
            ids = self._memo.get(piece)
            if ids is not None:
                self._memo.move_to_end(piece)
                return ids
        ids = self._tokenise(piece, add_special_tokens=False)
        self._remember(piece, ids)
        return ids

    def _tokenise(self, text: str, *, add_special_tokens: bool) -> bytes:
        # The batch call lets go of the interpreter's lock while it works; `encode` holds it, for seconds on long texts.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return token_bytes(encoding.ids)

    def _remember(self, piece: str, ids: bytes) -> None:
        size = ENTRY_BYTES + len(piece) + len(ids)
        if size > self.memo_bytes // 4:
            return
        with self._memo_lock:
            if piece in self._memo:
                return
            self._memo[piece] = ids
            self._memo_size += size
            while self._memo_size > self.memo_bytes:
                old_piece, old_ids = self._memo.popitem(last=False)
                self._memo_size -= ENTRY_BYTES + len(old_piece) + len(old_ids)

    def _segments_are_independent(self) -> bool:
        names = list(self._special)
        for probe in _PROBES:
            text = probe.format(names[0], names[-1])
            if self.encode(text) != token_bytes(self._tokenizer.encode(text, add_special_tokens=False).ids):
                return False
        self._memo.clear()
        self._memo_size = 0
        return True


def _hard_boundaries(declared: dict[str, Any]) -> dict[str, bytes]:
    """Added tokens and their packed ids, where every one of them is found in raw text wherever it stands.

    One that is searched in normalised text, only as a whole word, or together with surrounding blanks makes the split
    depend on more than the text between two of them: then there are none.
    """
    tokens = declared.get("added_tokens") or []
    if declared.get("normalizer") is not None:
        tokens = [token for token in tokens if not token.get("normalized")]
        if len(tokens) != len(declared.get("added_tokens") or []):
            return {}
    if any(token.get("single_word") or token.get("lstrip") or token.get("rstrip") for token in tokens):
        return {}
    return {token["content"]: token_bytes([token["id"]]) for token in tokens if token.get("content")}
