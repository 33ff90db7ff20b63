"""How the chart tells gateways of API keys and the secret of the cache salts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.deploy.test_chart import pod_specs
from warmroute.config.tenants import TenantsConfig

Document = dict[str, Any]
Manifests = Callable[..., list[Document]]


@pytest.mark.parametrize(("key", "salts"), [("keys.yaml", True), ("mine.json", False)])
def test_the_files_of_the_secret_are_what_the_gateway_reads(key: str, salts: bool, manifests: Manifests) -> None:
    tenants = {"existingSecret": "tenants", "keysKey": key, "salts": salts, "allowUnsalted": salts}
    specs = pod_specs(manifests({"tenants": tenants}))
    spec = specs["gateway"]["spec"]
    (container,) = spec["containers"]
    prefix = "WARMROUTE_TENANTS_"
    fields = {
        entry["name"].removeprefix(prefix).lower(): entry["value"]
        for entry in container["env"]
        if entry["name"].startswith(prefix)
    }
    config = TenantsConfig(**fields)
    assert config.salts is config.allow_unsalted is salts
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "tenants")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "tenants")
    held = {str(PurePosixPath(mount["mountPath"]) / item["path"]): item["key"] for item in volume["secret"]["items"]}
    assert volume["secret"]["secretName"] == "tenants"
    assert held.pop(str(config.keys_file)) == key
    assert config.keys_file is not None
    assert config.keys_file.suffix == PurePosixPath(key).suffix
    assert held == ({str(config.salt_secret_file): "salt-secret"} if salts else {})
    for part in ("worker", "indexer"):
        assert "tenants" not in {volume["name"] for volume in specs[part]["spec"]["volumes"]}


def test_without_a_secret_nothing_is_mounted(manifests: Manifests) -> None:
    spec = pod_specs(manifests())["gateway"]["spec"]
    assert "tenants" not in {volume["name"] for volume in spec["volumes"]}
    assert not any("TENANTS" in entry["name"] for entry in spec["containers"][0].get("env", []))
