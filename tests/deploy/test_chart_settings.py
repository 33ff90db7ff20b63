"""The chart beside the configuration model: which settings can be set from values, and that they reach the file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from tests.deploy.test_chart import CLAIM, Manifests, config_of, pod_specs
from warmroute.config.engines import CHART_ENGINES
from warmroute.config.pool import PoolConfig
from warmroute.config.setting_types import PolicyName

Document = dict[str, Any]

EXTERNAL: Document = {"engine": "external", "external": {"selector": "app=mine"}}
POOL: Document = {
    "weights": {"g": 2.5, "w": 0, "memory_tokens": 1_000_000},
    "cost": "tokens",
    "aliases": {"gpt-4o": "smollm2-135m-instruct", "small": "adapter"},
    "media": {"image": {"placeholder": "<image>", "repeat": "<image_pad>", "tokens": 576}},
    "tokenizer": "org/name@main",
    "engine": "vllm",
    "retry_ratio": 0,
    "retries_per_second": 0.5,
    "upstream_tls": {"ca_file": "/etc/engines/ca.crt", "server_name": "engines.internal"},
    "workers": ["10.0.0.7:8000", {"address": "10.0.0.8:8000", "worker_id": "eight"}],
}
"""Settings of a pool of every shape: numbers, mappings, nested sections, lists, choices."""

OWNED: dict[str, Document] = {
    "gatewayConfig": {"gateway": {"tls": {"existingSecret": "public"}, "adminToken": {"existingSecret": "admin"}}},
    "poolConfig": {"pool": {"pinning": False, "modelFiles": {"volume": CLAIM}, "engineKey": {"existingSecret": "key"}}},
    "indexerConfig": {"grpc": {"open": True}},
    "workerConfig": {},
    "agentConfig": {
        "pool": {"engine": "vllm", "modelFiles": {"volume": CLAIM}, "engineKey": {"existingSecret": "key"}}
    },
}
"""By section: values with which the chart sets everything that it keeps to itself."""


@pytest.fixture(scope="module")
def generator(root: Path) -> ModuleType:
    """deploy/helm/schema.py, which is a script."""
    spec = importlib.util.spec_from_file_location("chart_schema", root / "deploy" / "helm" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def definitions(chart: Path) -> Document:
    found: Document = json.loads((chart / "values.schema.json").read_text())["$defs"]
    return found


def section_of(documents: list[Document], name: str) -> tuple[BaseModel, set[str]]:
    """A section as the rendered file has it, and the fields set there or by the container's environment."""
    config = config_of(documents)
    section: BaseModel
    if name == "poolConfig":
        (section,) = config.gateway.pools
        return section, section.model_fields_set
    part = name.removesuffix("Config")
    section = getattr(config, part)
    template = pod_specs(documents)["worker" if part == "agent" else part]
    prefix = f"WARMROUTE_{part.upper()}_"
    names = {entry["name"] for container in template["spec"]["containers"] for entry in container.get("env", ())}
    environment = {entry.removeprefix(prefix).lower() for entry in names if entry.startswith(prefix)}
    return section, section.model_fields_set | environment


def put(name: str, settings: Document) -> Document:
    """Values that have the settings of a section."""
    if name in {"gatewayConfig", "indexerConfig"}:
        return {name.removesuffix("Config"): {"config": settings}}
    if name == "poolConfig":
        return {"pool": {**EXTERNAL, "config": settings}}
    if name == "workerConfig":
        return {"pool": {"builtin": {"config": settings}}}
    return {"pool": {"engine": "vllm", "server": {"model": "a/b"}, "agent": {"config": settings}}}


@pytest.mark.parametrize("name", OWNED)
def test_every_field_can_be_set_or_is_one_that_the_chart_sets(
    name: str, generator: ModuleType, definitions: Document, manifests: Manifests
) -> None:
    model, owned = generator.SECTIONS[name]
    settable = set(definitions[name]["properties"])
    assert settable | set(owned) == set(model.model_fields)
    assert not settable & set(owned)
    assert all(owned.values()), "each with what sets it"
    # So no field can be kept from the user that the chart does not set.
    _, present = section_of(manifests(OWNED[name]), name)
    # A secret that it gives as a file may not stand in the values.
    present |= {field.removesuffix("_file") for field in present}
    assert set(owned) <= present


