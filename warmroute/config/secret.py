"""Text of the configuration that must not be shown: errors and reprs print stars in its place."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator


class Concealed(str):
    """A string whose repr, which errors print, gives nothing away."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class _Unfit:
    """Stands for a value of the wrong type in the error that refuses it."""

    def __repr__(self) -> str:
        return "'***'"


def conceal(value: object) -> object:
    """For a validator that comes before all others: they and their errors see what does not show itself."""
    # A password of digits alone is a number in YAML.
    if isinstance(value, str | int) and not isinstance(value, bool):
        return Concealed(value)
    return value if value is None else _Unfit()


Secret = Annotated[str | None, BeforeValidator(conceal)]
"""For a field without further validators: those would wrap this one, and show their input."""
