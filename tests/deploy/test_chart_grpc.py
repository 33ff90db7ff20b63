"""How the chart gives all parts the certificates and the token of the index's gRPC service."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import config_of, of_kind, pod_specs
from warmroute.config.grpc import GrpcConfig
from warmroute.process.bearer_tokens import Tokens

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


def token_of(part: str, documents: list[Document]) -> tuple[str, str] | None:
    """Secret and key of the token that a part is given."""
    for volume in pod_specs(documents)[part]["spec"]["volumes"]:
        if volume["name"] == "grpc":
            for source in volume["projected"]["sources"]:
                for item in source["secret"]["items"]:
                    if item["path"] == "token":
                        return source["secret"]["name"], item["key"]
    return None


@pytest.mark.parametrize("part", PARTS)
def test_open_said_aloud_mounts_nothing(part: str, manifests: Manifests) -> None:
    documents = manifests({"grpc": {"open": True}})
    spec = pod_specs(documents)[part]["spec"]
    (container,) = spec["containers"]
    assert not any(entry["name"].startswith("WARMROUTE_GRPC_") for entry in container.get("env", []))
    assert "grpc" not in {volume["name"] for volume in spec["volumes"]}
    assert of_kind(documents, "Secret") == {}
    assert config_of(documents).indexer.open


def test_without_values_all_parts_share_a_token_of_the_charts(manifests: Manifests) -> None:
    documents = manifests()
    (secret,) = of_kind(documents, "Secret").values()
    assert {token_of(part, documents) for part in PARTS} == {(secret["metadata"]["name"], "token")}
    token = b64decode(secret["data"]["token"]).decode()
    assert len(token) >= 32
    assert Tokens("grpc.token", token, None).match(f"Bearer {token}")
    assert not config_of(documents).indexer.open
    (again,) = of_kind(manifests(), "Secret").values()
    assert again["data"]["token"] != secret["data"]["token"]


@pytest.mark.parametrize("grpc", [{"token": {"existingSecret": "mine", "key": "k"}}, {"tls": {"existingSecret": "t"}}])
def test_no_token_is_drawn_where_something_else_is_asked_for(grpc: Document, manifests: Manifests) -> None:
    documents = manifests({"grpc": grpc})
    assert of_kind(documents, "Secret") == {}
    assert token_of("indexer", documents) == (("mine", "k") if "token" in grpc else None)
    assert not config_of(documents).indexer.open


@pytest.mark.parametrize("grpc", [{"token": {"existingSecret": "mine"}}, {"tls": {"existingSecret": "t"}}])
def test_open_and_closed_at_once_is_refused(grpc: Document, template: Callable[..., Any]) -> None:
    result = template({"grpc": {"open": True, **grpc}})
    assert result.returncode != 0
    assert "grpc.open is true" in result.stderr


def test_an_upgrade_keeps_the_token(
    chart: Path, helm: Callable[..., Any], manifests: Manifests, tmp_path: Path
) -> None:
    """helm has no cluster here: an API server of the test's own answers its look-up."""
    kept = b64encode(b"the-token-of-the-first-install").decode()
    kinds = {(document["apiVersion"], document["kind"]) for document in manifests()}
    with api_server(kinds, {"warm-warmroute-grpc-token": {"token": kept}}, tmp_path) as kubeconfig:
        command = ("template", "warm", str(chart), "--namespace", "llm", "--dry-run=server", "--kubeconfig", kubeconfig)
        result = helm(*command, "--show-only", "templates/grpc-token.yaml", "--disable-openapi-validation")
        assert result.returncode == 0, result.stderr
        assert yaml.safe_load(result.stdout)["data"]["token"] == kept


def group_of(version: str) -> Document:
    here = {"groupVersion": version, "version": version.rpartition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [here], "preferredVersion": here}


def resources_of(version: str, kinds: set[tuple[str, str]]) -> Document:
    names = [kind for of, kind in sorted(kinds) if of == version]
    resources = [
        {
            "name": re.sub("ys$", "ies", f"{kind.lower()}s"),
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": ["get", "list"],
        }
        for kind in names
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


@contextmanager
def api_server(kinds: set[tuple[str, str]], secrets: dict[str, dict[str, str]], folder: Path) -> Iterator[str]:
    """What helm asks of Kubernetes for a look-up of Secrets, in a cluster that knows these kinds; yields the
    kubeconfig."""
    groups = sorted({version for version, _ in kinds if "/" in version})
    roots: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group_of(version) for version in groups]},
        "/api/v1": resources_of("v1", kinds),
        **{f"/apis/{version}": resources_of(version, kinds) for version in groups},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = path.rpartition("/")[2]
            answer = roots.get(path)
            if answer is None and path.startswith("/api/v1/namespaces/llm/secrets/") and name in secrets:
                release = {"meta.helm.sh/release-name": "warm", "meta.helm.sh/release-namespace": "llm"}
                owner = {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": release}
                answer = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **owner}}
                answer["data"] = secrets[name]
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.send_response(404 if answer is None else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer or missing).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        file = folder / "kubeconfig"
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
        file.write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {}}], "current-context": "c"}))
        yield str(file)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
