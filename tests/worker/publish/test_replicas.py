"""Which replica comes next: all before one that did not work comes again."""

from __future__ import annotations

import asyncio

import pytest

from worker.publish.replicas import Replica, Replicas, UnresolvedError

NAMES = ("127.0.0.1:1", "127.0.0.1:2", "[::1]:3")


async def chosen(replicas: Replicas, times: int, *, shun: bool) -> list[Replica]:
    found = []
    for _ in range(times):
        found.append(await replicas.choose())
        if shun:
            replicas.shun(found[-1])
    return found


def test_all_replicas_are_tried_before_one_comes_again() -> None:
    replicas = Replicas(NAMES)
    for _ in range(20):
        addresses = [replica.address for replica in asyncio.run(chosen(replicas, 3, shun=True))]
        assert sorted(addresses) == sorted(NAMES)


def test_choices_spread_over_all() -> None:
    addresses = {replica.address for replica in asyncio.run(chosen(Replicas(NAMES), 100, shun=False))}
    assert addresses == set(NAMES)


def test_one_that_works_forgives_the_others() -> None:
    replicas = Replicas(NAMES[:2])
    replicas.shun(Replica(NAMES[0], NAMES[0]))
    assert {replica.address for replica in asyncio.run(chosen(replicas, 50, shun=False))} == {NAMES[1]}
    replicas.forgive()
    assert {replica.address for replica in asyncio.run(chosen(replicas, 50, shun=False))} == set(NAMES[:2])


def test_a_name_that_does_not_resolve_is_passed_over_while_another_does() -> None:
    replicas = Replicas(("name.invalid:50051", "localhost:7"))
    (replica,) = asyncio.run(chosen(replicas, 1, shun=False))
    assert replica.name == "localhost:7"
    with pytest.raises(UnresolvedError, match=r"name\.invalid:50051 does not resolve"):
        asyncio.run(Replicas(("name.invalid:50051",)).choose())
