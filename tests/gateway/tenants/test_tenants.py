from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.requests.access import OPEN
from gateway.tenants.metrics import TenantMetrics
from gateway.tenants.tenant import ANONYMOUS, Tenant, model_refusal
from gateway.tenants.tenants import Tenants
from tests.gateway.tenants.support import KEY, digest
from tests.support import eventually
from warmroute.process.lifecycle import StartupError


def keys_text(*keys: bytes, name: str = "a") -> str:
    return f"tenants: [{{name: {name}, keys: [{', '.join(map(digest, keys))}]}}]"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(keys_text(KEY))
    return path


def tenants_of(path: Path, registry: CollectorRegistry) -> Tenants:
    return Tenants(path, TenantMetrics(registry))


def identified(found: Tenants, *headers: bytes | None) -> Tenant | RequestError:
    try:
        return found.identify(*headers)
    except RequestError as error:
        return error


def status(answer: Tenant | RequestError) -> str | int:
    return answer.name if isinstance(answer, Tenant) else answer.status


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "expected"),
    [
        (b"Bearer " + KEY, None, "a"),
        (b"bearer   " + KEY + b" ", None, "a"),
        (None, KEY, "a"),
        (b"Bearer wrong", KEY, "a"),
        (b"Bearer " + KEY, b"wrong", 401),
        (b"Bearer " + KEY + b"x", None, 401),
        (b"Bearer " + KEY[:-1], None, 401),
        (b"Basic " + KEY, None, 401),
        (b"Bearer" + KEY, None, 401),
        (b"Bearer ", None, 401),
        (b"Bearer " + b"x" * 100_000, None, 401),
        (b"Bearer \xff\xfe", None, 401),
        (b"Bearer " + digest(KEY).encode(), None, 401),
        (None, b"", 401),
        (None, None, 401),
    ],
)
def test_a_key_is_looked_up(
    authorization: bytes | None, x_api_key: bytes | None, expected: str | int, path: Path, registry: CollectorRegistry
) -> None:
    answer = identified(tenants_of(path, registry), authorization, x_api_key)
    assert status(answer) == expected
    if isinstance(answer, RequestError):
        assert answer.code == "invalid_api_key"
        assert answer.headers == ((b"www-authenticate", b"Bearer"),)
        missing = registry.get_sample_value("warmroute_gateway_key_refusals_total", {"reason": "missing"})
        unknown = registry.get_sample_value("warmroute_gateway_key_refusals_total", {"reason": "unknown"})
        assert missing is not None
        assert unknown is not None
        assert missing + unknown == 1


def test_without_keys_everybody_is_anonymous_and_may_do_all() -> None:
    headers = [(b"authorization", b"Bearer x")]
    asked = Request("GET", b"/", "/", "", headers, b"", "1.1", True, "", "id", 0.0, dict(headers))
    assert OPEN.identify(asked, anthropic=True) is ANONYMOUS
    assert OPEN.tasks() == []
    assert ANONYMOUS.may_use("anything")
    assert not ANONYMOUS.limited


def test_a_first_file_that_cannot_be_used_ends_the_start(path: Path, registry: CollectorRegistry) -> None:
    path.write_text("tenants: []")
    with pytest.raises(StartupError, match=r"tenants.keys_file: '.*keys.yaml' is refused: tenants: give a list"):
        tenants_of(path, registry)


def test_the_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(
    path: Path, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def reloads(outcome: str) -> float:
        return registry.get_sample_value("warmroute_gateway_key_reloads_total", {"outcome": outcome}) or 0

    async def scenario() -> None:
        tenants = tenants_of(path, registry)
        running = asyncio.create_task(tenants.run())
        path.write_text("tenants: [{name: a, keys: [sk-plain]}]")  # noqa: ASYNC240
        await eventually(lambda: reloads("refused") == 1)
        assert status(identified(tenants, b"Bearer " + KEY)) == "a"
        path.unlink()  # noqa: ASYNC240
        await eventually(lambda: reloads("refused") == 2)
        assert status(identified(tenants, b"Bearer " + KEY)) == "a"
        # As a mounted Secret changes: a link that leads elsewhere.
        other = path.with_name("other.yaml")
        other.write_text(keys_text(b"new", name="b"))
        path.symlink_to(other)  # noqa: ASYNC240
        await eventually(lambda: reloads("loaded") == 1)
        assert status(identified(tenants, b"Bearer new")) == "b"
        assert status(identified(tenants, b"Bearer " + KEY)) == 401
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    refusals = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(refusals) == 2, "each bad file is complained of once"
    assert "tenants.0.keys.0: the value (not shown) is refused: give the SHA-256" in refusals[0]
    assert not any(secret in caplog.text for secret in ("sk-plain", KEY.decode(), digest(KEY), digest(b"new")))


def test_an_unknown_model_and_a_forbidden_one_are_refused_alike() -> None:
    refusal = model_refusal("x" * 500)
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")
    assert len(refusal.message) < 400
