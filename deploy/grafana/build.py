"""Build the Grafana dashboard: python deploy/grafana/build.py

It queries only what the `metrics.py` files of the parts declare and what engines expose under vLLM's names; a test
parses every expression and checks that.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from agent_panels import AGENT_PANELS
from panels import COLUMNS, NAMESPACE, POOL, Panel, quantile, quantiles, rate, series, share, stat, variable
from routing_panels import ROUTING_PANELS
from tenant_panels import TENANT_PANELS
from tokenizer_panels import TOKENIZER_PANELS

HERE = Path(__file__).parent
OUTPUT = HERE / "warmroute.json"
"""The chart's copy is a link to it: helm reads only files below the chart, and follows links."""

PROMPT = rate("warmroute_gateway_prompt_tokens_total")
KEYED = rate("warmroute_gateway_keyed_tokens_total")
MATCHED = rate("warmroute_gateway_matched_tokens_total")
CACHED = rate("warmroute_gateway_cached_tokens_total")
REQUESTS = rate("warmroute_gateway_requests_total")
FAILED = rate("warmroute_gateway_requests_total", where=POOL + ', code=~"5.."')
LOAD_ONLY = rate("warmroute_gateway_load_only_total")
FIRST_BYTE = "warmroute_gateway_first_byte_seconds"
LEDGER = "warmroute_indexer_ledger_seconds"

OVERVIEW = [
    stat("Requests", "reqps", "Requests answered a second.", REQUESTS),
    stat("Server errors", "percentunit", "Share of requests answered with 5xx.", share(FAILED, REQUESTS)),
    stat(
        "Time to first byte, p90", "s", "From a request's arrival to its reply's first byte.", quantile(0.9, FIRST_BYTE)
    ),
    stat("Token hit rate", "percentunit", "Prompt tokens that engines served from cache.", share(CACHED, PROMPT)),
    stat(
        "Workers ready",
        "short",
        "As the gateway that sees most of them counts.",
        f'sum(max by (namespace, pool) (warmroute_gateway_workers{{{POOL}, state="ready"}}))',
    ),
    stat("Routed by load alone", "percentunit", "Share of requests without a match.", share(LOAD_ONLY, REQUESTS)),
]

REQUEST_PANELS = [
    series(
        "Requests by status",
        "reqps",
        "Pool is empty for requests that named no model of ours.",
        (rate("warmroute_gateway_requests_total", "code"), "{{code}}"),
    ),
    series(
        "Errors and retries",
        "reqps",
        "Attempts on workers that failed, those that followed, and those that the retry budget refused.",
        (rate("warmroute_gateway_worker_requests_total", "outcome", POOL + ', outcome!="completed"'), "{{outcome}}"),
        (rate("warmroute_gateway_retries_total"), "retries"),
        (rate("warmroute_gateway_refused_retries_total"), "retries refused"),
        (FAILED, "answered 5xx"),
    ),
    series("Time to first byte", "s", "Over all gateways.", *quantiles(FIRST_BYTE)),
    series(
        "Time to choose a worker",
        "s",
        "Template, tokens, keys, match and cost.",
        *quantiles("warmroute_gateway_route_seconds"),
    ),
    series(
        "Attempts by worker",
        "reqps",
        "The ten workers with most.",
        (f"topk(10, {rate('warmroute_gateway_worker_requests_total', 'worker')})", "{{worker}}"),
    ),
    series(
        "Routed by load alone, by reason",
        "percentunit",
        "Share of all requests. Cache affinity is lost for these.",
        (f"{rate('warmroute_gateway_load_only_total', 'reason')} / scalar({REQUESTS} > 0)", "{{reason}}"),
    ),
]

CACHE_PANELS = [
    series(
        "Prompt tokens",
        "short",
        "A second: all and cached as engines report them; matched: those the index expected on the chosen worker.",
        (PROMPT, "prompt"),
        (MATCHED, "matched (predicted)"),
        (CACHED, "cached (reported)"),
    ),
    series(
        "Predicted and reported hit rate",
        "percentunit",
        "Predicted: of prompts routed by their keys. Reported: of prompts whose engine reports cached tokens.",
        (share(MATCHED, KEYED), "matched (predicted)"),
        (share(CACHED, PROMPT), "cached (reported)"),
    ),
    series(
        "Reported over predicted",
        "percentunit",
        "1 when the index is right. Below: it promises blocks that are gone. Above: it misses blocks that are there.",
        (share(share(CACHED, PROMPT), share(MATCHED, KEYED)), "reported / predicted"),
    ),
]

