"""How the chart runs vLLM, SGLang and TensorRT-LLM with an agent beside them, and how an agent is added to others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import VALUE_SETS, Manifests, config_of, of_kind, pod_specs
from warmroute.config.agent import AgentConfig
from worker.adapters.engines import vllm
from worker.adapters.sources import EventSource

SERVERS = ("vllm", "vllm-volume", "sglang", "tensorrt-llm")


def server_and_agent(name: str, manifests: Manifests) -> tuple[dict[str, Any], dict[str, Any], AgentConfig]:
    documents = manifests(VALUE_SETS[name])
    server, agent = pod_specs(documents)["worker"]["spec"]["containers"]
    return server, agent, config_of(documents).agent


def argument(container: dict[str, Any], flag: str) -> str:
    """What follows a flag."""
    return str(container["args"][container["args"].index(flag) + 1])


@pytest.mark.parametrize("name", SERVERS)
def test_the_agent_reads_the_server_beside_it(name: str, manifests: Manifests) -> None:
    server, agent, config = server_and_agent(name, manifests)
    assert agent["args"][:2] == ["agent", "--config"]
    assert config.engine == server["name"] == VALUE_SETS[name]["pool"]["engine"]
    assert config.engine_url == f"http://127.0.0.1:{argument(server, '--port')}"
    assert {"name": "http", "containerPort": int(argument(server, "--port"))} in server["ports"]
    named = "--served_model_name" if name == "tensorrt-llm" else "--served-model-name"
    assert argument(server, named) == config.model
    assert {"name": "admin", "containerPort": config.admin_port} in agent["ports"]
    assert config.admin_host == "0.0.0.0"  # noqa: S104 - pods must


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_server_publishes_where_the_agent_reads(name: str, manifests: Manifests) -> None:
    server, _, config = server_and_agent(name, manifests)
    events = json.loads(argument(server, "--kv-events-config"))
    # SGLang has no such field: it publishes when it has the others.
    assert events.get("enable_kv_cache_events", name == "sglang") is True
    answer = {"0": {"enable_kv_cache_events": True, **events}}
    expected = EventSource(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    (found,) = vllm.read_sources(answer, config.engine_url)
    assert (found.events, found.replay, found.bind) == (expected.events, expected.replay, False)


def test_servers_ask_for_their_gpus_and_agents_for_none(manifests: Manifests) -> None:
    server, agent, config = server_and_agent("vllm-volume", manifests)
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "nvidia.com/gpu" not in agent["resources"]["limits"]
    assert config.host_cache_tokens == 1_000_000


def test_the_model_is_where_server_agent_and_gateway_read_it(manifests: Manifests) -> None:
    for name, flag in (("vllm-volume", "--model"), ("sglang", "--model-path")):
        server, agent, config = server_and_agent(name, manifests)
        gateway = config_of(manifests(VALUE_SETS[name])).gateway.pools[0]
        assert argument(server, flag) == str(config.model_path) == str(gateway.model_path)
        assert "/models" in {mount["mountPath"] for mount in agent["volumeMounts"]}
    server, agent, config = server_and_agent("vllm", manifests)
    # A model of the hub: the agent finds the tokenizer in the server's downloads, which it only reads.
    assert config.model_path is None
    homes = [{entry["name"]: entry.get("value") for entry in item["env"]}["HF_HOME"] for item in (server, agent)]
    assert homes == ["/cache/huggingface"] * 2
    mounts = [{mount["name"]: mount for mount in item["volumeMounts"]}["cache"] for item in (server, agent)]
    assert [(mount["mountPath"], mount.get("readOnly", False)) for mount in mounts] == [
        ("/cache", False),
        ("/cache", True),
    ]


def test_sglang_takes_its_key_from_the_secret(manifests: Manifests) -> None:
    server, _, config = server_and_agent("sglang", manifests)
    assert argument(server, "--api-key") == "$(ENGINE_KEY)"
    (key,) = (entry["valueFrom"] for entry in server["env"] if entry["name"] == "ENGINE_KEY")
    assert key == {"secretKeyRef": {"name": "engines", "key": "key"}}
    assert server["args"][-1] == "--tp-size=2"
    assert config.index_block_tokens % int(argument(server, "--page-size")) == 0


def test_tensorrt_llm_gets_an_options_file_that_tells_of_its_blocks(manifests: Manifests) -> None:
    server, _, config = server_and_agent("tensorrt-llm", manifests)
    documents = manifests(VALUE_SETS["tensorrt-llm"])
    text = of_kind(documents, "ConfigMap")["warm-warmroute-config"]["data"]["tensorrt-llm.yaml"]
    cache = yaml.safe_load(text)["kv_cache_config"]
    assert cache == {"enable_block_reuse": True, "event_buffer_max_size": 16384, "free_gpu_memory_fraction": 0.8}
    assert argument(server, "--extra_llm_api_options") in {mount["mountPath"] for mount in server["volumeMounts"]}
    assert config.cache_tokens == 500_000


def test_a_setting_of_the_agent_restarts_the_workers(manifests: Manifests) -> None:
    def checksums(changes: dict[str, Any]) -> dict[str, str | None]:
        values = {"pool": {**VALUE_SETS["tensorrt-llm"]["pool"], **changes}}
        items = pod_specs(manifests(values)).items()
        return {name: item["metadata"].get("annotations", {}).get("checksum/config") for name, item in items}

    before = checksums({})
    for changes in ({"agent": {"config": {"cache_tokens": 1}}}, {"server": {"image": "trt:test", "options": {"x": 1}}}):
        after = checksums(changes)
        assert {name for name in before if before[name] != after[name]} == {"worker"}


def test_external_engines_are_only_watched(manifests: Manifests) -> None:
    documents = manifests(VALUE_SETS["external"])
    assert set(pod_specs(documents)) == {"gateway", "indexer", "redis"}
    for kind in ("PodMonitor", "PodDisruptionBudget"):
        assert set(of_kind(documents, kind)) == {"warm-warmroute-gateway", "warm-warmroute-indexer"}


def test_the_container_in_the_documentation_is_an_agent_that_starts(root: Path, manifests: Manifests) -> None:
    text = (root / "docs" / "engines.md").read_text(encoding="utf-8")
    (container,) = (
        document[0]
        for document in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
        if isinstance(document, list) and document[0].get("args") == ["agent"]
    )
    prefix = "WARMROUTE_AGENT_"
    given = {entry["name"]: entry.get("value", "10.0.0.1") for entry in container["env"]}
    pod_ip = given.pop("POD_IP")
    del given["WARMROUTE_GRPC_TOKEN"]
    (token,) = (
        entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] == "WARMROUTE_GRPC_TOKEN"
    )
    (secret,) = of_kind(manifests(VALUE_SETS["external"]), "Secret").values()
    assert token == {"name": secret["metadata"]["name"], "key": "token"}
    assert all(name.startswith(prefix) for name in given)
    settings = {name.removeprefix(prefix).lower(): value for name, value in given.items()}
    config = AgentConfig(**{name: str(value).replace("$(POD_IP)", pod_ip) for name, value in settings.items()})
    assert config.advertise_address == f"10.0.0.1:{config.engine_url.rpartition(':')[2]}"
    assert {"name": "admin", "containerPort": config.admin_port} in container["ports"]
    (uid,) = (entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"] if "WORKER_ID" in entry["name"])
    assert uid == "metadata.uid"
