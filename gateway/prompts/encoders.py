"""Plain text to packed token ids: the reference, and faster engines that give the same ids.

The reference is Hugging Face `tokenizers`, as engines use it. A faster one is chosen where `byte_level` proves that it
gives the same ids, and where it gave them at load for texts of many scripts and shapes (`probe_texts`). Texts outside
of what is proven, a few characters in a million, go to the reference each time (`ProvenText`).
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
        """As `Encoder.encode`; special tokens in the text become theirs. Raises PanicError where the library gives up,
        on a pattern that goes back too often."""
        try:
            # The batch call lets go of the interpreter's lock while it works; `encode` holds it, for seconds on long
            # texts.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except BaseException as error:
            if is_panic(error):
                raise PanicError(f"tokenizers gave up: {error}") from error
            raise
        return token_bytes(encoding.ids)


class RankEncoder:
    """An engine that joins tokens by rank, with the reference for the texts that it is not proven for."""

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
    """The fastest engine installed that gives the reference's ids; the reference where none is proven to.

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
    """The best of a few short measurements: what else the machine does must not make an encoder look slow."""
    encoder.encode(CALIBRATION_TEXT)
    seconds = []
    for _ in range(_CALIBRATION_ROUNDS):
        started_at = time.perf_counter()
        encoder.encode(CALIBRATION_TEXT)
        seconds.append(time.perf_counter() - started_at)
    return len(CALIBRATION_TEXT) / max(min(seconds), 1e-9)


def _tiktoken(bpe: ByteLevelBpe, declared: Mapping[str, Any]) -> Callable[[str], list[int]] | None:
    # ValueError is what tiktoken makes of a pattern that its engine does not compile.
    with contextlib.suppress(ValueError):
        encoding = tiktoken.Encoding("prompts", pat_str=bpe.pattern, mergeable_ranks=dict(bpe.ranks), special_tokens={})
        return encoding.encode_ordinary
    return None
