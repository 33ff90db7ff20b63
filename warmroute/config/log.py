"""The section `log`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from warmroute.config.setting_types import Section


class LogConfig(Section):
    """The log of every part, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")
