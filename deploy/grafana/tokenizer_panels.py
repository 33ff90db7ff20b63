"""Where pools' tokenizers come from, and whether their workers agree."""

from __future__ import annotations

from panels import POOL, Panel, quantile, rate, series, share

TOKENIZER_PANELS: list[Panel] = [
    series(
        "Tokenizers by source",
        "short",
        "Gateways that key with a folder, the hub's or the workers' files; none: they route by load.",
        (f"sum by (pool, source) (warmroute_gateway_tokenizer{{{POOL}}})", "{{pool}} {{source}}"),
    ),
    series(
        "Ways in which a pool's workers key",
        "short",
        "More than one: only the most common is keyed with, the others' workers are routed by load. Files: their "
        "different sets; those of most workers are used.",
        (f"max by (pool) (warmroute_gateway_pool_fingerprints{{{POOL}}})", "{{pool}} keys"),
        (f"max by (pool) (warmroute_gateway_pool_file_sets{{{POOL}}})", "{{pool}} files"),
    ),
    series(
        "Files refused",
        "short",
        "Sets of files that workers offer whose tokenizer or template is refused; /readyz says whose, and why.",
        (f"max by (pool, kind) (warmroute_gateway_refused_files{{{POOL}}})", "{{pool}} {{kind}}"),
    ),
    series(
        "Prompts counted otherwise by the engine",
        "percentunit",
        "Share of replies whose prompt tokens differ from the gateway's own: their keys were wrong. From a half on the "
        "pool's prompts are tokenised by the engine, or routed by load.",
        (
            share(
                rate("warmroute_prompt_tokens_mismatch_total", "pool"),
                rate("warmroute_gateway_requests_total", "pool"),
            ),
            "{{pool}}",
        ),
    ),
    series(
        "Cached tokens expected, less those found",
        "short",
        "Quantiles over requests. Near zero: the index says what engines find.",
        (quantile(0.1, "warmroute_gateway_cached_tokens_error"), "p10"),
        (quantile(0.5, "warmroute_gateway_cached_tokens_error"), "p50"),
        (quantile(0.9, "warmroute_gateway_cached_tokens_error"), "p90"),
    ),
    series(
        "Prompts tokenised by engines",
        "cps",
        "None while replies agree with the gateway.",
        (rate("warmroute_gateway_engine_tokens_total", "pool, outcome"), "{{pool}} {{outcome}}"),
    ),
    series(
        "Model files and tokenizers",
        "cps",
        "Files that workers sent to the index, and tokenizers that gateways put to use, by outcome.",
        (rate("warmroute_indexer_model_files_total", "outcome"), "file {{outcome}}"),
        (rate("warmroute_gateway_tokenizer_loads_total", "outcome"), "tokenizer {{outcome}}"),
    ),
]