def test_every_section_is_checked(generator: ModuleType) -> None:
    assert set(OWNED) == set(generator.SECTIONS)


@pytest.mark.parametrize("name", OWNED)
def test_every_default_can_be_given_and_reaches_the_file(
    name: str, definitions: Document, manifests: Manifests
) -> None:
    settings = {
        field: schema["default"]
        for field, schema in definitions[name]["properties"].items()
        if schema.get("default") is not None
    }
    section, present = section_of(manifests(put(name, settings)), name)
    assert settings.keys() <= present
    given = section.model_dump(mode="json")
    assert {field: given[field] for field in settings} == settings


def test_settings_of_every_shape_reach_the_file(manifests: Manifests) -> None:
    documents = manifests({"pool": {**EXTERNAL, "policy": "prefix_only", "pinning": True, "config": POOL}})
    (pool,) = config_of(documents).gateway.pools
    rest = {
        "name": "main",
        "model": "smollm2-135m-instruct",
        "policy": "prefix_only",
        "pinning": True,
        "kubernetes": {"namespace": "llm", "selector": "app=mine", "port": 8000},
    }
    assert pool == PoolConfig.model_validate(POOL | rest)


def test_a_setting_of_the_pool_restarts_gateways_only(manifests: Manifests) -> None:
    def checksums(values: Document) -> dict[str, str | None]:
        items = pod_specs(manifests(values)).items()
        return {name: item["metadata"].get("annotations", {}).get("checksum/config") for name, item in items}

    before, after = checksums({}), checksums({"pool": {"config": {"cost": "tokens"}}})
    assert {name for name in before if before[name] != after[name]} == {"gateway"}


def test_a_file_that_a_setting_names_can_be_mounted(manifests: Manifests) -> None:
    tls = {"ca_file": "/etc/engines/ca.crt"}
    mount = {"name": "engines", "mountPath": "/etc/engines", "readOnly": True}
    volume = {"name": "engines", "secret": {"secretName": "engines-ca"}}
    values = {
        "gateway": {"extraVolumes": [volume], "extraVolumeMounts": [mount]},
        "pool": {**EXTERNAL, "config": {"upstream_tls": tls}},
    }
    spec = pod_specs(manifests(values))["gateway"]["spec"]
    assert volume in spec["volumes"]
    assert mount in spec["containers"][0]["volumeMounts"]


def test_choices_are_those_of_the_model(definitions: Document, chart: Path) -> None:
    assert definitions["poolPolicy"]["enum"] == list(get_args(PolicyName))
    assert definitions["poolEngine"]["enum"] == [*CHART_ENGINES, "external"]
    (row,) = (line for line in (chart / "README.md").read_text().splitlines() if line.startswith("| `pool.engine` |"))
    assert all(f"`{engine}`" in row for engine in definitions["poolEngine"]["enum"])


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_every_policy_can_be_chosen(policy: str, manifests: Manifests) -> None:
    assert config_of(manifests({"pool": {"policy": policy}})).gateway.pools[0].policy == policy


@pytest.mark.parametrize("engine", CHART_ENGINES)
def test_every_engine_can_be_run(engine: str, manifests: Manifests) -> None:
    documents = manifests({"pool": {"engine": engine, "server": {"image": "an-image", "model": "org/name"}}})
    names = [container["name"] for container in pod_specs(documents)["worker"]["spec"]["containers"]]
    if engine == "builtin":
        assert names == ["worker"]
    else:
        assert names == [engine, "agent"]
        assert config_of(documents).agent.engine == engine


def test_the_example_in_the_readme_works(chart: Path, manifests: Manifests) -> None:
    _, _, section = (chart / "README.md").read_text().partition("## Settings\n")
    values = yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])
    config = config_of(manifests(values))
    assert config.gateway.attempts == 2
    assert config.gateway.pools[0].upstream_tls is not None
