"""Plain text to packed token ids: the reference, and faster tokenizer libraries that give the same ids.

The reference is Hugging Face `tokenizers`, which engines use. A faster library is used where `byte_level` proves that
it gives the same ids, and where it gave them at load for texts of many scripts and shapes (`probe_texts`). Texts that
are not proven go to the reference (`ProvenText`): those with a few rare characters.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import tiktoken
from tokenizers import Tokenizer

from gateway.prompts import quick_encoder
from gateway.prompts.byte_level import MISSING_BYTE_ID, ByteLevelBpe, NotRebuildableError, rebuild
from gateway.prompts.probe_texts import CALIBRATION_TEXT, probe_texts
from gateway.prompts.proven_text import ProvenText
from indexer.keys import token_bytes
from warmroute.process.native import PanicError, is_panic

logger = logging.getLogger(__name__)

# The upper three bytes of the ids that stand for bytes the vocabulary lacks.
_MISSING_BYTE_MARK: Final = MISSING_BYTE_ID.to_bytes(4, "little")[1:]
_CALIBRATION_ROUNDS: Final = 3


class Encoder(Protocol):
    """Tokenises text that holds no special token. Safe to use from several threads at once."""

    name: str

    def encode(self, text: str) -> bytes:
        """Token ids, packed by `indexer.keys.token_bytes`."""


class ReferenceEncoder:
    """Hugging Face `tokenizers`."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """As `Encoder.encode`, for texts with special tokens too. Raises PanicError where the library panics: its regex
        engine does so where a pattern backtracks too often."""
        try:
            # The batch call releases the GIL while it works; `encode` holds it, for seconds on long texts.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except BaseException as error:
            if is_panic(error):
                raise PanicError(f"tokenizers gave up: {error}") from error
            raise
        return token_bytes(encoding.ids)


class RankEncoder:
    """A library that joins tokens by rank, with the reference for texts that are not proven."""

    def __init__(
        self, name: str, engine: Callable[[str], list[int]], reference: ReferenceEncoder, *, bpe: ByteLevelBpe
    ) -> None:
        self.name = name
        self._engine = engine
        self._reference = reference
        self._proven = ProvenText(nfc=bpe.nfc)
        self._complete = bpe.complete

    def encode(self, text: str) -> bytes:
        if not self._proven.covers(text):
            return self._reference.encode(text)
        try:
            ids = token_bytes(self._engine(text))
        except BaseException as error:
            if is_panic(error):
                return self._reference.encode(text)
            raise
        if not self._complete and _MISSING_BYTE_MARK in ids:
            return self._reference.encode(text)
        return ids


def fastest_encoder(declared: Mapping[str, Any], reference: ReferenceEncoder) -> Encoder:
    """The fastest installed library that is proven to give the reference's ids; else the reference.

    `declared` is the parsed tokenizer.json. Takes about a second for 150,000 tokens.
    """
    try:
        bpe = rebuild(declared)
    except NotRebuildableError as error:
        logger.info("prompts are tokenised by the reference alone: %s", error)
        return reference
    probes = [(text, reference.encode(text)) for text in probe_texts(bpe.ranks)]
    for name, build in (("quicktok", quick_encoder.build), ("tiktoken", _tiktoken)):
        engine = build(bpe, declared)
        if engine is None:
            continue
        encoder = RankEncoder(name, engine, reference, bpe=bpe)
        different = next((text for text, ids in probes if encoder.encode(text) != ids), None)
        if different is None:
            return encoder
        logger.warning("%s gives other ids than the reference, for %.40r: not used", name, different)
    return reference


def characters_per_second(encoder: Encoder) -> float:
    """The best of a few short measurements, since other load on the machine makes single ones too slow."""
    encoder.encode(CALIBRATION_TEXT)
    seconds = []
    for _ in range(_CALIBRATION_ROUNDS):
        started_at = time.perf_counter()
        encoder.encode(CALIBRATION_TEXT)
        seconds.append(time.perf_counter() - started_at)
    return len(CALIBRATION_TEXT) / max(min(seconds), 1e-9)


def _tiktoken(bpe: ByteLevelBpe, declared: Mapping[str, Any]) -> Callable[[str], list[int]] | None:
    # tiktoken raises ValueError for a pattern that it cannot compile.
    with contextlib.suppress(ValueError):
        encoding = tiktoken.Encoding("prompts", pat_str=bpe.pattern, mergeable_ranks=dict(bpe.ranks), special_tokens={})
        return encoding.encode_ordinary
    return None
