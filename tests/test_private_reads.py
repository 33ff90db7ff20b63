"""What tests know of a thing's inside binds it: private reads in the tests may only become fewer.

A read is `thing._name` of anything but `self`, `cls` and `super()`. Named tuples' methods and `os._exit` are public.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}

ALLOWED = {
    "chaos/cluster.py": 2,
    "chaos/fleet.py": 2,
    "chaos/test_gateways.py": 11,
    "deploy/test_dashboard.py": 7,  # of prometheus_client
    "gateway/discovery/test_health.py": 1,
    "gateway/discovery/test_load_reports.py": 3,
    "gateway/discovery/test_peer_channel.py": 2,
    "gateway/http/test_connection_deadlines.py": 1,
    "gateway/http/test_deadlines.py": 1,
    "gateway/http/test_log_writer.py": 1,
    "gateway/process/test_gateway_approximate.py": 1,
    "gateway/prompts/test_encoders.py": 1,
    "gateway/prompts/test_pool_prompts.py": 3,
    "gateway/prompts/test_tokenizer.py": 1,
    "gateway/routing/census/test_workers.py": 1,
    "gateway/routing/state/test_peer_sync_network.py": 1,
    "gateway/tenants/test_limiter.py": 3,
    "indexer/reader/test_mirror.py": 2,
    "indexer/reader/test_part_follower.py": 1,
    "indexer/server/test_file_store.py": 3,
    "indexer/server/test_file_transfers.py": 3,
    "indexer/server/test_ledger_check_server.py": 1,
    "indexer/server/test_service.py": 2,
    "indexer/server/test_service_faults.py": 9,
    "indexer/server/test_service_hidden_changes.py": 3,
    "indexer/server/test_service_stream_ends.py": 2,
    "indexer/support.py": 2,
    "metric_owners.py": 1,  # of prometheus_client
    "warmroute/cli/test_index.py": 1,  # of asyncio
    "warmroute/process/test_cached_labels.py": 2,
    "warmroute/redis/test_client.py": 1,  # of redis-py
    "worker/adapters/test_engine_metrics.py": 1,
    "worker/adapters/test_feed.py": 4,
    "worker/adapters/test_translate.py": 3,
    "worker/engine/support.py": 1,
    "worker/engine/test_server.py": 3,
    "worker/publish/test_index_blocks.py": 2,
    "worker/publish/test_state.py": 1,
    "worker/test_model_cache.py": 3,
}
"""How many reads a file may have. Take a line away, or lower it, with its reads; raise none."""


def is_own(node: ast.expr) -> bool:
    """Whether it is the object or class that reads, or what it inherits."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def private_reads(source: str) -> list[str]:
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in PUBLIC
        and not is_own(node.value)
    ]


def test_private_reads_become_fewer() -> None:
    found = {path.relative_to(TESTS).as_posix(): private_reads(path.read_text()) for path in TESTS.rglob("*.py")}
    more = {name: reads for name, reads in found.items() if len(reads) > ALLOWED.get(name, 0)}
    assert more == {}, "ask a public question: an answer, a metric, an event"
    fewer = {name: len(found.get(name, ())) for name, most in ALLOWED.items() if len(found.get(name, ())) < most}
    assert fewer == {}, "lower the numbers of these files in ALLOWED"


def test_reads_are_counted() -> None:
    text = "thing._a\nself._b\ncls._c\nsuper()._d()\nthing.x()._e\nself.thing._f = 1\nrow._replace(a=1)\nx.__dict__\n"
    assert [read.rpartition(".")[2] for read in private_reads(text)] == ["_a", "_e", "_f"]
