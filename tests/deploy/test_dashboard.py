"""The dashboard and the alert rules: current, understood by Prometheus, true with replicas, of metrics that exist.

True with replicas: two gateways that see the same three workers are three workers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.metric_owners import metric_owners

ENGINE_LABELS = {"model_name"}
ENGINE_METRICS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
}
"""What vLLM and the built-in engine both expose."""
SCRAPE_LABELS = {"namespace", "pod", "pool"}
"""What the chart's PodMonitors add."""

Promtool = Callable[..., subprocess.CompletedProcess[str]]


def declared() -> dict[str, set[str]]:
    """Every series name that the product can expose, with its labels."""
    collectors = [collector for owner in metric_owners() for collector in vars(owner(CollectorRegistry())).values()]
    series = dict.fromkeys(ENGINE_METRICS, ENGINE_LABELS | {"le"})
    for collector in collectors:
        labels = set(collector._labelnames)
        match collector._type:
            case "counter":
                series[collector._name + "_total"] = labels
            case "histogram":
                series[collector._name + "_bucket"] = labels | {"le"}
                series[collector._name + "_sum"] = series[collector._name + "_count"] = labels
            case _:
                series[collector._name] = labels
    return series


def substituted(expression: str) -> str:
    """The expression with Grafana's variables as `All` sets them."""
    for variable, value in (("$__rate_interval", "5m"), ("$namespace", ".*"), ("$pool", ".*")):
        expression = expression.replace(variable, value)
    return expression


def panels(dashboard: dict[str, Any]) -> dict[str, list[str]]:
    """Expressions by panel title."""
    queried = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in queried}) == len(queried), "titles name panels here and must differ"
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in queried}


