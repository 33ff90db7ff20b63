"""Scripted replies, forms and tenants for the tests of the surface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry

from gateway.requests.access import Access
from gateway.tenants.limiter import Limiter
from gateway.tenants.metrics import TenantMetrics
from gateway.tenants.salts import Salts
from gateway.tenants.tenants import Tenants
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, plain
from tests.indexer.support import running
from tests.support import redis_client
from warmroute.config.tenants import TenantsConfig

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FORM_TYPE = "Content-Type: multipart/form-data; boundary=xyz"


def as_json(body: bytes, status: bytes = b"200 OK") -> bytes:
    return plain(body, status).replace(b"text/plain", b"application/json")


def form(model: str) -> bytes:
    return (
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\0\xff\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + model.encode() + b"\r\n--xyz--\r\n"
    )


def sse(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(chunk(event) for event in events) + LAST_CHUNK


def tenants(
    tmp_path: Path,
    *,
    salts: bool = True,
    allow_unsalted: bool = False,
    allowed_fields: frozenset[str] | None = frozenset(),
) -> Access:
    digest = {name: sha256(f"key-{name}".encode()).hexdigest() for name in ("a", "b")}
    path = tmp_path / "keys.json"
    path.write_bytes(
        orjson.dumps(
            {
                "tenants": [
                    {"name": "a", "keys": [digest["a"]], "models": ["m", "public"]},
                    {"name": "b", "keys": [digest["b"]]},
                ]
            }
        )
    )
    settings = TenantsConfig(keys_file=path, salts=salts, salt_secret="s" * 32 if salts else None)
    found = Tenants(path, TenantMetrics(CollectorRegistry()))
    return Access(Salts.load(settings), found, allow_unsalted=allow_unsalted, allowed_fields=allowed_fields)


def bearer(name: str) -> list[str]:
    return [f"Authorization: Bearer key-{name}"]


@asynccontextmanager
async def limited(redis_url: str, tmp_path: Path, **limits: int) -> AsyncIterator[Access]:
    """One tenant, `a`, with these limits."""
    path = tmp_path / "limited.json"
    keys = [sha256(b"key-a").hexdigest()]
    path.write_bytes(orjson.dumps({"tenants": [{"name": "a", "keys": keys, "limits": limits}]}))
    settings = TenantsConfig(keys_file=path, salts=False)
    metrics = TenantMetrics(CollectorRegistry())
    async with redis_client(redis_url) as redis:
        access = Access(Salts.load(settings), Tenants(path, metrics), Limiter(redis, metrics, wait_seconds=1))
        async with running(*access.tasks()):
            yield access


def storing(name: str) -> object:
    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            if asked.start.startswith(b"POST /v1/responses HTTP") and b"stream" in asked.body:
                created = (
                    b'event: response.created\ndata: {"response":{"id":"resp_%b","model":"x"}}\n\n' % name.encode()
                )
                await link.send(sse(created))
            else:
                await link.send(as_json(b'{"id": "resp_%b", "at": "%b"}' % (name.encode(), name.encode())))

    return script
