"""What is done to the parts: signals, limits of a running process (Linux), and the proxies' modes."""

from __future__ import annotations

import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.chaos.api_server import VARIABLE
from bench.chaos.cluster import Cluster
from bench.chaos.proxy import Mode

PARTS: Final = {
    "gateway": "gateway-1",
    "indexer": "indexer",
    "redis": "redis",
    "worker": "worker-1",
    "agent": "agent-1",
    "engine": "engine-1",
    "api-server": "api-server",
}
"""The process that each part's faults are done to. Of the agent it is the way to the indexer that is slow, swallows or
resets; of all others the way to them."""
KILL: Final = "kill"
FAULTS: Final = (
    KILL,
    "stop",
    "restart",
    "slow",
    "half-open",
    "reset",
    "full disk",
    "no descriptors",
    "no memory",
)
MEMORY_BYTES: Final = 1 << 20
"""Of address space beyond what a process has."""

_NO_DISK: Final = "writes nothing to a disk"
_STAND_IN: Final = "the bench's own stand-in, which writes nothing to a disk"
NO_API_SERVER: Final = f"etcd is missing, or {VARIABLE} does not name an API server"
LEFT_OUT: Final = {
    "api-server/full disk": "it writes nothing to a disk; its etcd does",
    "redis/full disk": f"the embedded server {_NO_DISK} (no snapshots, no append-only file)",
    "worker/full disk": _STAND_IN,
    "engine/full disk": _STAND_IN,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault of one part."""

    part: str
    fault: str

    @property
    def name(self) -> str:
        return f"{self.part}/{self.fault}"


CELLS: Final = tuple(cell for fault in FAULTS for part in PARTS if (cell := Cell(part, fault)).name not in LEFT_OUT)
"""The parts in turn: a worker that fails again before 20 good replies is ejected for twice as long."""


def left_out(*, api_server: bool) -> dict[str, str]:
    """Which cells are not done, and why, with an API server or without."""
    missing = {} if api_server else {cell.name: NO_API_SERVER for cell in CELLS if cell.part == "api-server"}
    return {**LEFT_OUT, **missing}


@asynccontextmanager
async def done(cluster: Cluster, cell: Cell) -> AsyncIterator[None]:
    """The fault lasts as long as the block, and has ended when this returns. A part that was killed is left ended."""
    name = PARTS[cell.part]
    match cell.fault:
        case "kill":
            await cluster.end(name, signal.SIGKILL)
            yield
        case "restart":
            await cluster.end(name, signal.SIGTERM)
            try:
                yield
            finally:
                cluster.start_again(name)
        case "stop":
            cluster.send(name, signal.SIGSTOP)
            try:
                yield
            finally:
                cluster.send(name, signal.SIGCONT)
        case "slow" | "half-open" | "reset":
            proxy = cluster.proxies[name]
            proxy.set(Mode(cell.fault))
            try:
                yield
            finally:
                proxy.set(Mode.PASS)
        case _:
            with _limited(cluster.parts[name].child.pid, cell.fault):
                yield


@contextmanager
def _limited(pid: int, fault: str) -> Iterator[None]:
    """The soft limit alone is lowered, so that it can be raised again; the process may end of it."""
    folder = Path(f"/proc/{pid}")
    match fault:
        case "full disk":  # a write fails with EFBIG instead of ENOSPC
            limit, soft = resource.RLIMIT_FSIZE, 0
        case "no descriptors":
            limit, soft = resource.RLIMIT_NOFILE, len(list((folder / "fd").iterdir()))
        case "no memory":
            pages = int((folder / "statm").read_text("ascii").split()[0])
            limit, soft = resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES
        case _:
            raise ValueError(f"no fault {fault}; there are: {', '.join(FAULTS)}")
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, limit, before)
