"""The section of `warmroute indexer`."""

from __future__ import annotations

from pydantic import Field

from warmroute.config.setting_types import Port, Section


class IndexerConfig(Section):
    """The indexer: gRPC service and admin."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(50051, description="gRPC port")
    open: bool = Field(
        False,
        description="whether it starts without grpc.token_file and mutual TLS; whoever reaches it may then publish",
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin server")
    admin_port: Port = Field(8002, description="port of /healthz, /readyz, /metrics")
    parts: int = Field(
        1, ge=1, le=64, description="parts that each pool's index is split into; the same on every indexer"
    )
    log_entries: int = Field(65_536, ge=1000, le=1 << 40, description="entries kept in each part's log")
    log_bytes: int = Field(
        268_435_456, ge=1_048_576, le=1 << 48, description="memory of each part's log in Redis, in bytes"
    )
    late_drop_seconds: float = Field(600.0, ge=20, description="silence after which a worker is dropped")
    max_message_bytes: int = Field(
        1_048_576, ge=262_144, le=1_073_741_824, description="largest gRPC message, in bytes"
    )
    max_inflight_bytes: int = Field(
        4_194_304, ge=262_144, description="most bytes of messages worked on at once; processing takes 20 times as many"
    )
    max_streams: int = Field(2000, ge=1, description="most open streams of workers")
    model_files_bytes: int = Field(
        67_108_864,
        ge=0,
        le=1 << 40,
        description="memory in Redis of the tokenizer files that workers offer, of each pool, in bytes; 0 takes none",
    )
    drain_seconds: float = Field(5.0, ge=0, description="how long workers may take after SIGTERM to go elsewhere")
