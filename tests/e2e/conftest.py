from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.support import SharedStack
from warmroute.cli.stack import Stack


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[SharedStack]:
    with SharedStack() as shared:
        yield shared


@pytest.fixture
def stack(shared_stack: SharedStack) -> Stack:
    """Index, three workers, gateway. A test may kill of it what it likes."""
    return shared_stack.whole()
