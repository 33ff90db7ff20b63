"""Text to the engine's token ids, with a memo of earlier results.

A text is cut at its special tokens (`special_tokens`). The ids of the segments between them are remembered, and so are
whole beginnings of prompts (`prefix_memo`). So the next turn of a conversation costs only its new text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from gateway.prompts.bounded_memo import BoundedMemo
from gateway.prompts.encoders import Encoder, ReferenceEncoder, characters_per_second, fastest_encoder
from gateway.prompts.prefix_memo import Prefix, PrefixMemo, continue_chain
from gateway.prompts.special_tokens import SpecialTokens
from indexer.keys import TOKEN_BYTES, chain, tokenizer_digest

DEFAULT_MEMO_BYTES: Final = 33_554_432
"""For the segments' memo, and the same for the prefixes' memo."""
ENTRY_BYTES: Final = 250  # an entry's objects, without its text and ids

# The loop may tokenise for a millisecond: it must never stall for more than two.
INLINE_SECONDS: Final = 0.001
LEAST_INLINE_CHARACTERS: Final = 1_000
MOST_INLINE_CHARACTERS: Final = 32_000

_PROBES: Final = (
    "{0}user\nHello, world! 12345 times.{1}\n{0}assistant\n",
    "a{0} b{1}{1}\n\n {0}ünïcödé 漢字 🙂\t{1} trailing ",
    "{0}def f(x):\n    return x ** 2  # {1}\r\n{0}",
)
LEAST_PREFIX_CHARACTERS: Final = 1_000
"""Shorter beginnings are not remembered: looking up their few segments is as fast."""
MOST_PROBED_NAMES: Final = 300

_PLAIN_PROBES: Final = ("", "a", " plain text ", "\n漢字")


class TokenizerError(ValueError):
    """The folder has no usable tokenizer. The message says why."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """What is read from one tokenizer.json. Immutable."""

    reference: ReferenceEncoder
    encoder: Encoder
    special: SpecialTokens | None
    """None where segments are not independent of each other."""
    frame: tuple[bytes, bytes] | None
    """Packed ids of the special tokens before and after a text; None where they depend on the text."""
    inline_characters: int


class PreparedText:
    """One text, cut and looked up in the memos: the known ids, and the parts to tokenise."""

    def __init__(
        self,
        parts: list[str],
        found: list[bytes | None],
        encode_part: Callable[[str], bytes],
        *,
        special: SpecialTokens | None = None,
        memo: PrefixMemo | None = None,
        known: Prefix | None = None,
        frame: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """`parts`: the text after the `known` beginning; plain text at even places, special tokens at odd ones.
        `found`: the packed ids of each plain part, None where they are not known. `frame`: packed ids before and after
        the whole."""
        self._parts, self._found, self._encode_part = parts, found, encode_part
        self._special, self._memo, self._known, self._frame = special, memo, known, frame
        self._ids: bytes | None = None
        self._prefix = known
        self.new_characters = sum(len(part) for part, ids in zip(parts[::2], found, strict=True) if ids is None)
        """Characters that are not in the memo and must be tokenised."""

    def encode(self) -> bytes:
        """The text's token ids, packed by `indexer.keys.token_bytes`."""
        if self._ids is None:
            known = b"" if self._known is None else self._known.ids
            added, last = self._encode_parts()
            self._remember(added)
            self._ids = b"".join((self._frame[0], known, added, last, self._frame[1]))
        return self._ids

    def keys(self, seed: int, block_tokens: int) -> list[int]:
        """`indexer.keys.chain` of the ids under the root `seed`."""
        ids = self.encode()
        if self._prefix is None:
            return chain(ids, seed, block_tokens=block_tokens)
        return continue_chain(self._prefix.keys(seed, block_tokens, self._frame[0]), ids, seed, block_tokens)

    def _encode_parts(self) -> tuple[bytes, bytes]:
        """Packed ids up to the last special token, and those after it."""
        ids: list[bytes] = []
        fresh: dict[str, bytes] = {}
        parts, packed = self._parts, {} if self._special is None else self._special.packed
        for place, part_ids in enumerate(self._found):
            if part_ids is None:
                part = parts[2 * place]
                part_ids = fresh.get(part)
                if part_ids is None:
                    part_ids = fresh[part] = self._encode_part(part)
            if place:
                ids.append(packed[parts[2 * place - 1]])
            ids.append(part_ids)
        last = ids.pop()
        return b"".join(ids), last

    def _remember(self, added: bytes) -> None:
        if self._memo is None or len(self._parts) == 1:
            return
        text = "".join(self._parts[:-1])
        if self._known is not None:
            self._prefix = self._known.extend(text, added)
        elif len(text) < LEAST_PREFIX_CHARACTERS:
            return
        else:
            self._prefix = Prefix(text, added)
        self._memo.put(self._prefix, instead_of=self._known)


