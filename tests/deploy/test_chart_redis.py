"""How the chart tells gateway and indexer of a Redis that is not its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.deploy.test_chart import of_kind, pod_specs
from warmroute.config.redis import RedisConfig

Document = dict[str, Any]

FULL = {
    "redis": {
        "enabled": False,
        "externalUrl": "rediss+sentinel://a:26379,b:26379/index",
        "auth": {
            "indexer": {"existingSecret": "rw", "usernameKey": "user"},
            "gateway": {"existingSecret": "ro", "passwordKey": "word"},
            "sentinel": {"existingSecret": "watch", "usernameKey": "user"},
        },
        "tls": {"existingSecret": "certs", "clientCertificate": True, "checkHostname": False},
    }
}


@pytest.mark.parametrize(("part", "secret", "key"), [("indexer", "rw", "password"), ("gateway", "ro", "word")])
def test_users_and_certificates_come_from_secrets(
    part: str, secret: str, key: str, manifests: Callable[..., list[Document]]
) -> None:
    spec = pod_specs(manifests(FULL))[part]["spec"]
    (container,) = spec["containers"]
    variables = {entry["name"]: entry for entry in container["env"] if entry["name"].startswith("WARMROUTE_REDIS_")}
    # As the part reads them: every variable is a field.
    fields = {
        name.removeprefix("WARMROUTE_REDIS_").lower(): entry.get("value", "x") for name, entry in variables.items()
    }
    config = RedisConfig(**{**fields, "url": FULL["redis"]["externalUrl"]})
    assert not config.tls_check_hostname
    assert ("WARMROUTE_REDIS_USERNAME" in variables) == (part == "indexer")
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "redis")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "redis")
    held = {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    named = {name: value for name, value in config if name.endswith("_file") and value is not None}
    assert {path.name for path in named.values()} == set(held)
    assert {PurePosixPath(path.parent) for path in named.values()} == {PurePosixPath(mount["mountPath"])}
    assert held["password"] == (secret, key)
    assert held["sentinel-password"] == ("watch", "password")
    assert held["tls.key"] == ("certs", "tls.key")


def test_without_them_nothing_is_mounted(manifests: Callable[..., list[Document]]) -> None:
    external = {"redis": {"enabled": False, "externalUrl": "redis+cluster://a:6379"}}
    for documents in (manifests(), manifests(external)):
        for part in ("indexer", "gateway"):
            spec = pod_specs(documents)[part]["spec"]
            assert "redis" not in {volume["name"] for volume in spec["volumes"]}
            assert "redis" not in {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    secret = of_kind(manifests(external), "Secret")["warm-warmroute-redis-url"]
    assert secret["stringData"]["url"] == "redis+cluster://a:6379"
