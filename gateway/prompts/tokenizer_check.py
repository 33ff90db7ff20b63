"""Which tokenizer.json files from workers are loaded: those whose sizes and patterns are those of models."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

MOST_TOKENS: Final = 2_000_000
"""Of a vocabulary, and of its merges; the largest known have 260,000 and 520,000."""
PATTERN_CHARACTERS: Final = 10_000
MOST_PATTERNS: Final = 64
MOST_REPEATS: Final = 4
"""Repetitions without an end within one branch of a pattern: what it goes back over grows with as high a power."""
_CLASS: Final = re.compile(r"\\[pP]\{\^?\w+\}")
_REPEATS: Final = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}


class RefusedTokenizerError(ValueError):
    """The message says what is refused."""


def check_tokenizer(contents: bytes) -> None:
    """Raises RefusedTokenizerError."""
    try:
        declared = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise RefusedTokenizerError(f"tokenizer.json is not JSON that is taken: {error!r:.200}") from error
    model = declared.get("model") if isinstance(declared, dict) else None
    if not isinstance(model, dict):
        raise RefusedTokenizerError("tokenizer.json has no model")
    for name in ("vocab", "merges"):
        entries = model.get(name)
        if isinstance(entries, dict | list) and len(entries) > MOST_TOKENS:
            raise RefusedTokenizerError(f"tokenizer.json has {len(entries)} entries in {name}: {MOST_TOKENS} are taken")
    patterns = list(_patterns({name: value for name, value in declared.items() if name != "model"}))
    if len(patterns) > MOST_PATTERNS:
        raise RefusedTokenizerError(f"tokenizer.json has {len(patterns)} patterns: {MOST_PATTERNS} are taken")
    for pattern in patterns:
        check_pattern(pattern)


def check_pattern(pattern: str) -> None:
    """Refuse patterns that go back over a text again and again: repetitions within repetitions, or many in a row.

    Raises RefusedTokenizerError.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise RefusedTokenizerError(f"a pattern has {len(pattern)} characters: {PATTERN_CHARACTERS} are taken")
    # Classes of Unicode's are one character, whatever they are called, and Python does not know them.
    plain = _CLASS.sub(r"\\w", pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = _parser.parse(plain)
    except (re.error, RecursionError, OverflowError) as error:
        raise RefusedTokenizerError(f"the pattern {pattern[:100]!r} is not taken: {error}") from error
    _repeats(parsed, pattern, within=False)


def _repeats(items: Any, pattern: str, *, within: bool) -> int:
    """Repetitions without an end that one way through a pattern has."""
    count = 0
    for operation, value in items:
        if operation in _REPEATS:
            least, most, inner = value
            endless = most is _constants.MAXREPEAT or most > PATTERN_CHARACTERS
            if within and least != most:
                raise RefusedTokenizerError(f"the pattern {pattern[:100]!r} has repetitions within repetitions")
            count += endless + _repeats(inner, pattern, within=within or most > 1)
        elif operation is _constants.BRANCH and within:
            raise RefusedTokenizerError(f"the pattern {pattern[:100]!r} has choices within repetitions")
        else:
            count += max((_repeats(each, pattern, within=within) for each in _inner(value)), default=0)
    if count > MOST_REPEATS:
        raise RefusedTokenizerError(f"the pattern {pattern[:100]!r} has more than {MOST_REPEATS} repetitions in a row")
    return count


def _inner(value: object) -> Iterator[Any]:
    """Patterns within an operation's argument."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            yield from _inner(each)


def _patterns(value: object, level: int = 0) -> Iterator[str]:
    """All patterns that are declared."""
    if level > MOST_PATTERNS:
        raise RefusedTokenizerError("tokenizer.json is nested too deeply")
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name == "Regex" and isinstance(each, str):
                yield each
            yield from _patterns(each, level + 1)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from _patterns(each, level + 1)
