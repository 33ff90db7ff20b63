"""The helm chart: it renders, Kubernetes accepts what it renders, and its parts fit each other and the product."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from warmroute.config.agent import AgentConfig
from warmroute.config.model import Config
from warmroute.config.worker import WorkerConfig

Document = dict[str, Any]
Manifests = Callable[..., list[Document]]
Render = Callable[..., subprocess.CompletedProcess[str]]

CLAIM = {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
VALUE_SETS: dict[str, Document] = {
    "default": {},
    "vllm": {"pool": {"engine": "vllm", "server": {"model": "Qwen/Qwen3-8B", "args": ["--max-model-len=32768"]}}},
    "vllm-volume": {
        "pool": {
            "engine": "vllm",
            "modelFiles": {"volume": CLAIM, "path": "Qwen3-8B"},
            "gpu": {"count": 2},
            "server": {"huggingFaceToken": {"secret": "hub"}, "cacheVolume": CLAIM},
            "agent": {"config": {"host_cache_tokens": 1_000_000}},
        }
    },
    "sglang": {
        "pool": {
            "engine": "sglang",
            "modelFiles": {"volume": CLAIM},
            "server": {"image": "sglang:test", "args": ["--tp-size=2"]},
            "engineKey": {"existingSecret": "engines"},
        }
    },
    "tensorrt-llm": {
        "pool": {
            "engine": "tensorrt-llm",
            "modelFiles": {"volume": CLAIM},
            "server": {"image": "trt:test", "options": {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}},
            "agent": {"config": {"cache_tokens": 500_000}},
        }
    },
    "external": {
        "pool": {"engine": "external", "external": {"selector": "app=my-vllm,tier=gpu"}},
        "monitoring": {"podMonitor": {"enabled": True}},
    },
    "gpu": {"pool": {"gpu": {"count": 1}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
    "external-redis": {"redis": {"enabled": False, "externalUrl": "rediss://:secret@redis.example.com:6380/0"}},
    "redis-secret": {"redis": {"enabled": False, "existingSecret": {"name": "mine", "key": "address"}}},
    "monitors": {
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
            "rules": {"enabled": True},
        }
    },
    "everything": {
        "imagePullSecrets": [{"name": "registry"}],
        "gateway": {
            "config": {"body_limit_bytes": 67_108_864, "attempts": 2},
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "ingress": {"enabled": True, "className": "nginx", "host": "llm.example.com", "tlsSecret": "tls"},
            "autoscaling": {"enabled": True},
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "affinity": {"nodeAffinity": {}},
        },
        "indexer": {"config": {"log_entries": 100_000}, "extraEnv": [{"name": "TZ", "value": "UTC"}]},
        "pool": {"modelFiles": {"volume": CLAIM}, "builtin": {"config": {"threads": 4, "kv_cache_tokens": 65_536}}},
        "redis": {"networkPolicy": False},
    },
    "files": {
        "gateway": {"tls": {"existingSecret": "public"}, "config": {"processes": 2}},
        "pool": {"engine": "vllm", "server": {"model": "Qwen/Qwen3-8B"}, "engineKey": {"existingSecret": "engines"}},
    },
    "closed": {
        "networkPolicy": {"enabled": True, "monitoring": [{"namespaceSelector": {}}], "clients": [{"podSelector": {}}]},
        "gateway": {"adminToken": {"existingSecret": "admin"}},
        "grpc": {"token": {"existingSecret": "index"}},
    },
    "open": {"grpc": {"open": True}},
    "single": {"gateway": {"replicas": 1}, "indexer": {"replicas": 1}, "pool": {"replicas": 1, "drainSeconds": 0}},
}
every_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def pod_specs(documents: list[Document]) -> dict[str, Document]:
    """The pod specs by component."""
    deployments = of_kind(documents, "Deployment").values()
    return {item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"] for item in deployments}


def containers(documents: list[Document]) -> Iterator[Document]:
    for template in pod_specs(documents).values():
        yield from template["spec"]["containers"]


def config_of(documents: list[Document]) -> Config:
    text = of_kind(documents, "ConfigMap")["warm-warmroute-config"]["data"]["config.yaml"]
    return Config.model_validate(yaml.safe_load(text))


def publishes(config: Config) -> WorkerConfig | AgentConfig:
    """The section of what publishes: the built-in worker's, or the agent's."""
    return config.agent if "agent" in config.model_fields_set else config.worker


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_lint(helm: Render, chart: Path) -> None:
    result = helm("lint", "--strict", str(chart))
    assert result.returncode == 0, result.stdout + result.stderr


@every_value_set
def test_kubernetes_accepts_every_object(values: Document, template: Render, tmp_path: Path) -> None:
    result = template(values)
    assert result.returncode == 0, result.stderr
    documents = [document for document in yaml.safe_load_all(result.stdout) if document]
    operator = [document for document in documents if document["apiVersion"].startswith("monitoring.coreos.com/")]
    path = tmp_path / "manifests.yaml"
    path.write_text(yaml.safe_dump_all([document for document in documents if document not in operator]))
    validator = Path(sys.executable).parent / "kubernetes-validate"
    for version in ("1.30", "1.37"):
        checked = subprocess.run(
            [validator, "-k", version, "--strict", path], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "WARN" not in checked.stdout + checked.stderr, "an object without a schema was not checked"


@every_value_set
def test_the_configuration_is_valid_and_finds_the_workers(values: Document, manifests: Manifests) -> None:
    documents = manifests(values)
    config = config_of(documents)
    (pool,) = config.gateway.pools
    assert pool.kubernetes is not None
    assert pool.kubernetes.namespace == "llm"
    selector = dict(term.split("=") for term in pool.kubernetes.selector.split(","))
    found = [name for name, item in pod_specs(documents).items() if matches(selector, item["metadata"]["labels"])]
    indexers = list(config.gateway.indexers)
    if values.get("pool", {}).get("engine") == "external":
        assert (found, selector, pool.kubernetes.port) == ([], {"app": "my-vllm", "tier": "gpu"}, 8000)
    else:
        assert found == ["worker"]
        engine, *_ = pod_specs(documents)["worker"]["spec"]["containers"]
        assert {"name": "http", "containerPort": pool.kubernetes.port} in engine["ports"]
        publisher = publishes(config)
        assert (publisher.pool, publisher.model) == (pool.name, pool.model)
        mounted = values.get("pool", {}).get("modelFiles", {}).get("volume")
        assert pool.model_path == (publisher.model_path if mounted else None)
        assert publisher.indexer is not None
        indexers.append(publisher.indexer)
    services = of_kind(documents, "Service")
    for address in indexers:
        name, port = address.split(":")
        assert [entry["port"] for entry in services[name]["spec"]["ports"]] == [int(port)]


def test_pods_listen_where_probes_and_services_reach_them(manifests: Manifests) -> None:
    config = config_of(manifests())
    for section in (config.gateway, config.indexer, config.worker):
        assert (section.host, section.admin_host) == ("0.0.0.0", "0.0.0.0")  # noqa: S104 - pods must
    for container, section in zip(
        [item for item in containers(manifests()) if item["name"] in {"gateway", "indexer", "worker"}],
        [config.gateway, config.indexer, config.worker],
        strict=True,
    ):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["admin"] == section.admin_port
        assert section.port in ports.values()


@every_value_set
def test_selectors_and_ports_lead_to_pods(values: Document, manifests: Manifests) -> None:
    documents = manifests(values)
    templates = pod_specs(documents)

    def selected(selector: dict[str, str]) -> list[Document]:
        return [item for item in templates.values() if matches(selector, item["metadata"]["labels"])]

    for deployment in of_kind(documents, "Deployment").values():
        template = deployment["spec"]["template"]
        assert matches(deployment["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
        for constraint in template["spec"]["topologySpreadConstraints"]:
            assert matches(constraint["labelSelector"]["matchLabels"], template["metadata"]["labels"])
        mounted = {mount["name"] for item in template["spec"]["containers"] for mount in item["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    for service in of_kind(documents, "Service").values():
        (target,) = selected(service["spec"]["selector"])
        names = {port["name"] for item in target["spec"]["containers"] for port in item.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for budget in of_kind(documents, "PodDisruptionBudget").values():
        assert len(selected(budget["spec"]["selector"]["matchLabels"])) == 1
    for policy in of_kind(documents, "NetworkPolicy").values():
        assert len(selected(policy["spec"]["podSelector"]["matchLabels"])) == 1
        for source in policy["spec"]["ingress"][0].get("from", ()):
            selector = source["podSelector"].get("matchLabels")  # {}: every pod, as values may say
            assert selector is None or len(selected(selector)) == 1
    for monitor in of_kind(documents, "PodMonitor").values():
        (target,) = selected(monitor["spec"]["selector"]["matchLabels"])
        names = {port["name"] for item in target["spec"]["containers"] for port in item.get("ports", ())}
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= names
    for ingress in of_kind(documents, "Ingress").values():
        backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        ports = of_kind(documents, "Service")[backend["name"]]["spec"]["ports"]
        assert backend["port"]["name"] in [port["name"] for port in ports]


def test_only_the_gateway_may_use_the_api_and_only_as_discovery_does(manifests: Manifests) -> None:
    documents = manifests()
    (role,) = of_kind(documents, "Role").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    (binding,) = of_kind(documents, "RoleBinding").values()
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["namespace"] == "llm"
    assert subject["name"] in of_kind(documents, "ServiceAccount")
    for component, template in pod_specs(documents).items():
        if component == "gateway":
            assert template["spec"]["serviceAccountName"] == subject["name"]
        else:
            assert template["spec"]["automountServiceAccountToken"] is False
    assert not of_kind(documents, "ClusterRole")


@every_value_set
def test_every_container_is_confined_and_probed(values: Document, manifests: Manifests) -> None:
    documents = manifests(values)
    for template in pod_specs(documents).values():
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        # With them a release called "warmroute" would set WARMROUTE_GATEWAY_PORT=tcp://... for the gateway.
        assert template["spec"]["enableServiceLinks"] is False
    for container in containers(documents):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        names = {port["name"] for port in container["ports"]}
        probes = [
            container[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe in container
        ]
        assert probes
        for probe in probes:
            assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in names


@every_value_set
def test_the_grace_period_covers_prestop_and_drain(values: Document, manifests: Manifests) -> None:
    documents = manifests(values)
    drain = {"gateway": config_of(documents).gateway.drain_seconds}
    for component, template in pod_specs(documents).items():
        grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        for container in template["spec"]["containers"]:
            sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            assert grace > sleep + drain.get(component, 0)


@pytest.mark.parametrize(("values", "section"), [("default", "WORKER"), ("vllm", "AGENT")])
def test_a_worker_knows_itself_as_discovery_does(values: str, section: str, manifests: Manifests) -> None:
    *_, publisher = pod_specs(manifests(VALUE_SETS[values]))["worker"]["spec"]["containers"]
    names = [entry["name"] for entry in publisher["env"]]
    env = {entry["name"]: entry for entry in publisher["env"]}
    assert env[f"WARMROUTE_{section}_WORKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert env["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert env[f"WARMROUTE_{section}_ADVERTISE_ADDRESS"]["value"] == "$(POD_IP):8100"
    # Kubernetes expands $(POD_IP) only from variables that stand before.
    assert names.index("POD_IP") < names.index(f"WARMROUTE_{section}_ADVERTISE_ADDRESS")


def test_redis_is_the_index_and_never_evicts(manifests: Manifests) -> None:
    documents = manifests()
    url = config_of(documents).redis.url
    host, port = re.fullmatch(r"redis://([^:]+):(\d+)/0", url).groups()  # type: ignore[union-attr]
    assert of_kind(documents, "Service")[host]["spec"]["ports"][0]["port"] == int(port)
    arguments = pod_specs(documents)["redis"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--maxmemory-policy") + 1] == "noeviction"
    assert arguments[arguments.index("--save") + 1] == ""


@pytest.mark.parametrize(
    ("values", "secret", "key"),
    [("external-redis", "warm-warmroute-redis-url", "url"), ("redis-secret", "mine", "address")],
)
def test_an_external_redis_stays_out_of_the_config_map(
    values: str, secret: str, key: str, manifests: Manifests
) -> None:
    documents = manifests(VALUE_SETS[values])
    assert "redis" not in pod_specs(documents)
    assert "secret@" not in json.dumps(of_kind(documents, "ConfigMap"))
    for part in ("gateway", "indexer"):
        env = pod_specs(documents)[part]["spec"]["containers"][0]["env"]
        assert env[0]["name"] == "WARMROUTE_REDIS_URL"
        assert env[0]["valueFrom"]["secretKeyRef"] == {"name": secret, "key": key}
    own = {"warm-warmroute-grpc-token"}
    assert set(of_kind(documents, "Secret")) - own == ({secret} if values == "external-redis" else set())


def test_a_gateway_setting_restarts_gateways_only(manifests: Manifests) -> None:
    def checksums(values: Document) -> dict[str, str]:
        items = pod_specs(manifests(values)).items()
        return {name: item["metadata"].get("annotations", {}).get("checksum/config") for name, item in items}

    before, after = checksums({}), checksums({"gateway": {"config": {"attempts": 2}}})
    assert {name for name in before if before[name] != after[name]} == {"gateway"}
    after = checksums({"pool": {"builtin": {"config": {"threads": 2}}}})
    assert {name for name in before if before[name] != after[name]} == {"worker"}


def test_large_numbers_survive_helm(manifests: Manifests) -> None:
    """Helm reads numbers as floats and writes 67108864 as 6.7108864e+07."""
    config = config_of(manifests(VALUE_SETS["everything"]))
    assert config.gateway.body_limit_bytes == 67_108_864
    assert config.indexer.log_entries == 100_000
    assert config.worker.kv_cache_tokens == 65_536


def test_the_built_in_model_is_where_the_image_has_it(manifests: Manifests, root: Path) -> None:
    folder = str(config_of(manifests()).worker.model_path)
    assert f'"{folder}"' in (root / "deploy" / "Dockerfile").read_text()
    assert config_of(manifests(VALUE_SETS["vllm"])).gateway.pools[0].model_path is None


def test_budgets_only_where_more_than_one_runs(manifests: Manifests) -> None:
    assert len(of_kind(manifests(), "PodDisruptionBudget")) == 3
    assert not of_kind(manifests(VALUE_SETS["single"]), "PodDisruptionBudget")


def test_autoscaling_owns_the_number_of_replicas(manifests: Manifests) -> None:
    documents = manifests(VALUE_SETS["everything"])
    assert "replicas" not in of_kind(documents, "Deployment")["warm-warmroute-gateway"]["spec"]
    (scaler,) = of_kind(documents, "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] == "warm-warmroute-gateway"


def test_the_dashboard_and_the_rules_are_shipped_whole(manifests: Manifests, root: Path) -> None:
    documents = manifests(VALUE_SETS["monitors"])
    shipped = of_kind(documents, "ConfigMap")["warm-warmroute-dashboard"]
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(shipped["data"]["warmroute.json"]) == json.loads(
        (root / "deploy/grafana/warmroute.json").read_text()
    )
    (rule,) = of_kind(documents, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((root / "deploy/prometheus/alerts.yaml").read_text())


def test_names_fit_however_long_the_release_is(manifests: Manifests) -> None:
    for document in manifests(release="r" * 53):
        assert len(document["metadata"]["name"]) <= 63
