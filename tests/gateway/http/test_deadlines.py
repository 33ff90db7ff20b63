from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.http.deadlines import NEVER, DeadlineWatcher
from tests.gateway.http.support import run
from tests.support import eventually


@dataclass(eq=False)
class Member:
    watch: DeadlineWatcher[Member]
    deadline: float = NEVER
    fails: bool = False
    expired: int = field(default=0)

    def expire(self) -> None:
        self.expired += 1
        self.deadline = NEVER
        if self.fails:
            raise ZeroDivisionError
        self.watch.discard(self)


def test_members_expire_and_one_that_fails_stops_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        watch: DeadlineWatcher[Member] = DeadlineWatcher(0.01)
        failing = Member(watch, loop.time(), fails=True)
        soon = Member(watch, loop.time() + 0.05)
        never = Member(watch)
        for member in (failing, soon, never):
            watch.add(member)
        await eventually(lambda: soon.expired)
        assert (failing.expired, soon.expired, never.expired) == (1, 1, 0)
        assert len(complaints) == 1
        assert set(watch) == {failing, never}
        assert not await watch.emptied(0.01)
        watch.discard(failing)
        watch.discard(never)
        watch.discard(never)
        assert await watch.emptied(0.01)
        assert watch._timer is None

    run(main())
