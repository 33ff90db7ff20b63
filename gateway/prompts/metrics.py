"""The metrics of tokenizers and of the files that workers offer."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class PromptMetrics:
    """Metrics of each pool's tokenizer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pool_fingerprints = Gauge(
            "warmroute_gateway_pool_fingerprints",
            "Ways in which the pool's workers key; more than 1: all but one are routed by load.",
            ["pool"],
            registry=registry,
        )
        self.pool_file_sets = Gauge(
            "warmroute_gateway_pool_file_sets",
            "Different sets of tokenizer, template and configuration files that the pool's workers offer.",
            ["pool"],
            registry=registry,
        )
        self.refused_files = Gauge(
            "warmroute_gateway_refused_files",
            "Sets of files that workers offer and that are refused, by what of them is: tokenizer, template.",
            ["pool", "kind"],
            registry=registry,
        )
        self.tokenizer = Gauge(
            "warmroute_gateway_tokenizer",
            "1 for where the pool's tokenizer is from: folder, hub, workers; none: requests are routed by load.",
            ["pool", "source"],
            registry=registry,
        )
        self.tokenizer_loads = Counter(
            "warmroute_gateway_tokenizer_loads",
            "Tokenizers and templates put to use, or not: loaded, failed (tried again).",
            ["pool", "outcome"],
            registry=registry,
        )
