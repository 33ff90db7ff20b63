"""How every part connects to Redis: one server, the master that Sentinel names, or a cluster, by the same calls."""

from __future__ import annotations

from warmroute.config.redis import RedisConfig
from warmroute.redis.cluster import ClusterTopology
from warmroute.redis.node import Client, Connector
from warmroute.redis.routed import RoutedClient
from warmroute.redis.sentinel import SentinelTopology

__all__ = ["Client", "connect"]


def connect(config: RedisConfig, *, connections: int = 16) -> Client:
    """A client with at most so many connections to a server, for which calls wait in turn. Opens none yet.

    Raises StartupError where TLS files cannot be used. One immediate retry covers connections that a restart left
    stale, and a failover that is over; longer outages are the callers' to wait out, with RedisError in hand.
    """
    connector = Connector(config, connections=connections)
    target = connector.target
    if target.topology == "sentinel":
        sentinels = [connector.sentinel(*address) for address in target.addresses]
        return RoutedClient.over(SentinelTopology(sentinels, target.master, connector.server), config.timeout_seconds)
    if target.topology == "cluster":
        return RoutedClient.over(ClusterTopology(target.addresses, connector.server), config.timeout_seconds)
    return connector.local(target.socket) if target.socket else connector.server(*target.addresses[0])
