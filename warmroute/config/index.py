"""The section of `warmroute index`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from warmroute.config.setting_types import HostPort, Name, Section


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
