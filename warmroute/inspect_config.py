"""The settings of the commands that look at a running deployment: `warmroute index` and `warmroute explain`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from warmroute.setting_types import HostPort, HttpUrl, Name, Section


class IndexConfig(Section):
    """What `warmroute index` looks at."""

    pool: Name | None = Field(None, description="only this pool; all of them when left out")
    indexers: tuple[HostPort, ...] = Field(
        (),
        description="host:port of the indexers, for loads and lag; else those of gateway.indexers, 127.0.0.1:50051",
    )
    model_path: Path | None = Field(
        None, description="folder with the pool's tokenizer.json, for --prompt; that of gateway.pools when left out"
    )


class ExplainConfig(Section):
    """Where `warmroute explain` asks, and for whom."""

    url: HttpUrl = Field("http://127.0.0.1:8001", description="a gateway's admin port")
    path: str = Field(
        "/v1/chat/completions", pattern="^/", description="path of the public port that the request would go to"
    )
    tenant: Name | None = Field(
        None, description="whose request it is, by name, where the gateway has tenants: their caches are kept apart"
    )
