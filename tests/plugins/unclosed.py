"""What a test leaves open fails the test, but only after the step that was at work.

Python warns of a socket or transport that nobody closed where it is destroyed. In a loop that is just closing (uvloop
destroys its handles there) an exception would break off the closing, and what is left then runs for ever. So a
ResourceWarning is never raised: it is kept, and fails the set-up, call or teardown in which it came once that is over.
"""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest

T = TypeVar("T")


class LeftOpenError(AssertionError):
    """Something was destroyed that nobody had closed: what this test left, or one before it that failed (its traceback
    held on to it)."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "always::ResourceWarning")  # after, hence over, those of pyproject.toml


def _described(warning: warnings.WarningMessage) -> str:
    """With where it was made, if PYTHONTRACEMALLOC is set to a number of frames."""
    if not tracemalloc.is_tracing():
        return str(warning.message)
    made = tracemalloc.get_object_traceback(warning.source)
    return "\n".join([str(warning.message), *(made.format() if made else ())])


def _checked() -> Generator[None, T, T]:
    failure: BaseException | None = None
    with warnings.catch_warnings(record=True) as seen:
        try:
            result = yield
        except BaseException as error:  # noqa: BLE001  raised again below
            failure = error
    left_open = [_described(warning) for warning in seen if issubclass(warning.category, ResourceWarning)]
    for warning in seen:
        if not issubclass(warning.category, ResourceWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if failure is not None:
        for text in left_open:
            failure.add_note(f"left open: {text}")
        raise failure
    if left_open:
        raise LeftOpenError("left open, by this test or by one before it that failed: " + "; ".join(left_open))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _checked())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _checked())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    return (yield from _checked())


@pytest.fixture(scope="session", autouse=True)
def _last_look() -> Iterator[None]:
    """What is still in cycles when all tests have run is destroyed within the last teardown, and fails it."""
    yield
    gc.collect()
