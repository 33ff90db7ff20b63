"""docs/gateway.md says what the code does: its tables name every path, edit, code and timeout."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.engines.base import HINTS
from gateway.requests.hints import HINT_FIELDS, HINT_HEADERS
from gateway.requests.paths import POST_ROUTES
from warmroute.config.gateway import GatewayConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gateway.md").read_text()
NAMED = {name.removeprefix("POST ") for name in re.findall(r"`([^`\n]+)`", PAGE)}


def sources(*patterns: str) -> str:
    return "\n".join(path.read_text() for pattern in patterns for path in sorted((ROOT / "gateway").glob(pattern)))


def test_every_path() -> None:
    assert set(POST_ROUTES) <= NAMED


def test_every_field_that_is_removed() -> None:
    assert NAMED >= HINTS


def test_every_hint() -> None:
    """A header as clients write it. A field must be in HINTS too, since TensorRT-LLM refuses what it does not know."""
    named = {name.partition(":")[0].strip().lower() for name in NAMED}
    assert {name.decode() for name in HINT_HEADERS} <= named
    assert {name.partition(".")[0] for name in NAMED} >= HINT_FIELDS
    assert HINT_FIELDS <= HINTS


def test_every_error_code() -> None:
    text = sources("http/*.py", "requests/*.py", "tenants/*.py")
    calls = re.findall(r"(?:RequestError)\((?:[^()]|\([^()]*\))*\)", text)
    codes = set()
    for call in calls:
        codes |= set(re.findall(r'code="([a-z]+_[a-z_]+)"', call))
        codes |= set(re.findall(r'(?:\s|,)"([a-z]+_[a-z_]+)"', call))
    assert len(codes) > 15
    assert codes <= NAMED


def test_every_limit_is_a_setting() -> None:
    table = PAGE[PAGE.index("## Timeouts and limits") : PAGE.index("## TLS and the Unix socket")]
    names = set(re.findall(r"`(\w+_(?:seconds|bytes))`", table))
    settings = {name for name in GatewayConfig.model_fields if name.endswith(("_seconds", "_bytes"))}
    assert names == settings - {"prompt_budget_seconds"}
