"""The metrics of one gateway process: those of its rooms, and of the mirrors that it reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.discovery.metrics import DiscoveryMetrics
from gateway.http.metrics import HttpMetrics
from gateway.prompts.metrics import PromptMetrics
from gateway.requests.metrics import RequestMetrics
from gateway.routing.metrics import RoutingMetrics
from gateway.tenants.metrics import TenantMetrics
from indexer.reader.metrics import MirrorMetrics


class GatewayMetrics(
    HttpMetrics, RequestMetrics, RoutingMetrics, PromptMetrics, TenantMetrics, DiscoveryMetrics, MirrorMetrics
):
    """Each room asks for its own class alone, so that its tests need no other."""

    def __init__(self, registry: CollectorRegistry) -> None:
        HttpMetrics.__init__(self, registry)
        RequestMetrics.__init__(self, registry)
        RoutingMetrics.__init__(self, registry)
        PromptMetrics.__init__(self, registry)
        TenantMetrics.__init__(self, registry)
        DiscoveryMetrics.__init__(self, registry)
        MirrorMetrics.__init__(self, registry)
