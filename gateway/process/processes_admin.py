"""One admin port for several gateway processes: their metrics and decisions under one roof, ready when all are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.admin.routes import EXPLAIN_SECONDS, read_limit, refusal, refused_coding
from warmroute.process.admin import BODY_LIMIT_BYTES, AdminSite
from warmroute.process.bearer_tokens import Tokens

TIMEOUT_SECONDS: Final = 2.0
HOP_HEADERS: Final = frozenset({"host", "connection", "content-length", "transfer-encoding", "expect"})


class ProcessesAdmin(AdminSite):
    """Asks every process at each request; one that does not answer within 2 s is not ready, and has no metrics."""

    def __init__(
        self, sockets: Sequence[Path], *, body_limit_bytes: int = BODY_LIMIT_BYTES, tokens: Tokens | None = None
    ) -> None:
        """`sockets`: of the processes' admin servers, in order of their numbers; they ask for the same tokens."""
        super().__init__(body_limit_bytes=body_limit_bytes, tokens=tokens)
        self._sockets = sockets
        self.app.router.add_post("/explain", self._explain)
        self.app.router.add_get("/decisions", self._decisions)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        answers = await self._ask_all("/readyz")
        ready = all(status == 200 for status, _ in answers)
        details = [orjson.loads(body) if body else {"ready": False, "error": "no answer"} for _, body in answers]
        return ready, {"processes": details}

    async def metrics(self) -> CollectorRegistry:
        texts = [body if status == 200 else "" for status, body in await self._ask_all("/metrics")]
        registry = CollectorRegistry()
        registry.register(_Merged(texts))
        return registry

    async def _explain(self, request: web.Request) -> web.Response:
        """Any process answers: each has the whole index, and knows the others' bookings. What it has learned, rates,
        sessions and prompts of workers that say nothing, are its own."""
        if (refused := refused_coding(request)) is not None:
            return refused
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        body = await request.read()
        for number in random.sample(range(len(self._sockets)), len(self._sockets)):
            status, answer = await _ask(
                self._sockets[number], str(request.rel_url), EXPLAIN_SECONDS + TIMEOUT_SECONDS, headers, body
            )
            if status:
                return web.Response(text=answer, status=status, content_type="application/json")
        return refusal(503, "no process answers; ask again once /readyz is 200")

    async def _decisions(self, request: web.Request) -> web.Response:
        """The latest of all processes, each with its `process`."""
        try:
            limit = read_limit(request.query)
        except ValueError as error:
            return refusal(400, str(error), param="limit")
        decisions = []
        shown = {name: value for name, value in request.headers.items() if name.lower() == "authorization"}
        for number, (status, answer) in enumerate(await self._ask_all(str(request.rel_url), shown)):
            if status == 200:
                decisions += [{**each, "process": number} for each in orjson.loads(answer)["decisions"]]
        decisions.sort(key=itemgetter("time"), reverse=True)
        return web.json_response({"decisions": decisions[:limit]})

    async def _ask_all(self, path: str, headers: Mapping[str, str] | None = None) -> list[tuple[int, str]]:
        return await asyncio.gather(*(_ask(socket, path, headers=headers) for socket in self._sockets))


async def _ask(
    socket: Path,
    path: str,
    seconds: float = TIMEOUT_SECONDS,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, str]:
    """Status and body; 0 and nothing from a process that does not answer. With a body it is a POST."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=seconds)
            ) as session,
            session.request(
                "GET" if body is None else "POST", f"http://process{path}", data=body, headers=headers
            ) as response,
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
