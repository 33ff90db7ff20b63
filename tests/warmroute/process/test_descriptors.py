"""The limit of open files is raised as far as the system allows; in a process of its own, since it can't be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from warmroute.process.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "expected"), [(128, 512, 512), (256, 256, 256)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, expected: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(soft), str(hard)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(expected), str(expected)]
