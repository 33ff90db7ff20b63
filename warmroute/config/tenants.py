"""The section `tenants`: API keys, limits, cache salts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from warmroute.config.secret import Secret
from warmroute.config.setting_types import Section


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
    engine_fields: Literal["strip", "pass"] = Field(
        "strip",
        description="what becomes of fields in tenants' bodies that steer an engine, such as kv_transfer_params or "
        "data_parallel_rank: strip takes them out and counts them",
    )
    allowed_engine_fields: list[str] = Field([], description="such fields that are let through all the same")
    salt_secret: Secret = Field(
        None, repr=False, description="secret of the cache salts, the same on all gateways; better given as a file"
    )
    salt_secret_file: Path | None = Field(None, description="file that holds it; read at the start alone")
    limit_wait_seconds: float = Field(
        0.02, gt=0, le=1, description="longest wait of a request for Redis; past it limits are kept without it"
    )
