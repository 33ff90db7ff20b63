"""How many file descriptors this process may have: raised as far as the system lets it, at the start."""

from __future__ import annotations

import resource
from typing import Final

WANTED: Final = 1_048_576
"""More than a process can use; some kernels refuse a limit without a number."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns what it is then, at most WANTED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # the system refuses what it offers: go on with what there is
    return WANTED if soft == resource.RLIM_INFINITY else min(soft, WANTED)
