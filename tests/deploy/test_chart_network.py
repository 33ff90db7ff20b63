"""Who may reach what: the chart's NetworkPolicies, and the token of the admin port."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.deploy.test_chart import matches, of_kind, pod_specs
from warmroute.config.gateway import GatewayConfig

Document = dict[str, Any]
Manifests = Callable[..., list[Document]]

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
AGENTS = {"podSelector": {"matchLabels": {"app": "my-vllm"}}}


def allowed(documents: list[Document], component: str) -> dict[str, list[Document] | None]:
    """By port: the peers that may reach it, None for everyone. The policy must select the component's pods alone."""
    policy = of_kind(documents, "NetworkPolicy")[f"warm-warmroute-{component}"]["spec"]
    pods = {name: spec["metadata"]["labels"] for name, spec in pod_specs(documents).items()}
    assert [name for name in pods if matches(policy["podSelector"]["matchLabels"], pods[name])] == [component]
    declared = {
        port["name"] for item in pod_specs(documents)[component]["spec"]["containers"] for port in item["ports"]
    }
    found: dict[str, list[Document] | None] = {}
    for rule in policy["ingress"]:
        for port in rule["ports"]:
            assert port["port"] in declared
            peers = found.get(port["port"], [])
            found[port["port"]] = None if peers is None or "from" not in rule else [*peers, *rule["from"]]
    return found


def components(documents: list[Document], peers: list[Document] | None) -> set[str]:
    """The release's own parts among peers."""
    selectors = [peer["podSelector"]["matchLabels"] for peer in peers or [] if "podSelector" in peer]
    labels = {name: spec["metadata"]["labels"] for name, spec in pod_specs(documents).items()}
    return {name for name in labels if any(matches(selector, labels[name]) for selector in selectors)}


def test_by_default_there_is_redis_policy_alone(manifests: Manifests) -> None:
    assert set(of_kind(manifests(), "NetworkPolicy")) == {"warm-warmroute-redis"}


def test_each_port_is_reached_by_who_needs_it(manifests: Manifests) -> None:
    documents = manifests({"networkPolicy": {"enabled": True}})
    assert allowed(documents, "gateway") == {"http": None}
    indexer, worker = allowed(documents, "indexer"), allowed(documents, "worker")
    assert set(indexer) == {"grpc"}
    assert components(documents, indexer["grpc"]) == {"gateway", "worker"}
    assert set(worker) == {"http"}
    assert components(documents, worker["http"]) == {"gateway"}


def test_prometheus_clients_and_agents_are_let_in_by_values(manifests: Manifests) -> None:
    policy = {"enabled": True, "monitoring": [PROMETHEUS], "clients": [AGENTS], "publishers": [AGENTS]}
    documents = manifests({"networkPolicy": policy})
    assert allowed(documents, "gateway") == {"http": [AGENTS], "admin": [PROMETHEUS]}
    indexer, worker = allowed(documents, "indexer"), allowed(documents, "worker")
    assert indexer["admin"] == [PROMETHEUS]
    assert AGENTS in (indexer["grpc"] or [])
    assert worker["admin"] == [PROMETHEUS]
    assert PROMETHEUS in (worker["http"] or [])
    external = {"engine": "external", "external": {"selector": "app=my-vllm"}}
    documents = manifests({"networkPolicy": policy, "pool": external})
    assert "warm-warmroute-worker" not in of_kind(documents, "NetworkPolicy")
    assert components(documents, allowed(documents, "indexer")["grpc"]) == {"gateway"}


@pytest.mark.parametrize("part", ["gateway", "indexer", "worker"])
def test_the_admin_ports_token_is_the_gateways_alone(part: str, manifests: Manifests) -> None:
    documents = manifests({"gateway": {"adminToken": {"existingSecret": "admin", "key": "k"}}})
    spec = pod_specs(documents)[part]["spec"]
    (container,) = spec["containers"]
    prefix = "WARMROUTE_GATEWAY_"
    given = {
        entry["name"].removeprefix(prefix).lower(): entry["value"]
        for entry in container.get("env", [])
        if entry["name"].startswith(prefix)
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert ("admin-token" in volumes) == (part == "gateway") == bool(given)
    if part == "gateway":
        file = GatewayConfig(**given).admin_token_file
        (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "admin-token")
        secret = volumes["admin-token"]["secret"]
        assert (secret["secretName"], secret["items"]) == ("admin", [{"key": "k", "path": "token"}])
        assert file == PurePosixPath(mount["mountPath"]) / "token"
