"""Write the configuration model into the chart's values.schema.json: python deploy/helm/schema.py

`gateway.config`, `pool.config`, `indexer.config`, `pool.builtin.config` and `pool.agent.config` in the values take
every field of their section except those that the chart sets itself, and the templates copy them as they are. So a new
setting needs this script alone, and helm refuses a misspelt one before a pod fails to start.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from warmroute.config.agent import AgentConfig
from warmroute.config.engines import CHART_ENGINES
from warmroute.config.gateway import GatewayConfig
from warmroute.config.indexer import IndexerConfig
from warmroute.config.pool import PoolConfig
from warmroute.config.worker import WorkerConfig

SCHEMA = Path(__file__).parent / "warmroute" / "values.schema.json"

LISTENING = dict.fromkeys(("host", "port", "admin_host", "admin_port"), "what probes and Services expect")
WORKER = {
    "advertise_address": "the pod's address",
    "worker_id": "the pod's UID",
    "indexer": "the release's indexer",
    "pool": "pool.name",
    "model": "pool.model",
    "model_path": "pool.modelFiles",
    "index_block_tokens": "pool.indexBlockTokens",
}
SECTIONS: dict[str, tuple[type[BaseModel], dict[str, str]]] = {
    "gatewayConfig": (
        GatewayConfig,
        LISTENING
        | {
            "indexers": "the release's indexer",
            "pools": "pool",
            "drain_seconds": "gateway.drainSeconds",
            "tls_cert_file": "gateway.tls",
            "tls_key_file": "gateway.tls",
            "admin_token": "gateway.adminToken",
            "admin_token_file": "gateway.adminToken",
        },
    ),
    "poolConfig": (
        PoolConfig,
        {
            "name": "pool.name",
            "model": "pool.model",
            "model_path": "pool.modelFiles",
            "policy": "pool.policy",
            "pinning": "pool.pinning",
            "upstream_key_file": "pool.engineKey",
            "kubernetes": "the release's workers, or pool.external",
        },
    ),
    "indexerConfig": (IndexerConfig, LISTENING | {"open": "grpc.open"}),
    "workerConfig": (WorkerConfig, LISTENING | WORKER),
    "agentConfig": (
        AgentConfig,
        {name: LISTENING[name] for name in ("admin_host", "admin_port")}
        | WORKER
        | {"engine": "pool.engine", "engine_url": "the server beside it", "engine_key_file": "pool.engineKey"},
    ),
}
"""By definition: the model, and the fields that the chart sets, each with the value that it is set from."""

VALUES: dict[str, tuple[type[BaseModel], str]] = {
    "poolPolicy": (PoolConfig, "policy"),
    "poolPinning": (PoolConfig, "pinning"),
    "indexBlockTokens": (AgentConfig, "index_block_tokens"),
}
"""By definition: the field that a value of the chart stands for."""

ENGINES = (*CHART_ENGINES, "external")
"""Of `pool.engine`. A test renders the chart with each."""


def without_references(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema with nested models in place and without titles, which only repeat names."""
    if isinstance(node, list):
        return [without_references(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: value for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if "$ref" in node:
        node = definitions[node.pop("$ref").removeprefix("#/$defs/")] | node
        return without_references(node, definitions)
    return {key: without_references(value, definitions) for key, value in node.items()}


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of each field."""
    schema = model.model_json_schema()
    properties: dict[str, Any] = without_references(schema["properties"], schema.get("$defs", {}))
    return properties


def section_schema(model: type[BaseModel], owned: dict[str, str]) -> dict[str, Any]:
    """The JSON schema of the fields left to the user. KeyError where an owned field is none of the model's."""
    properties = fields(model)
    for name in owned:
        del properties[name]
    others = "; ".join(f"{name}: {value}" for name, value in owned.items())
    return {
        "description": f"fields of {model.__name__}. The chart sets the others: {others}",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def current(text: str) -> str:
    """The schema file's text with every generated definition as the model has it now."""
    schema = json.loads(text)
    for name, (model, owned) in SECTIONS.items():
        schema["$defs"][name] = section_schema(model, owned)
    for name, (model, field) in VALUES.items():
        schema["$defs"][name] = fields(model)[field]
    schema["$defs"]["poolEngine"] = {"description": "the workers' engine; external: pods of yours", "enum": [*ENGINES]}
    return json.dumps(schema, indent=2) + "\n"


def main() -> int:
    """Write the file; with --check only say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the file is not current")
    check = parser.parse_args().check
    before = SCHEMA.read_text()
    after = current(before)
    if check and before != after:
        print(f"{SCHEMA} is not current: run python deploy/helm/schema.py", file=sys.stderr)
        return 1
    if not check:
        SCHEMA.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
