from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.support import plan
from warmroute.cli.stack import Stack, say_on_stderr


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Index, three workers, gateway."""
    with Stack(plan(3), say_on_stderr) as stack:
        yield stack
