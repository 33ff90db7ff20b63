"""The calls to the Kubernetes API and how they fail, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.discovery.podapi import ApiUnavailableError, HistoryExpiredError, connect
from warmroute.config.pool import KubernetesDiscoveryConfig

if TYPE_CHECKING:
    from conftest import ApiServer


def test_a_version_from_before_the_compaction_is_expired(
    new_api: Callable[..., ApiServer], namespace: str, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        uncached = new_api("-watch-cache=false")
        async with connect(configured(uncached.url)) as pods:
            listing = await pods.list(10)
            # Two writes: a watch starts after the list's version, and compaction keeps the newest.
            uncached.create(namespace, "a")
            uncached.status(namespace, "a")
            uncached.compact()
            async with pods.watch(listing.resource_version, 10, 10) as events:
                with pytest.raises(HistoryExpiredError):
                    await anext(events)

    asyncio.run(scenario())


def test_a_refusal_names_its_remedy(
    new_api: Callable[..., ApiServer], tmp_path: Path, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        tokens = tmp_path / "tokens.csv"
        tokens.write_text("secret,someone,1,system:masters\n")
        closed = new_api("-tokens", str(tokens))
        async with connect(configured(closed.url)) as pods:
            with pytest.raises(ApiUnavailableError, match=r"HTTP 40[13].*verbs get, list and watch"):
                await pods.list(10)

    asyncio.run(scenario())


def test_an_answer_that_is_not_kubernetes_is_an_outage(
    new_listener: Callable[[bytes], str], configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario(body: bytes, complaint: str) -> None:
        async with connect(configured(new_listener(body))) as pods:
            with pytest.raises(ApiUnavailableError, match=complaint):
                await pods.list(10)

    asyncio.run(scenario(b"<html>a proxy's page</html>", "list pods"))
    asyncio.run(scenario(b'{"hello": "world"}', "not Kubernetes'"))
    asyncio.run(scenario(b'{"metadata": {"resourceVersion": "1"}, "items": [{}]}', "not Kubernetes'"))