WORKER_PANELS = [
    series(
        "Requests in flight by worker",
        "short",
        "Each gateway knows its own: added up.",
        (f"sum by (worker) (warmroute_gateway_in_flight_requests{{{POOL}}})", "{{worker}}"),
    ),
    series(
        "Booked prefill tokens by worker",
        "short",
        "Not yet computed. Each gateway knows its own: added up.",
        (f"sum by (worker) (warmroute_gateway_pending_tokens{{{POOL}}})", "{{worker}}"),
    ),
    series(
        "Workers by state",
        "short",
        "Every gateway sees all of them: the largest count.",
        (f"sum by (state) (max by (namespace, pool, state) (warmroute_gateway_workers{{{POOL}}}))", "{{state}}"),
    ),
    series(
        "Late, unjoined and unreported workers",
        "short",
        "Late: no heartbeat. Unjoined: discovered, but unknown to the index. Both are routed by load alone. "
        "Unreported: no load report came lately.",
        (f"sum(max by (namespace, pool) (warmroute_gateway_late_workers{{{POOL}}}))", "late"),
        (f"sum(max by (namespace, pool) (warmroute_gateway_unjoined_workers{{{POOL}}}))", "unjoined"),
        (f"sum(max by (namespace, pool) (warmroute_gateway_unreported_workers{{{POOL}}}))", "unreported"),
    ),
    series(
        "Publishers",
        "short",
        "Workers whose stream to an indexer is open and those whose is not.",
        (f"sum(warmroute_worker_connected{{{POOL}}})", "connected"),
        (f"count(warmroute_worker_connected{{{POOL}}} == 0)", "disconnected"),
    ),
    series(
        "Changes not yet published",
        "short",
        "Keys that changed on a worker and that no indexer has acknowledged: the five largest.",
        (f"topk(5, warmroute_worker_unpublished_keys{{{POOL}}})", "{{pod}}"),
    ),
    series(
        "Publication lag",
        "s",
        "Age of the oldest change that no indexer has acknowledged: the five workers furthest behind.",
        (f"topk(5, warmroute_worker_unpublished_seconds{{{POOL}}})", "{{pod}}"),
    ),
    series(
        "Streams that ended, by reason",
        "cps",
        "Of workers to indexers. By age is normal, at most one a worker in 24 minutes.",
        (rate("warmroute_worker_reconnects_total", "reason"), "{{reason}}"),
    ),
]

