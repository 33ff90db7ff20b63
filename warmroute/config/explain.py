"""The section of `warmroute explain`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from warmroute.config.secret import Secret
from warmroute.config.setting_types import HttpUrl, Name, Section


class ExplainConfig(Section):
    """Where `warmroute explain` asks, and for whom."""

    url: HttpUrl = Field("http://127.0.0.1:8001", description="a gateway's admin port")
    token: Secret = Field(
        None, repr=False, description="the admin port's token; better given as a file, since others see flags"
    )
    token_file: Path | None = Field(None, description="file with that token, on its first line")
    path: str = Field(
        "/v1/chat/completions", pattern="^/", description="path of the public port that the request would go to"
    )
    tenant: Name | None = Field(
        None, description="whose request it is, by name, where the gateway has tenants: their caches are kept apart"
    )
