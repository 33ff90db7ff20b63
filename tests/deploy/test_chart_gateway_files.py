"""The chart's files for gateways: the public port's certificate, and the key that engines ask for."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from tests.deploy.test_chart import Manifests, config_of, of_kind, pod_specs

VALUES: dict[str, Any] = {
    "gateway": {"tls": {"existingSecret": "public"}},
    "pool": {"engine": "vllm", "server": {"model": "x/y"}, "engineKey": {"existingSecret": "engines", "key": "mine"}},
}


def held(spec: dict[str, Any], name: str, container: int = 0) -> tuple[str, dict[str, str]]:
    """The Secret behind a volume, and its keys by path in the container."""
    (mount,) = (mount for mount in spec["containers"][container]["volumeMounts"] if mount["name"] == name)
    (volume,) = (volume["secret"] for volume in spec["volumes"] if volume["name"] == name)
    folder = PurePosixPath(mount["mountPath"])
    return volume["secretName"], {str(folder / item["path"]): item["key"] for item in volume["items"]}


def test_the_certificate_is_where_the_gateway_reads_it(manifests: Manifests) -> None:
    documents = manifests(VALUES)
    spec = pod_specs(documents)["gateway"]["spec"]
    env = {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}
    secret, files = held(spec, "tls")
    assert secret == "public"
    assert files[env["WARMROUTE_GATEWAY_TLS_CERT_FILE"]] == "tls.crt"
    assert files[env["WARMROUTE_GATEWAY_TLS_KEY_FILE"]] == "tls.key"
    (port,) = of_kind(documents, "Service")["warm-warmroute-gateway"]["spec"]["ports"]
    assert port["appProtocol"] == "https"


def test_gateway_and_agent_show_the_key_that_vllm_asks_for(manifests: Manifests) -> None:
    documents = manifests(VALUES)
    specs = pod_specs(documents)
    (pool,) = config_of(documents).gateway.pools
    assert held(specs["gateway"]["spec"], "engine-key") == ("engines", {str(pool.upstream_key_file): "mine"})
    engine, *_ = specs["worker"]["spec"]["containers"]
    (key,) = (entry["valueFrom"] for entry in engine["env"] if entry["name"] == "VLLM_API_KEY")
    assert key == {"secretKeyRef": {"name": "engines", "key": "mine"}}
    named = config_of(documents).agent.engine_key_file
    assert held(specs["worker"]["spec"], "engine-key", container=1) == ("engines", {str(named): "mine"})


def test_by_default_there_is_neither(manifests: Manifests) -> None:
    documents = manifests()
    spec = pod_specs(documents)["gateway"]["spec"]
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "tmp", "grpc"}
    assert config_of(documents).gateway.pools[0].upstream_key_file is None
