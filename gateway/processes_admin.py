"""One admin port for several gateway processes: their metrics under one roof, ready when all are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from warmroute.admin import AdminSite

TIMEOUT_SECONDS: Final = 2.0


class ProcessesAdmin(AdminSite):
    """Asks every process at each request; one that does not answer within 2 s is not ready, and has no metrics."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        """`sockets`: of the processes' admin servers, in order of their numbers."""
        super().__init__()
        self._sockets = sockets

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        answers = await self._ask_all("readyz")
        ready = all(status == 200 for status, _ in answers)
        details = [orjson.loads(body) if body else {"ready": False, "error": "no answer"} for _, body in answers]
        return ready, {"processes": details}

    async def metrics(self) -> CollectorRegistry:
        texts = [body if status == 200 else "" for status, body in await self._ask_all("metrics")]
        registry = CollectorRegistry()
        registry.register(_Merged(texts))
        return registry

    async def _ask_all(self, path: str) -> list[tuple[int, str]]:
        return await asyncio.gather(*(_ask(socket, path) for socket in self._sockets))


async def _ask(socket: Path, path: str) -> tuple[int, str]:
    """Status and body; 0 and nothing from a process that does not answer."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            ) as session,
            session.get(f"http://process/{path}") as response,
        ):
            return response.status, await response.text()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0, ""


class _Merged(Collector):
    """The processes' metrics, each sample with the label `process`. What a process counts of its own requests may be
    summed; what each sees of the same thing (workers, keys, lag) must not: so nothing is summed here."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def collect(self) -> list[Metric]:
        merged: dict[str, Metric] = {}
        for number, text in enumerate(self._texts):
            for family in text_string_to_metric_families(text):
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, "process": str(number)}, sample.value)
        return list(merged.values())
