"""Write the fields of the configuration model into the chart's values.schema.json: python deploy/helm/schema.py

`gateway.config`, `indexer.config`, `pool.builtin.config` and `pool.agent.config` in the values take any field of their
section except those that the chart sets itself; so a misspelt one is refused by helm, not by a pod that will not start.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from warmroute.config.agent import AgentConfig
from warmroute.config.gateway import GatewayConfig
from warmroute.config.indexer import IndexerConfig
from warmroute.config.worker import WorkerConfig

SCHEMA = Path(__file__).parent / "warmroute" / "values.schema.json"

LISTENING = {"host", "port", "admin_host", "admin_port"}
IDENTITY = {"advertise_address", "worker_id", "indexer", "pool", "model", "model_path", "index_block_tokens"}
SECTIONS: dict[str, tuple[type[BaseModel], set[str]]] = {
    "gatewayConfig": (GatewayConfig, LISTENING | {"indexers", "pools", "drain_seconds"}),
    "indexerConfig": (IndexerConfig, LISTENING),
    "workerConfig": (WorkerConfig, LISTENING | IDENTITY),
    "agentConfig": (
        AgentConfig,
        {"admin_host", "admin_port", "engine", "engine_url", "engine_key_file"} | IDENTITY,
    ),
}
"""By definition: the model, and the fields that the chart's templates own."""


def section_schema(model: type[BaseModel], owned: set[str]) -> dict[str, Any]:
    """The JSON schema of the fields left to the user. KeyError where an owned field is none of the model's."""
    properties = dict(model.model_json_schema()["properties"])
    for name in owned:
        del properties[name]
    for field in properties.values():
        field.pop("title", None)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def current(text: str) -> str:
    """The schema file's text with every section as the model has it now."""
    schema = json.loads(text)
    for name, (model, owned) in SECTIONS.items():
        schema["$defs"][name] = section_schema(model, owned)
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