def rules(root: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load((root / "deploy/prometheus/alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def dashboard(root: Path) -> dict[str, Any]:
    return json.loads((root / "deploy/grafana/warmroute.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expressions(dashboard: dict[str, Any], root: Path) -> list[str]:
    found = [expression for queries in panels(dashboard).values() for expression in queries]
    return [substituted(expression) for expression in found] + [rule["expr"] for rule in rules(root)]


def nodes(expression: Any) -> Iterator[Any]:
    """The nodes of a PromQL tree."""
    yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(expression, name, None)
        if child is not None:
            yield from nodes(child)
    for child in getattr(expression, "args", ()):
        yield from nodes(child)


def test_the_file_is_what_the_script_builds(root: Path) -> None:
    script = root / "deploy/grafana/build.py"
    result = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_queried_metric_exists_with_the_labels_used(expressions: list[str]) -> None:
    known = declared()
    queried = set()
    for text in expressions:
        tree = list(nodes(promql_parser.parse(text)))
        selectors = [node for node in tree if isinstance(node, promql_parser.VectorSelector)]
        assert len(selectors) == len(re.findall(r"\b(?:warmroute_|vllm:)\w+", text)), (
            f"a selector was not seen in {text}"
        )
        available = set(SCRAPE_LABELS)
        for selector in selectors:
            assert selector.name in known, f"{selector.name} is declared nowhere"
            queried.add(selector.name)
            labels = known[selector.name] | SCRAPE_LABELS
            available |= known[selector.name]
            assert {matcher.name for matcher in selector.matchers.matchers} <= labels, text
        for node in tree:
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                assert set(node.modifier.labels) <= available, text
    assert len(queried) > 30


def test_legends_use_labels_that_survive_the_query(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = {"pod"} if " by (" not in target["expr"] else set()
            for grouping in re.findall(r"by \(([^)]*)\)", target["expr"]):
                kept |= {label.strip() for label in grouping.split(",")}
            assert wanted <= kept, target


def test_variables_are_about_metrics_that_exist(dashboard: dict[str, Any]) -> None:
    known = declared()
    queries = [entry["definition"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    assert queries
    for query in queries:
        name = re.match(r"label_values\((\w+)", query)
        assert name is not None
        assert name[1] in known


def test_panels_lie_in_the_grid_without_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_prometheus_reads_every_expression(
    expressions: list[str], promtool: Promtool, tmp_path: Path, root: Path
) -> None:
    path = tmp_path / "rules.yaml"
    recorded = [{"record": f"expression:{number}", "expr": text} for number, text in enumerate(expressions)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    for file in (path, root / "deploy/prometheus/alerts.yaml"):
        result = promtool("check", "rules", str(file))
        assert result.returncode == 0, result.stdout + result.stderr


def scraped(pod: str, name: str, values: str, **labels: str) -> dict[str, str]:
    all_labels = {"namespace": "llm", "pod": pod, "pool": "main", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in all_labels.items())
    return {"series": f"{name}{{{text}}}", "values": values}


GATEWAYS = ("gateway-a", "gateway-b")
SERIES = [
    entry
    for pod in GATEWAYS
    for entry in (
        # Seen by every gateway.
        scraped(pod, "warmroute_gateway_workers", "3+0x20", state="ready"),
        scraped(pod, "warmroute_gateway_late_workers", "1+0x20"),
        scraped(pod, "warmroute_gateway_unjoined_workers", "2+0x20"),
        scraped(pod, "warmroute_gateway_unreported_workers", "1+0x20"),
        scraped(pod, "warmroute_mirror_keys", "5000+0x20", tier="device"),
        scraped(pod, "warmroute_mirror_connected", "1+0x20" if pod == "gateway-a" else "0+0x20"),
        scraped(pod, "warmroute_gateway_flight_shared", "1+0x20" if pod == "gateway-a" else "0+0x20"),
        scraped(pod, "warmroute_gateway_flight_gateways", "1+0x20" if pod == "gateway-a" else "0+0x20"),
        scraped(pod, "warmroute_gateway_approximate_workers", "1+0x20"),
        scraped(pod, "warmroute_gateway_rated_workers", "3+0x20" if pod == "gateway-a" else "2+0x20"),
        scraped(pod, "warmroute_mirror_lag_seconds", "0.5+0x20" if pod == "gateway-a" else "4+0x20"),
        scraped(pod, "warmroute_mirror_log_entries_total", "0+600x20"),
        scraped(pod, "warmroute_mirror_refused_keys", "70+0x20" if pod == "gateway-a" else "0+0x20"),
        scraped(pod, "warmroute_mirror_host_indexed", "0+0x20" if pod == "gateway-a" else "1+0x20"),
        # Each gateway's own. 60 a minute is one a second.
        scraped(pod, "warmroute_gateway_requests_total", "0+60x20", code="200"),
        scraped(pod, "warmroute_gateway_requests_total", "0+20x20", code="502"),
        scraped(pod, "warmroute_gateway_load_only_total", "0+8x20", reason="budget"),
        scraped(pod, "warmroute_gateway_prompt_tokens_total", "0+6000x20"),
        scraped(pod, "warmroute_gateway_keyed_tokens_total", "0+6000x20"),
        scraped(pod, "warmroute_gateway_matched_tokens_total", "0+4800x20"),
        scraped(pod, "warmroute_gateway_cached_tokens_total", "0+2400x20"),
        scraped(pod, "warmroute_gateway_session_requests_total", "0+60x20", outcome="stayed"),
        scraped(pod, "warmroute_gateway_flight_received_total", "0+60x20", outcome="applied"),
        scraped(pod, "warmroute_gateway_in_flight_requests", "2+0x20", worker="w1"),
        scraped(pod, "warmroute_gateway_pending_tokens", "100+0x20", worker="w1"),
        scraped(pod, "warmroute_gateway_first_byte_seconds_bucket", "0+30x20", le="0.1"),
        scraped(pod, "warmroute_gateway_first_byte_seconds_bucket", "0+60x20", le="0.2"),
        scraped(pod, "warmroute_gateway_first_byte_seconds_bucket", "0+60x20", le="+Inf"),
    )
]
# Each indexer's and each worker's own.
SERIES += [scraped("indexer-a", "warmroute_indexer_ledger_up", "1+0x20")]
SERIES += [scraped("indexer-b", "warmroute_indexer_ledger_up", "0+0x20")]
SERIES += [scraped("indexer-a", "warmroute_indexer_refusals_total", "0+60x20", reason="aborted")]
SERIES += [scraped("indexer-b", "warmroute_indexer_refusals_total", "0+60x20", reason="aborted")]
SERIES += [scraped(f"worker-{n}", "warmroute_worker_unpublished_seconds", f"{20 * n}+0x20") for n in (1, 2, 3)]
AGENTS = [
    entry
    for n in (1, 2, 3)
    for entry in (
        scraped(f"worker-{n}", "warmroute_agent_approximate", f"{int(n == 1)}+0x40"),
        scraped(f"worker-{n}", "warmroute_agent_engine_up", f"{int(n != 2)}+0x40"),
        scraped(f"worker-{n}", "warmroute_agent_events_total", "0+600x40", rank="0", what="batches"),
        scraped(f"worker-{n}", "warmroute_agent_events_total", f"0+{60 * (n != 3)}x40", rank="1", what="lost"),
        scraped(
            f"worker-{n}", "warmroute_agent_ignored_blocks_total", f"0+{60 * (n == 3)}x40", reason="size", rank="0"
        ),
        scraped(f"worker-{n}", "warmroute_worker_orphaned_blocks_total", f"0+{120 * (n == 2)}x40", rank="0"),
        scraped(f"worker-{n}", "warmroute_worker_overfull_blocks_total", f"0+{60 * (n != 2)}x40", rank="0"),
        scraped(f"worker-{n}", "warmroute_agent_scrape_failures_total", f"0+{60 * (n == 1)}x40"),
    )
]
"""Each agent's own: the first is blind, the second's engine is down, and every one loses something."""
FIGURES: list[tuple[str, int, list[tuple[str, float]]]] = [
    ("Workers ready", 0, [("{}", 3)]),
    ("Workers by state", 0, [('{state="ready"}', 3)]),
    ("Late, unjoined and unreported workers", 0, [("{}", 1)]),
    ("Late, unjoined and unreported workers", 1, [("{}", 2)]),
    ("Late, unjoined and unreported workers", 2, [("{}", 1)]),
    ("Keys in the mirror", 0, [('{pool="main", tier="device"}', 5000)]),
    ("Mirror connected", 0, [('{pool="main"}', 0)]),
    ("Mirror lag", 0, [('{pool="main"}', 4)]),
    ("Log entries applied", 0, [('{pool="main"}', 10)]),
    ("Keys left out of the mirror", 0, [('{pool="main"}', 70)]),
    ("Host tier in the mirror", 0, [('{pool="main"}', 0)]),
    ("Publication lag", 0, [(f'{{namespace="llm", pod="worker-{n}", pool="main"}}', 20 * n) for n in (1, 2, 3)]),
    ("Engines by what their agents see", 0, [("{}", 2)]),
    ("Engines by what their agents see", 1, [("{}", 1)]),
    ("Engines by what their agents see", 2, [("{}", 1)]),
    ("Event messages", 0, [('{what="batches"}', 30)]),
    ("Event messages that went wrong", 0, [('{what="lost"}', 2)]),
    ("Blocks that the index does not have", 0, [("{}", 2)]),
    ("Blocks that the index does not have", 1, [("{}", 2)]),
    ("Blocks of no use to the index", 0, [('{reason="size"}', 1)]),
    ("Failed readings of engines' metrics", 0, [(f'{{pod="worker-{n}"}}', int(n == 1)) for n in (1, 2, 3)]),
    ("Bookings of all gateways known", 0, [('{pool="main"}', 0)]),
    ("Other gateways known", 0, [('{pool="main"}', 0)]),
    ("Other gateways known", 1, [('{pool="main"}', 1)]),
    ("Workers in approximate mode", 0, [('{pool="main"}', 1)]),
    ("Workers whose rate is learned", 0, [('{pool="main"}', 2)]),
    ("Requests of sessions", 0, [('{outcome="stayed"}', 2)]),
    ("Messages between gateways", 1, [('{outcome="applied"}', 2)]),
    ("Ledger up", 0, [("{}", 0)]),
    ("Refusals by status", 0, [('{reason="aborted"}', 2)]),
    ("Requests", 0, [("{}", 8 / 3)]),
    ("Requests by status", 0, [('{code="200"}', 2), ('{code="502"}', 2 / 3)]),
    ("Server errors", 0, [("{}", 0.25)]),
    ("Routed by load alone", 0, [("{}", 0.1)]),
    ("Routed by load alone, by reason", 0, [('{reason="budget"}', 0.1)]),
    ("Token hit rate", 0, [("{}", 0.4)]),
    ("Predicted and reported hit rate", 0, [("{}", 0.8)]),
    ("Predicted and reported hit rate", 1, [("{}", 0.4)]),
    ("Reported over predicted", 0, [("{}", 0.5)]),
    ("Requests in flight by worker", 0, [('{worker="w1"}', 4)]),
    ("Booked prefill tokens by worker", 0, [('{worker="w1"}', 200)]),
    ("Time to first byte", 0, [("{}", 0.1)]),
]
"""Panel, number of its query, and what Prometheus must answer with two gateways."""


def approximately(expression: str) -> str:
    """Rounded, as promtool compares floats exactly."""
    return f"round({expression}, 0.0001)"


def test_two_gateways_multiply_nothing(dashboard: dict[str, Any], promtool: Promtool, tmp_path: Path) -> None:
    by_title = panels(dashboard)
    tests = []
    for title, number, samples in FIGURES:
        expression = substituted(by_title[title][number])
        expected = [{"labels": labels, "value": round(value, 4)} for labels, value in samples]
        tests.append({"expr": approximately(expression), "eval_time": "15m", "exp_samples": expected})
    path = tmp_path / "test.yaml"
    group = {"interval": "1m", "input_series": SERIES + AGENTS, "promql_expr_test": tests}
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [group]}))
    result = promtool("test", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr


def alert(rule: dict[str, Any], value: str) -> dict[str, Any]:
    """What promtool expects of a rule that fires, with `value` as its text shows it."""
    grouping = re.search(r"by \(([^)]*)\)", rule["expr"])
    assert grouping is not None
    known = {"namespace": "llm", "pool": "main"}
    labels = {name: known[name] for name in grouping[1].split(", ")} | rule["labels"]
    summary = re.sub(r"{{ \$value[^}]*}}", value, rule["annotations"]["summary"].replace("{{ $labels.pool }}", "main"))
    return {"exp_labels": labels, "exp_annotations": rule["annotations"] | {"summary": summary}}


FIRING = {
    "WarmrouteServerErrors": (15, "25%"),
    "WarmrouteMirrorDisconnected": (1, ""),
    "WarmrouteBookingsNotShared": (1, ""),
    "WarmrouteMirrorFull": (5, "70"),
    "WarmrouteWorkersNotPublishing": (2, "2"),
    "WarmrouteLedgerDown": (1, ""),
    "WarmrouteWorkersLate": (10, "1"),
    "WarmrouteWorkersUnjoined": (15, "2"),
    "WarmrouteWorkersUnreported": (10, "1"),
    "WarmrouteNoReadyWorker": (2, ""),
    "WarmrouteEnginesGuessed": (10, "1"),
    "WarmrouteEngineEventsLost": (6, "2"),
    "WarmrouteOrphanedBlocks": (40, "1"),
    "WarmrouteOverfullBlocks": (32, "2"),
    "WarmrouteBlockSize": (6, "1"),
}
"""By rule: the minute at which it fires on SERIES with no worker ready, and the value that its summary shows."""
HEALTHY = [
    scraped("gateway-a", "warmroute_gateway_workers", "3+0x20", state="ready"),
    scraped("gateway-a", "warmroute_gateway_late_workers", "0+0x20"),
    scraped("gateway-a", "warmroute_gateway_unjoined_workers", "0+0x20"),
    scraped("gateway-a", "warmroute_gateway_unreported_workers", "0+0x20"),
    scraped("gateway-a", "warmroute_mirror_refused_keys", "0+0x20"),
    # A minute's trouble, and what is in reach again; a lag that is still allowed.
    scraped("gateway-a", "warmroute_mirror_connected", "1x5 0x0 1x20"),
    scraped("gateway-a", "warmroute_gateway_flight_shared", "1x5 0x0 1x20"),
    scraped("indexer-a", "warmroute_indexer_ledger_up", "1x5 0x0 1x20"),
    scraped("worker-1", "warmroute_worker_unpublished_seconds", "0x5 60x1 0x20"),
    scraped("worker-2", "warmroute_worker_unpublished_seconds", "30+0x20"),
    # An agent that sees all, but for a message lost once and blocks orphaned for some minutes after its start.
    scraped("worker-1", "warmroute_agent_approximate", "0+0x60"),
    scraped("worker-1", "warmroute_agent_events_total", "0x5 1x55", rank="0", what="lost"),
    scraped("worker-1", "warmroute_agent_events_total", "0+600x60", rank="0", what="gaps"),
    scraped("worker-1", "warmroute_agent_ignored_blocks_total", "0+600x60", rank="0", reason="group"),
    scraped("worker-1", "warmroute_worker_orphaned_blocks_total", "0+600x5 3000x55", rank="0"),
    scraped("worker-1", "warmroute_worker_overfull_blocks_total", "0+0x60", rank="0"),
]


def test_alerts_fire_on_their_condition_and_name_the_pool(promtool: Promtool, tmp_path: Path, root: Path) -> None:
    by_name = {rule["alert"]: rule for rule in rules(root)}
    gone = [scraped(pod, "warmroute_gateway_workers", "0+0x20", state="ready") for pod in GATEWAYS]
    troubled = [entry for entry in SERIES if "gateway_workers" not in entry["series"]] + gone + AGENTS
    firing = []
    for name, (minute, value) in FIRING.items():
        expected = [alert(by_name[name], value)]
        firing.append({"alertname": name, "eval_time": f"{minute}m", "exp_alerts": expected})
        if minute < 15:  # the others' rates need samples first
            firing.append({"alertname": name, "eval_time": f"{minute - 1}m", "exp_alerts": []})
    quiet = [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": []} for name in by_name for minute in range(1, 60)
    ]
    path = tmp_path / "test.yaml"
    document = {
        "rule_files": [str(root / "deploy/prometheus/alerts.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "1m", "input_series": troubled, "alert_rule_test": firing},
            {"interval": "1m", "input_series": HEALTHY, "alert_rule_test": quiet},
        ],
    }
    path.write_text(yaml.safe_dump(document))
    result = promtool("test", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