class PromptTokenizer:
    """One model's tokenizer. Safe to use from several threads at once."""

    def __init__(self, tokenizer_json: bytes, *, memo_bytes: int = DEFAULT_MEMO_BYTES) -> None:
        """Takes a second or two for a large vocabulary. Raises TokenizerError."""
        self._loaded = loaded = _load(tokenizer_json)
        self.digest = tokenizer_digest(tokenizer_json)
        self.memo_bytes = memo_bytes
        self.inline_characters: int = loaded.inline_characters
        """Characters that may be tokenised on an event loop: this encoder needs about INLINE_SECONDS for them."""
        self._segments: BoundedMemo[str, bytes] = BoundedMemo(memo_bytes, _segment_size)
        self._prefixes: PrefixMemo | None = None
        if loaded.special is not None and loaded.special.self_contained:
            self._prefixes = PrefixMemo(loaded.special, memo_bytes)

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Read `tokenizer.json` of a model's folder. Raises TokenizerError."""
        try:
            return cls((folder / "tokenizer.json").read_bytes())
        except OSError as error:
            raise TokenizerError(f"{folder / 'tokenizer.json'}: {error.strerror}") from error

    @property
    def encoder(self) -> str:
        """The library in use: "tokenizers" (the reference), "tiktoken" or "quicktok"."""
        return self._loaded.encoder.name

    def prepare(self, text: str, *, add_special_tokens: bool = False) -> PreparedText:
        """Cut a text and look it up in the memos. Nothing is tokenised yet.

        `add_special_tokens`: with the special tokens that the model puts around a text.
        """
        loaded = self._loaded
        special, frame = loaded.special, loaded.frame if add_special_tokens else (b"", b"")
        if special is None or frame is None:
            reference = partial(loaded.reference.encode, add_special_tokens=add_special_tokens)
            return PreparedText([text], [None], reference)
        known = None if self._prefixes is None else self._prefixes.find(text)
        parts = special.split(text if known is None else text[len(known.text) :])
        found = self._segments.get_all(parts[::2])
        return PreparedText(parts, found, self._segment, special=special, memo=self._prefixes, known=known, frame=frame)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """Token ids of a text, packed by `indexer.keys.token_bytes`."""
        return self.prepare(text, add_special_tokens=add_special_tokens).encode()

    def new_characters(self, text: str) -> int:
        """Characters of a text that are not in the memo and must be tokenised."""
        return self.prepare(text).new_characters

    def segments(self, text: str) -> list[tuple[str, int]]:
        """The text's segments and special tokens in order, each with its number of tokens."""
        special = self._loaded.special
        if special is None:
            return [(text, len(self.encode(text)) // TOKEN_BYTES)]
        counted = []
        for place, part in enumerate(special.split(text)):
            if part:
                counted.append((part, 1 if place % 2 else len(self._segment(part)) // TOKEN_BYTES))
        return counted

    def _segment(self, text: str) -> bytes:
        """Packed ids of a segment, from the memo or put into it."""
        ids = self._segments.get(text)
        if ids is None:
            ids = self._loaded.encoder.encode(text)
            self._segments.put(text, ids)
        return ids


def _segment_size(segment: str, ids: bytes) -> int:
    return ENTRY_BYTES + sys.getsizeof(segment) + len(ids)


# Pools with the same tokenizer share it. Two, since a new one is loaded while the old one is in use.
@lru_cache(maxsize=2)
def _load(tokenizer_json: bytes) -> LoadedTokenizer:
    """Read a tokenizer.json, check segments and libraries, and measure the speed. Raises TokenizerError."""
    try:
        return _read(tokenizer_json)
    except Exception as error:  # the library raises many kinds; an unexpected shape raises KeyError or TypeError
        raise TokenizerError(f"tokenizer.json is not usable: {error!r}") from error


def _read(tokenizer_json: bytes) -> LoadedTokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
    declared: dict[str, Any] = json.loads(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    reference = ReferenceEncoder(tokenizer)
    encoder = fastest_encoder(declared, reference)
    special = SpecialTokens.of(declared)
    if special is not None and not _segments_are_independent(reference, encoder, special):
        special = None
    speed = characters_per_second(encoder if special is not None else reference)
    inline = min(max(int(speed * INLINE_SECONDS), LEAST_INLINE_CHARACTERS), MOST_INLINE_CHARACTERS)
    return LoadedTokenizer(reference, encoder, special, _frame(reference), inline)


def _segments_are_independent(reference: ReferenceEncoder, encoder: Encoder, special: SpecialTokens) -> bool:
    names = list(special.packed)
    probes = [probe.format(names[0], names[-1]) for probe in _PROBES]
    probes.append("".join(f"word{name}  {name}\n{name}\n\n" for name in names[:MOST_PROBED_NAMES]))
    for text in probes:
        ids = [
            special.packed[part] if place % 2 else encoder.encode(part)
            for place, part in enumerate(special.split(text))
        ]
        if b"".join(ids) != reference.encode(text):
            return False
    return True


def _frame(reference: ReferenceEncoder) -> tuple[bytes, bytes] | None:
    """Packed ids that `add_special_tokens` puts before and after a text; None where they depend on the text."""
    plain, framed = reference.encode("a"), reference.encode("a", add_special_tokens=True)
    place = framed.find(plain)
    if place < 0 or not plain:
        return None
    before, after = framed[:place], framed[place + len(plain) :]
    for text in _PLAIN_PROBES:
        if reference.encode(text, add_special_tokens=True) != before + reference.encode(text) + after:
            return None
    return before, after
