"""Where pools' tokenizers come from, and whether their workers agree."""

from __future__ import annotations

from panels import POOL, Panel, rate, series

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
        "Model files and tokenizers",
        "cps",
        "Files that workers sent to the index, and tokenizers that gateways put to use, by outcome.",
        (rate("warmroute_indexer_model_files_total", "outcome"), "file {{outcome}}"),
        (rate("warmroute_gateway_tokenizer_loads_total", "outcome"), "tokenizer {{outcome}}"),
    ),
]
