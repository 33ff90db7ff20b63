"""Panics of Rust extensions (tokenizers, tiktoken, minijinja), turned into exceptions.

pyo3 raises them as a BaseException of a class that cannot be imported, so that they pass every `except Exception` and
end the task, the thread or the process that called.
"""

from __future__ import annotations


class PanicError(RuntimeError):
    """A Rust extension has given up on what it was given."""


def is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)
