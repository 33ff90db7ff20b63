"""The processes of a run: ours over pipes, Redis and the indexer as they are deployed. All end with this one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from warmroute.cli.children import PARENT_VARIABLE, end_with_parent

CALL_SECONDS: Final = 300.0
END_SECONDS: Final = 5.0
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})

P = ParamSpec("P")
R = TypeVar("R")
Open = Callable[..., AbstractAsyncContextManager[object]]
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class ProcessDiedError(RuntimeError):
    """A process of the bench ended before its work was done; its traceback is on stderr."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads; Linux, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """What all processes of this machine have used so far, the bench's among them; Linux."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Process:
    """An object in a process of its own: `call` runs one of its coroutine methods there."""

    def __init__(self, name: str, open_object: Open, new_loop: NewLoop, *arguments: object) -> None:
        """`open_object(*arguments)` is a context manager that gives the object; it runs on a loop of `new_loop`."""
        self.name = name
        # Two pipes: the child's loop watches the one, which makes it non-blocking, and replies block on the other.
        requests, self._requests = multiprocessing.Pipe(duplex=False)
        self._replies, replies = multiprocessing.Pipe(duplex=False)
        self._process = _context().Process(
            target=_serve, args=(open_object, new_loop, arguments, requests, replies), name=name, daemon=True
        )
        with _signals_wait():
            self._process.start()
        requests.close()
        replies.close()
        self._answer()  # the object is there

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def call(self, method: str, *arguments: object) -> Any:
        """Raises ProcessDiedError, TimeoutError."""
        self._requests.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        if not self._replies.poll(CALL_SECONDS):
            raise TimeoutError(f"the process {self.name} did not answer within {CALL_SECONDS:.0f} s")
        try:
            return self._replies.recv()
        except EOFError:
            raise ProcessDiedError(f"the process {self.name} died") from None

    def close(self) -> None:
        self._requests.close()
        self._replies.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    open_object: Open, new_loop: NewLoop, arguments: tuple[object, ...], requests: Connection, replies: Connection
) -> None:
    _belong_to_parent()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_answer_calls(open_object, arguments, requests, replies))


async def _answer_calls(
    open_object: Open, arguments: tuple[object, ...], requests: Connection, replies: Connection
) -> None:
    """Run calls one after another until the parent closes its end; a call that fails ends the process."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[str, tuple[object, ...]]] = asyncio.Queue()
    ended = loop.create_future()

    def received() -> None:
        try:
            waiting.put_nowait(requests.recv())
        except (EOFError, OSError):
            loop.remove_reader(requests.fileno())
            ended.set_result(None)

    async def answer() -> None:
        while True:
            method, arguments = await waiting.get()
            call: Callable[..., Coroutine[Any, Any, object]] = getattr(opened, method)
            replies.send(await call(*arguments))

    loop.add_reader(requests.fileno(), received)
    async with open_object(*arguments) as opened:
        replies.send(None)
        answering = loop.create_task(answer())
        await asyncio.wait([answering, ended], return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


def in_fresh_process(function: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
    """Run a function in a process that has done nothing before."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = _context().Process(target=_run_once, args=(function, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(CALL_SECONDS):
            raise TimeoutError(f"{function.__name__} took longer than {CALL_SECONDS:.0f} s")
        result: R = ours.recv()
    except EOFError:
        raise ProcessDiedError(f"the process of {function.__name__} died") from None
    finally:
        process.kill()
        process.join()
    return result


def _run_once(function: Callable[..., object], arguments: tuple[object, ...], pipe: Connection) -> None:
    _belong_to_parent()
    pipe.send(function(*arguments))


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Within this, Ctrl-C and SIGTERM wait: they would leave a starting process with half of what it is to read."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def _belong_to_parent() -> None:
    """Ctrl-C is for the parent, which then ends this process; and it ends when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _context() -> SpawnContext:
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    return multiprocessing.get_context("spawn")
