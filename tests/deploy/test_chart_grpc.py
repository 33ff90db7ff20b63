"""How the chart gives all parts the certificates and the token of the index's gRPC service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.deploy.test_chart import pod_specs
from warmroute.config.grpc import GrpcConfig

Document = dict[str, Any]
Manifests = Callable[..., list[Document]]

PARTS = ("gateway", "indexer", "worker")
VALUES = {
    "grpc": {"tls": {"existingSecret": "certs", "serverName": "index.test"}, "token": {"existingSecret": "shared"}}
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_gets_the_files_that_its_settings_name(part: str, manifests: Manifests) -> None:
    spec = pod_specs(manifests(VALUES))[part]["spec"]
    (container,) = spec["containers"]
    prefix = "WARMROUTE_GRPC_"
    config = GrpcConfig(
        **{
            entry["name"].removeprefix(prefix).lower(): entry["value"]
            for entry in container["env"]
            if entry["name"].startswith(prefix)
        }
    )
    assert config.tls_server_name == "index.test"
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "grpc")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "grpc")
    held = {
        item["path"]: source["secret"]["name"]
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    named = [value for name, value in config if name.endswith("_file")]
    assert {path.name for path in named} == set(held)
    assert {PurePosixPath(path.parent) for path in named} == {PurePosixPath(mount["mountPath"])}
    assert held == {"ca.crt": "certs", "tls.crt": "certs", "tls.key": "certs", "token": "shared"}


def test_the_agent_beside_vllm_gets_them_and_vllm_does_not(manifests: Manifests) -> None:
    vllm = {"pool": {"engine": "vllm", "server": {"model": "m"}}}
    spec = pod_specs(manifests({**VALUES, **vllm}))["worker"]["spec"]
    mounts = {item["name"]: {mount["name"] for mount in item["volumeMounts"]} for item in spec["containers"]}
    assert "grpc" in mounts["agent"]
    assert "grpc" not in mounts["vllm"]


@pytest.mark.parametrize("part", PARTS)
def test_without_secrets_nothing_is_mounted(part: str, manifests: Manifests) -> None:
    spec = pod_specs(manifests())[part]["spec"]
    (container,) = spec["containers"]
    assert not any(entry["name"].startswith("WARMROUTE_GRPC_") for entry in container.get("env", []))
    assert "grpc" not in {volume["name"] for volume in spec["volumes"]}
