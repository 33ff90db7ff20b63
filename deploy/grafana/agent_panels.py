"""What agents see of vLLM, SGLang and TensorRT-LLM, and what of it does not reach the index."""

from __future__ import annotations

from panels import POOL, Panel, rate, series

EVENTS = "warmroute_agent_events_total"

AGENT_PANELS: list[Panel] = [
    series(
        "Engines by what their agents see",
        "short",
        "Exact: the cache events are read. Guessed: they cannot be, or the engine has none. Down: no answer.",
        (f"count(warmroute_agent_approximate{{{POOL}}} == 0)", "exact"),
        (f"count(warmroute_agent_approximate{{{POOL}}} == 1)", "guessed"),
        (f"count(warmroute_agent_engine_up{{{POOL}}} == 0)", "down"),
    ),
    series(
        "Event messages",
        "cps",
        "Applied; repeats come from replays and are left out.",
        (rate(EVENTS, "what", POOL + ', what=~"batches|repeats"'), "{{what}}"),
    ),
    series(
        "Event messages that went wrong",
        "cps",
        "Gaps are healed by the engine's replay; what is lost was not, and started a new epoch. Lives are restarts.",
        (rate(EVENTS, "what", POOL + ', what!~"batches|repeats"'), "{{what}}"),
    ),
    series(
        "Blocks that the index does not have",
        "cps",
        "Orphaned: stored after a block that nobody saw. Forgotten: more copies than the cache can hold, so that "
        "removals were lost. Skipped: events that could not be applied.",
        (rate("warmroute_worker_orphaned_blocks_total"), "orphaned"),
        (rate("warmroute_worker_overfull_blocks_total"), "forgotten"),
        (rate("warmroute_worker_skipped_events_total"), "skipped events"),
    ),
    series(
        "Blocks of no use to the index",
        "cps",
        "By reason: group (windows of hybrid models), medium (disks), size (another block size than said).",
        (rate("warmroute_agent_ignored_blocks_total", "reason"), "{{reason}}"),
    ),
    series(
        "Failed readings of engines' metrics",
        "cps",
        "Without them load is not reported: the five agents with most.",
        (f"topk(5, {rate('warmroute_agent_scrape_failures_total', 'pod')})", "{{pod}}"),
    ),
]
