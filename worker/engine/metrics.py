"""The engine's metrics under vLLM's names, so that what scrapes vLLM scrapes this engine."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.engine.runner import EngineRunner

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)

COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "prompt_tokens": "Prompt tokens of requests that got a token.",
    "generation_tokens": "Tokens generated.",
    "preemptions": "Requests that gave their blocks back and were computed again.",
}
EXPOSED_NAMES = {"preemptions": "num_preemptions"}


class EngineMetrics:
    """Declares the metrics in a registry of their own."""

    def __init__(self, runner: EngineRunner, model: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_RunnerCollector(runner, model))
        self._first_token_seconds = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            ["model_name"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        ).labels(model)

    def observe_first_token(self, seconds: float) -> None:
        """Count one request's time to its first token."""
        self._first_token_seconds.observe(seconds)


class _RunnerCollector(Collector):
    """Reads gauges and counters from the runner when scraped: nothing to keep in step with it."""

    def __init__(self, runner: EngineRunner, model: str) -> None:
        self._runner = runner
        self._model = model

    def collect(self) -> Iterator[Metric]:
        load, stats = self._runner.load(), self._runner.stats()
        yield self._gauge("num_requests_running", "Requests in the batch.", load.running_requests)
        yield self._gauge("num_requests_waiting", "Requests that wait for a place.", load.waiting_requests)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1.", load.kv_cache_usage)
        for field, text in COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{EXPOSED_NAMES.get(field, field)}", text, labels=["model_name"])
            counter.add_metric([self._model], getattr(stats, field))
            yield counter

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        gauge.add_metric([self._model], value)
        return gauge
