"""The sections of `warmroute up` and `warmroute demo`, which run everything on one machine."""

from __future__ import annotations

from pydantic import Field

from warmroute.config.setting_types import PolicyName, Port, RedisUrl, Section


class UpConfig(Section):
    """Everything on this machine."""

    workers: int = Field(3, ge=1, le=16, description="workers to start, one process each")
    host: str = Field("127.0.0.1", description="address that all parts listen on")
    port: Port = Field(8000, description="port of the gateway's OpenAI API; its admin port is the next one")
    indexer_port: Port = Field(50051, description="gRPC port of the indexer")
    indexer_admin_port: Port = Field(8002, description="admin port of the indexer")
    worker_port: Port = Field(8100, description="port of the first worker's engine; the others follow")
    worker_admin_port: Port = Field(8003, description="admin port of the first worker; the others follow")
    redis_url: RedisUrl | None = Field(None, description="Redis or Valkey to use; an embedded server when left out")
    policy: PolicyName = Field("warm", description="routing policy")
    start_seconds: float = Field(180.0, gt=0, description="longest wait for all parts to be ready")


class DemoConfig(Section):
    """One scripted conversation, routed warm and round-robin."""

    workers: int = Field(3, ge=2, le=16, description="workers to start, one process each")
    max_tokens: int = Field(32, ge=1, le=512, description="tokens of each reply")
    pause_seconds: float = Field(1.0, ge=0, le=60, description="time the user takes to read a reply")
    redis_url: RedisUrl | None = Field(None, description="Redis or Valkey to use; an embedded server when left out")
    start_seconds: float = Field(180.0, gt=0, description="longest wait for all parts to be ready")
