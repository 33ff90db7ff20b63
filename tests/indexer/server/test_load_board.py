"""The table of loads: whose report stands, and what gateways are told."""

from __future__ import annotations

from indexer.server.load_board import LoadTable
from warmroute.v1 import index_pb2 as pb

W = ("pool", "w")


def load(tokens: int) -> pb.Load:
    return pb.Load(waiting_tokens=tokens)


def test_the_end_of_an_old_stream_takes_nothing_from_the_new_one() -> None:
    table, old, new = LoadTable(), object(), object()
    with table.subscribe(frozenset()) as gateway:
        table.update(W, load(1), old, now=0.0)
        table.update(W, load(2), new, now=1.0)
        table.remove(W, old)
        told = table.take(gateway, now=1.5)
        assert [(item.worker_id, item.load.waiting_tokens, item.age_ms) for item in told.loads] == [("w", 2, 500)]
        assert not told.gone
        table.remove(W, new)
        assert [worker.worker_id for worker in table.take(gateway, now=2.0).gone] == ["w"]
        table.remove(W, new)
        assert not table.take(gateway, now=2.0).gone


def test_a_gateway_is_told_everything_first_then_changes_of_its_pools() -> None:
    table, stream = LoadTable(), object()
    table.update(W, load(1), stream, now=0.0)
    table.update(("other", "x"), load(2), stream, now=0.0)
    with table.subscribe(frozenset({"pool"})) as mine, table.subscribe(frozenset()) as all_pools:
        assert [item.worker_id for item in table.take(mine, now=0.0).loads] == ["w"]
        assert len(table.take(all_pools, now=0.0).loads) == 2
        assert not table.take(mine, now=0.0).loads
        table.update(("other", "x"), load(3), stream, now=1.0)
        assert not table.take(mine, now=1.0).loads
        assert not mine.wake.is_set()
        assert all_pools.wake.is_set()
    table.update(W, load(4), stream, now=2.0)  # nobody is left who would be told
    assert not mine.changed
    assert all_pools.changed == {("other", "x")}
