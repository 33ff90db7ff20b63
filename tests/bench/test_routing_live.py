"""The live bench of routing runs, says what it promises, and leaves no process behind."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from tests.bench.support import none_left, started

PROMISED = {
    "hot_tenant.hit",
    "hot_tenant.ttft_mean_over_least_requests",
    "hot_tenant.ttft_p90_over_least_requests",
    "hot_tenant.peer.ttft_mean_ms",
    "hot_tenant.endless_hit",
    "decision_100_workers_us",
    "decision_2000_workers_us",
    "engines_late_ms",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_run_ends_with_one_json_object() -> None:
    """The peer is a proxy that sends everything to the first engine."""
    proxy = f"{shlex.quote(sys.executable)} -m bench.relay.aiohttp_proxy"
    peer = f"set -- {{workers}}; exec {proxy} {{port}} ${{1##*:}}"
    policies = ("--policies", "warm,least_requests")
    flags = ("--quick", "--seed", "7", "--only", "hot_tenant", *policies, "--peer", peer)
    with started("-m", "bench.routing_live", *flags) as process:
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures.keys() >= PROMISED
    assert (figures["bench"], figures["seed"], figures["quick"]) == ("routing_live", 7, True)
    assert figures["hot_tenant.warm.failed"] == figures["hot_tenant.least_requests.failed"] == 0
    # Cached tokens are the engines' own count: keys that differ from theirs would find nothing.
    assert 0.5 < figures["hot_tenant.hit"] <= figures["hot_tenant.endless_hit"]
    assert not any("mismatch" in name for name in figures)
    # One engine got it all: three times the mean.
    assert figures["hot_tenant.peer.imbalance"] == 3
    assert figures["goals"] == {}  # of small sizes none is judged
    assert none_left(process.pid)


def test_an_unknown_policy_is_refused() -> None:
    with started("-m", "bench.routing_live", "--policies", "warm,colder") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "no policy colder" in err
