"""The chart's face to its user: values that are refused by name, a README that lists them all, notes that are true."""

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

Document = dict[str, Any]
Render = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway": {"replica": 3}}, "replica"),
        ({"gateway": {"config": {"atempts": 3}}}, "atempts"),
        ({"gateway": {"config": {"attempts": 0}}}, "attempts"),
        ({"gateway": {"config": {"pools": []}}}, "pools"),
        ({"indexer": {"config": {"port": 1}}}, "port"),
        ({"indexer": {"config": {"open": True}}}, "open"),
        ({"gateway": {"config": {"admin_token": "0123456789"}}}, "admin_token"),
        ({"networkPolicy": {"clients": {}}}, "clients"),
        ({"pool": {"builtin": {"config": {"worker_id": "x"}}}}, "worker_id"),
        ({"pool": {"engine": "sgl"}}, "engine"),
        ({"pool": {"policy": "wram"}}, "policy"),
        ({"gateway": {"config": {"tls_cert_file": "/x"}}}, "tls_cert_file"),
        ({"gateway": {"extraVolumes": [{"name": "x"}]}}, "extraVolumes"),
        ({"gateway": {"extraVolumeMounts": [{"name": "x", "path": "/x"}]}}, "path"),
        ({"pool": {"config": {"policy": "warm"}}}, "policy"),
        ({"pool": {"config": {"kubernetes": {}}}}, "kubernetes"),
        ({"pool": {"config": {"cost": "seconds"}}}, "cost"),
        ({"pool": {"config": {"weights": {"h": 1}}}}, "'h'"),
        ({"pool": {"config": {"weights": {"g": "1"}}}}, "weights/g"),
        ({"pool": {"config": {"media": {"smell": {"placeholder": "x", "tokens": 1}}}}}, "smell"),
        ({"pool": {"config": {"media": {"image": {"placeholder": "x"}}}}}, "tokens"),
        ({"pool": {"config": {"upstream_tls": {"verfy": True}}}}, "verfy"),
        ({"pool": {"config": {"workers": [{"adress": "10.0.0.7:8000"}]}}}, "adress"),
        (
            {"pool": {"config": {"upstream_tls": {}}}},
            "pool.config.upstream_tls is {}: it describes engines of yours; leave it out, or set pool.engine to",
        ),
        (
            {"pool": {"config": {"engine": "vllm"}}},
            'pool.config.engine is "vllm": it describes engines of yours; leave it out, or set pool.engine to external',
        ),
        (
            {"pool": {"config": {"tokenizer": "a/b"}, "modelFiles": {"volume": {"emptyDir": {}}}}},
            'pool.config.tokenizer is "a/b", but pool.modelFiles.volume has a tokenizer too; leave one of them out',
        ),
        ({"pool": {"agent": {"config": {"engine_url": "http://x"}}}}, "engine_url"),
        ({"pool": {"agent": {"config": {"load_interval_seconds": 0}}}}, "load_interval_seconds"),
        ({"pool": {"name": "Not A Label"}}, "name"),
        ({"pool": {"modelFiles": {"volume": {"emptyDir": {}, "hostPath": {}}}}}, "volume"),
        ({"pool": {"gpu": {"counts": 1}}}, "counts"),
        ({"monitoring": {"podMonitor": {"enabled": "yes"}}}, "enabled"),
        ({"redis": {"enabled": False}}, "redis.externalUrl"),
        ({"redis": {"externalUrl": "http://redis"}}, "externalUrl"),
        ({"pool": {"engine": "vllm"}}, "pool.server.model"),
        ({"pool": {"engine": "sglang", "server": {"model": "a/b"}}}, "pool.server.image"),
        ({"pool": {"engine": "external"}}, "pool.external.selector"),
        (
            {
                "pool": {
                    "engine": "tensorrt-llm",
                    "server": {"image": "x", "model": "a/b"},
                    "engineKey": {"existingSecret": "x"},
                }
            },
            "pool.engineKey",
        ),
    ],
)
def test_mistaken_values_are_refused_by_name(values: Document, complaint: str, template: Render) -> None:
    result = template(values)
    assert result.returncode != 0
    assert complaint in result.stderr


def test_every_object_of_the_schema_refuses_unknown_names(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())

    def walk(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                yield path
            for key, child in node.items():
                yield from walk(child, f"{path}/{key}")

    assert list(walk(schema, "")) == []


def test_the_schema_has_the_fields_of_the_configuration_model(root: Path) -> None:
    script = root / "deploy" / "helm" / "schema.py"
    result = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


def leaves(values: Document, path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in {"resources", "labels"}:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key


def test_the_readme_lists_exactly_the_values(chart: Path) -> None:
    values = set(leaves(yaml.safe_load((chart / "values.yaml").read_text())))
    shared = {"nodeSelector", "tolerations", "affinity", "podAnnotations"}
    values = {value for value in values if value.rpartition(".")[2] not in shared}
    rows = [line.split("|")[1] for line in (chart / "README.md").read_text().splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(listed) == sorted(values)


def test_the_schema_knows_exactly_the_values(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())

    def names(node: Document, values: Any, path: str) -> None:
        if "properties" not in node or not isinstance(values, dict):
            return
        allowed = set(node["properties"]) - ({"global"} if not path else set())
        assert set(values) == allowed, path
        for key, child in values.items():
            names(node["properties"][key], child, f"{path}.{key}")

    names(schema, yaml.safe_load((chart / "values.yaml").read_text()), "")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("pool.engine=builtin", "2 builtin worker(s)"),
        ("pool.engine=vllm,pool.server.model=a/b", "http://127.0.0.1:8003/readyz"),
        ("pool.engine=external,pool.external.selector=app=x", "needs `warmroute agent` beside its engine"),
    ],
)
def test_notes_say_what_to_try_and_what_is_missing(values: str, said: str, helm: Render, chart: Path) -> None:
    result = helm("install", "warm", str(chart), "--dry-run=client", "--set", values)
    assert result.returncode == 0, result.stderr
    notes = result.stdout.partition("NOTES:")[2]
    assert said in notes
    assert "curl -i http://127.0.0.1:8000/v1/chat/completions" in notes
    body = re.search(r"-d '(\{.*\})'", notes)
    assert body is not None
    assert json.loads(body[1])["model"] == "smollm2-135m-instruct"
