"""One pool of `gateway.pools`: its workers, its models, how its requests are routed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator

from warmroute.config.engines import EngineName
from warmroute.config.setting_types import HostPort, HubName, Name, PolicyName, Port, Section


class StaticWorker(Section):
    """A worker at a fixed address; host:port alone will do."""

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: object) -> object:
        return {"address": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # A JSON schema knows nothing of the validator above, and the Helm chart checks its values by it.
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(core_schema))]}

    address: HostPort = Field(description="host:port")
    worker_id: str | None = Field(None, description="the id it publishes under; joined by address when left out")


class KubernetesDiscoveryConfig(Section):
    """Find workers by watching pods."""

    namespace: Name = Field("default", description="namespace of the worker pods")
    selector: Name = Field(description="label selector, such as warmroute.dev/pool=main")
    port: Port = Field(8100, description="the engine's HTTP port in the pod")
    kubeconfig: Path | None = Field(None, description="kubeconfig file; in-cluster credentials when left out")


class Weights(Section):
    """Weights of `warm`'s cost, in tokens: pending + (1 + g + q + w n) uncached + decode_tokens n + memory_tokens over
    + the wait for a slot."""

    g: float | None = Field(
        None, ge=0, le=1e3, description="price of the blocks evicted to make room; measured when left out"
    )
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


class ModelFilesConfig(Section):
    """Whose tokenizer and chat templates are used."""

    trust: Literal["workers", "local"] = Field(
        "workers",
        description="workers: what they offer, after it was tried in a process of its own; local: model_path or "
        "tokenizer alone",
    )


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
    model_files: ModelFilesConfig = Field(ModelFilesConfig(), description="whose tokenizer and templates are used")
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
        None,
        description="the workers' engine, for the request fields it takes and the paths that tenants may use, whatever "
        "workers say; as they say in Hello when left out",
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
    def _check_workers(self) -> Self:
        addresses = Counter(worker.address for worker in self.workers)
        twice = sorted(address for address, count in addresses.items() if count > 1)
        if twice:
            raise ValueError(f"workers: {twice[0]} is there twice; name each address once")
        return self

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        if self.model_path is not None and self.tokenizer is not None:
            raise ValueError("model_path and tokenizer both say where the tokenizer is; leave one of them out")
        return self