MIRROR_PANELS = [
    series(
        "Keys in the mirror",
        "short",
        "Every gateway holds the whole index: the largest. Predicted keys are each gateway's own.",
        (f"max by (pool, tier) (warmroute_mirror_keys{{{POOL}}})", "{{pool}} {{tier}}"),
        (f"max by (pool) (warmroute_mirror_predicted_keys{{{POOL}}})", "{{pool}} predicted"),
    ),
    series(
        "Mirror lag",
        "s",
        "Age of the newest log entry when it was applied: the gateway furthest behind.",
        (f"max by (pool) (warmroute_mirror_lag_seconds{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Mirror boots",
        "short",
        "Times a gateway read the whole index, by gateway and reason.",
        (
            f"sum by (pod, reason) (increase(warmroute_mirror_boots_total{{{POOL}}}[$__rate_interval]))",
            "{{pod}} {{reason}}",
        ),
    ),
    series(
        "Mirror connected",
        "short",
        "0 when a gateway routes on what it last saw.",
        (f"min by (pool) (warmroute_mirror_connected{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Keys left out of the mirror",
        "short",
        "For want of room: the gateway that leaves out most. Matches are shorter for it.",
        (f"max by (pool) (warmroute_mirror_refused_keys{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Host tier in the mirror",
        "short",
        "0 when a gateway gave the host tier up to make room for device keys.",
        (f"min by (pool) (warmroute_mirror_host_indexed{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Log entries applied",
        "short",
        "A second. Every gateway applies all: the fastest.",
        (f"max by (pool) (rate(warmroute_mirror_log_entries_total{{{POOL}}}[$__rate_interval]))", "{{pool}}"),
    ),
    series(
        "Load streams",
        "short",
        "Open streams of the gateway with fewest; should equal the number of indexers.",
        (f"min(warmroute_gateway_load_streams{{{NAMESPACE}}})", "fewest"),
        (f"count(warmroute_indexer_ledger_up{{{NAMESPACE}}})", "indexers"),
    ),
]

INDEXER_PANELS = [
    series(
        "Ledger calls",
        "s",
        "Time of one call to Redis.",
        (quantile(0.5, LEDGER, "operation", NAMESPACE), "{{operation}} p50"),
        (quantile(0.99, LEDGER, "operation", NAMESPACE), "{{operation}} p99"),
    ),
    series(
        "Ledger errors",
        "cps",
        "Failed calls to Redis by operation.",
        (rate("warmroute_indexer_ledger_errors_total", "operation", NAMESPACE), "{{operation}}"),
    ),
    series(
        "Refusals by status",
        "cps",
        "Streams that an indexer ended, by gRPC status.",
        (rate("warmroute_indexer_refusals_total", "reason", NAMESPACE), "{{reason}}"),
    ),
    series(
        "Ledger up",
        "short",
        "0 when an indexer's last heartbeat to Redis failed.",
        (f"min(warmroute_indexer_ledger_up{{{NAMESPACE}}})", "worst indexer"),
    ),
    series(
        "Streams",
        "short",
        "A worker has one stream to one indexer: added up. A gateway listens to every indexer: the largest.",
        (f"sum(warmroute_indexer_publish_streams{{{POOL}}})", "workers"),
        (f"max(warmroute_indexer_load_subscribers{{{NAMESPACE}}})", "gateways"),
    ),
    series(
        "Keys written",
        "cps",
        "By operation.",
        (rate("warmroute_indexer_keys_total", "operation"), "{{operation}}"),
    ),
    series(
        "Snapshots, deltas, drops",
        "cps",
        "Snapshots that go on without a rollout mean streams that break or state that differs.",
        (rate("warmroute_indexer_snapshots_total"), "snapshots"),
        (rate("warmroute_indexer_deltas_total"), "deltas"),
        (rate("warmroute_indexer_dropped_workers_total"), "dropped workers"),
    ),
]

ENGINE_PANELS = [
    series(
        "Running and waiting",
        "short",
        "Over all engines.",
        (f"sum(vllm:num_requests_running{{{POOL}}})", "running"),
        (f"sum(vllm:num_requests_waiting{{{POOL}}})", "waiting"),
    ),
    series(
        "KV cache in use",
        "percentunit",
        "By engine; what requests hold, not what is cached.",
        (f"vllm:kv_cache_usage_perc{{{POOL}}}", "{{pod}}"),
    ),
    series(
        "Engines' own hit rate",
        "percentunit",
        "As the engines count it, failed and direct requests included.",
        (share(rate("vllm:prefix_cache_hits_total"), rate("vllm:prefix_cache_queries_total")), "hits / queries"),
    ),
    series(
        "Tokens",
        "short",
        "A second, over all engines.",
        (rate("vllm:prompt_tokens_total"), "prompt"),
        (rate("vllm:generation_tokens_total"), "generated"),
    ),
    series(
        "Engines' time to first token",
        "s",
        "Without the gateway and the network.",
        *quantiles("vllm:time_to_first_token_seconds"),
    ),
    series(
        "Waiting by engine",
        "short",
        "The ten longest queues.",
        (f"topk(10, vllm:num_requests_waiting{{{POOL}}})", "{{pod}}"),
    ),
]

ROWS = (
    ("Overview", OVERVIEW),
    ("Requests", REQUEST_PANELS),
    ("Tenants", TENANT_PANELS),
    ("Cache", CACHE_PANELS),
    ("Tokenizers", TOKENIZER_PANELS),
    ("Routing", ROUTING_PANELS),
    ("Workers", WORKER_PANELS),
    ("Index in the gateways", MIRROR_PANELS),
    ("Indexer", INDEXER_PANELS),
    ("Agents", AGENT_PANELS),
    ("Engines", ENGINE_PANELS),
)


def laid_out() -> list[Panel]:
    """All panels with ids and places: rows of the grid filled from the left."""
    panels: list[Panel] = []
    y = 0
    for title, members in ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": COLUMNS, "h": 1}}
        )
        panels[-1]["gridPos"] |= {"x": 0, "y": y}
        y += 1
        x = height = 0
        for member in members:
            place = member["gridPos"]
            if x + place["w"] > COLUMNS:
                x, y = 0, y + height
            height = place["h"]
            panels.append(member | {"gridPos": place | {"x": x, "y": y}})
            x += place["w"]
        y += height
    return [member | {"id": number} for number, member in enumerate(panels, 1)]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "Warmroute",
        "uid": "warmroute",
        "description": "Prefix-cache-aware routing: requests, cache, workers, index, engines.",
        "tags": ["warmroute", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
                variable("namespace", "Namespace", "label_values(warmroute_gateway_requests_total, namespace)"),
                variable("pool", "Pool", f"label_values(warmroute_gateway_workers{{{NAMESPACE}}}, pool)"),
            ]
        },
        "panels": laid_out(),
    }


def main() -> int:
    """Write the file; with --check only say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the file is not current")
    check = parser.parse_args().check
    text = json.dumps(dashboard(), indent=1) + "\n"
    if not check:
        OUTPUT.write_text(text)
    elif not OUTPUT.exists() or OUTPUT.read_text() != text:
        print(f"{OUTPUT} is not current: run python deploy/grafana/build.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
