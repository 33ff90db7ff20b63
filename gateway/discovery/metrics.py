"""The metrics of streams to indexers and of messages between gateways."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class DiscoveryMetrics:
    """What is counted of the other processes that a gateway hears."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.flight_shared = Gauge(
            "warmroute_gateway_flight_shared",
            "1 while this gateway knows the other gateways' requests in flight, 0 while it goes by its own and by the "
            "workers' reports.",
            ["pool"],
            registry=registry,
        )
        self.flight_gateways = Gauge(
            "warmroute_gateway_flight_gateways",
            "Other gateways (each process is one) whose requests in flight are known.",
            ["pool"],
            registry=registry,
        )
        self.flight_sent = Counter(
            "warmroute_gateway_flight_sent",
            "Messages about requests in flight to the other gateways: sent, failed.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.flight_received = Counter(
            "warmroute_gateway_flight_received",
            "Messages about requests in flight: applied, gap (applied, but some before it were lost), own, stale "
            "(repeated or out of order), refused (past a bound), malformed.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.load_streams = Gauge(
            "warmroute_gateway_load_streams",
            "Open load streams to indexer replicas.",
            registry=registry,
        )
