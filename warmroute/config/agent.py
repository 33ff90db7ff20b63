"""The section of `warmroute agent`: a foreign engine made a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from warmroute.config.engines import AgentEngineName
from warmroute.config.setting_types import (
    DEFAULT_INDEX_BLOCK_TOKENS,
    HostPort,
    HostPorts,
    HttpUrl,
    Name,
    Port,
    Section,
    ZmqEndpoint,
)


class AgentConfig(Section):
    """An agent beside a foreign engine, which it makes a worker."""

    engine: AgentEngineName = Field("vllm", description="the engine; openai for any other, which is then guessed at")
    engine_url: HttpUrl = Field("http://127.0.0.1:8000", description="URL of the engine's OpenAI API, without /v1")
    engine_key_file: Path | None = Field(
        None, description="file with the key that the engine wants as Authorization: Bearer; read at the start"
    )
    indexer: HostPorts = Field(
        "127.0.0.1:50051",
        description="host:port of the indexer, or several with commas between; a name may resolve to many replicas",
    )
    pool: Name = Field("default", description="the pool this worker belongs to")
    model: Name | None = Field(None, description="public name of the base model; as the engine says when left out")
    model_path: Path | None = Field(
        None, description="folder with the model's tokenizer.json; the engine's own path when it can be read here"
    )
    worker_id: str | None = Field(
        None, min_length=1, max_length=240, description="unique id, such as the pod's UID; random when left out"
    )
    advertise_address: HostPort | None = Field(
        None, description="host:port of the engine that gateways know; engine_url's when left out"
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin server")
    admin_port: Port = Field(8003, description="port of /healthz, /readyz, /metrics")
    index_block_tokens: int = Field(DEFAULT_INDEX_BLOCK_TOKENS, ge=16, le=1024, description="tokens in an index block")
    engine_block_tokens: int | None = Field(
        None, ge=1, le=4096, description="tokens in one of the engine's KV blocks; as the engine says when left out"
    )
    cache_tokens: int | None = Field(
        None, ge=1, description="tokens that one rank's cache holds on the device; as the engine says when left out"
    )
    host_cache_tokens: int = Field(
        0, ge=0, description="tokens that one rank's cache holds in main memory, to index those too; 0: not indexed"
    )
    events_endpoint: ZmqEndpoint | None = Field(
        None, description="ZMQ endpoint of rank 0's events; further ranks follow by port; discovered when left out"
    )
    events_bind: bool = Field(False, description="whether the engine connects to events_endpoint, so that we bind it")
    replay_endpoint: ZmqEndpoint | None = Field(None, description="ZMQ endpoint of rank 0's replay, likewise")
    ranks: int | None = Field(None, ge=1, le=256, description="data-parallel ranks; as the engine says when left out")
    load_interval_seconds: float = Field(0.25, ge=0.1, le=10, description="time between readings of the metrics")
    engine_timeout_seconds: float = Field(5.0, gt=0, le=60, description="longest wait for an answer of the engine")

    @model_validator(mode="after")
    def _check_endpoints(self) -> Self:
        if self.events_endpoint is None and (self.events_bind or self.replay_endpoint is not None):
            raise ValueError("events_endpoint: give it too, or leave out events_bind and replay_endpoint")
        return self
