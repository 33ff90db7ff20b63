"""The section of `warmroute gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from warmroute.config.pool import PoolConfig
from warmroute.config.secret import Secret
from warmroute.config.setting_types import HostPort, Port, Section


class GatewayConfig(Section):
    """The gateway: OpenAI API, admin, routing."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(8000, description="port of the OpenAI API")
    processes: int = Field(
        1, ge=1, le=64, description="processes that share the port, each with the whole index in its memory"
    )
    unix_socket: Path | None = Field(None, description="path of a Unix socket to serve the OpenAI API on as well")
    tls_cert_file: Path | None = Field(
        None, description="PEM file of the certificate chain that clients see; read again when it changes"
    )
    tls_key_file: Path | None = Field(None, description="PEM file of its private key, not encrypted")
    access_log: Literal["off", "json"] | Path = Field(
        "off", description="off, json (one line a request on standard output) or the path of a file"
    )
    decision_log: Path | None = Field(
        None,
        description="file of all decisions and their outcome, for `warmroute replay`; written nowhere when left out",
    )
    decisions_kept: int = Field(1000, ge=0, le=100_000, description="latest decisions kept in memory, for /decisions")
    decision_header: bool = Field(
        True, description="whether a client that sends x-warmroute-explain: 1 is told the decision; it shows loads"
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin server")
    admin_port: Port = Field(8001, description="port of /healthz, /readyz, /metrics, /explain, /decisions")
    admin_token: Secret = Field(
        None, repr=False, description="token that the admin port asks for; better given as a file"
    )
    admin_token_file: Path | None = Field(
        None,
        description="file with the token that the admin port asks for, any line of it, on all paths but /healthz, "
        "/readyz and /metrics; nothing is asked for when left out",
    )
    indexers: tuple[HostPort, ...] = Field(
        ("127.0.0.1:50051",), description="host:port of the indexer; a name may resolve to many replicas"
    )
    pools: tuple[PoolConfig, ...] = Field((), description="pools to serve")
    header_limit_bytes: int = Field(65_536, ge=1024, description="largest request head, in bytes")
    body_limit_bytes: int = Field(33_554_432, ge=1024, description="largest request body, in bytes")
    uploads_limit_bytes: int = Field(
        1_073_741_824,
        ge=1024,
        description="most bytes of request bodies held in each process, from their arrival until their reply begins; "
        "beyond: 503 for the slowest upload of who holds most",
    )
    client_uploads_limit_bytes: int = Field(
        0,
        ge=0,
        description="those of one tenant, or of one address without keys; beyond: 429; 0: half of uploads_limit_bytes",
    )
    client_idle_seconds: float = Field(75.0, gt=0, description="keep-alive without a request")
    client_read_seconds: float = Field(30.0, gt=0, description="longest wait for the rest of a request")
    connect_seconds: float = Field(2.0, gt=0, description="deadline of a connection to a worker")
    first_byte_seconds: float = Field(300.0, gt=0, description="longest wait for a reply's first byte")
    stream_idle_seconds: float = Field(300.0, gt=0, description="longest silence within a reply")
    total_seconds: float = Field(0.0, ge=0, description="longest time from a request's arrival to its end; 0: no limit")
    upstream_idle_seconds: float = Field(30.0, gt=0, description="how long idle connections to workers are kept")
    prompt_budget_seconds: float = Field(
        0.1, gt=0, description="time for template, tokens and keys; past it a request is routed by load"
    )
    attempts: int = Field(3, ge=1, le=10, description="workers tried before the first byte")
    unready_seconds: float = Field(
        0.0, ge=0, description="how long to accept requests after SIGTERM while /readyz fails already"
    )
    drain_seconds: float = Field(30.0, ge=0, description="how long streams may finish after that")

    @property
    def client_uploads_limit(self) -> int:
        """`client_uploads_limit_bytes`, with its default."""
        half = max(self.uploads_limit_bytes // 2, self.body_limit_bytes)
        return self.client_uploads_limit_bytes or half

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together; set both or neither")
        return self

    @model_validator(mode="after")
    def _check_logs(self) -> Self:
        if self.access_log == Path():
            raise ValueError("access_log: give off, json or the path of a file")
        if self.decision_log == Path():
            raise ValueError("decision_log: give the path of a file, or leave it out")
        return self

    @model_validator(mode="after")
    def _check_uploads(self) -> Self:
        if self.uploads_limit_bytes < self.body_limit_bytes:
            raise ValueError(
                "uploads_limit_bytes: less than body_limit_bytes, so that no body of that size could arrive; give more"
            )
        if 0 < self.client_uploads_limit_bytes < self.body_limit_bytes:
            raise ValueError(
                "client_uploads_limit_bytes: less than body_limit_bytes, so that no client could send a body of that "
                "size; give more, or 0"
            )
        return self

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        if self.processes > 1 and self.unix_socket is not None:
            raise ValueError(
                "processes: several cannot share a Unix socket; leave out unix_socket or set processes to 1"
            )
        if self.processes > 1 and self.port == 0:
            raise ValueError("processes: several cannot share a port that the system chooses; set port")
        return self

    @model_validator(mode="after")
    def _check_pools(self) -> Self:
        for field in ("name", "model"):
            values = [getattr(pool, field) for pool in self.pools]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"pools: two pools have the {field} {value!r}; give each its own")
        names = [pool.model for pool in self.pools]
        names += [alias for pool in self.pools for alias in pool.aliases]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pools: two models have the public name {name!r}; change one in pools.aliases")
        return self
