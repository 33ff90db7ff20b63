"""The public port with the real router and relay, in front of workers that do what a script says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.http.server import Server
from gateway.http.upstream import UpstreamPool
from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.pool_prompts import PoolPrompts
from gateway.requests.access import OPEN, Access
from gateway.requests.app import App
from gateway.requests.head_check import HeadCheck
from gateway.requests.models import Pool
from gateway.requests.paths import ERROR_SHAPES
from gateway.routing.census.targets import Target
from tests.gateway.http.support import Message, client, config
from tests.gateway.routing.support import Pool as RouterPool
from tests.indexer.support import running
from warmroute.redis.client import Client


@dataclass
class Gate:
    server: Server
    pool: RouterPool
    app: App

    async def ask(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: Iterable[str] = ()
    ) -> Message:
        data = body if isinstance(body, bytes) else orjson.dumps(body) if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", *headers, "", ""]
        async with client(self.server.port) as connected:
            return await connected.ask("\r\n".join(lines).encode() + data, bodiless=method == "HEAD")

    def count(self, name: str, **labels: str) -> float:
        return self.pool.metric(f"warmroute_gateway_{name}", **labels) or 0.0

    def idle(self) -> bool:
        return self.pool.router.state.reservations.workers == frozenset()


@asynccontextmanager
async def gate(
    *ports: int,
    keyer: PromptKeyer | None = None,
    access: Access = OPEN,
    several: bool = True,
    redis: Client | None = None,
    settings: Mapping[str, Any] | None = None,
    **pool_config: Any,
) -> AsyncIterator[Gate]:
    """A pool `p` of the model `m` with workers w0, w1... on these ports; with `several` another model has it too.
    `settings`: further ones of the gateway's."""
    pool = RouterPool(tuple(f"w{number}" for number in range(len(ports))), **pool_config)
    pool.targets([Target(f"w{number}", "127.0.0.1", port, f"w{number}") for number, port in enumerate(ports)])
    if keyer is not None:
        pool.use(keyer.tokenizer.digest)
    gateway = config(**(settings or {}))
    upstreams = UpstreamPool(gateway)
    pools = {"m": Pool(pool.router, PoolPrompts(keyer))}
    if several:
        pools["org/other@x y"] = Pool(pool.router)
    app = App(gateway, pools, upstreams, pool.router.metrics, access, redis)
    server = Server(app, gateway, on_refusal=app.count, check_head=HeadCheck(access), error_shapes=ERROR_SHAPES)
    async with AsyncExitStack() as stack:  # each part is closed, whatever fails of the others
        for served in pools.values():
            stack.push_async_callback(served.engine_tokens.close)
        stack.push_async_callback(upstreams.close)
        stack.push_async_callback(app.decisions.stop)
        stack.push_async_callback(server.drain, 0)
        await server.start()
        await stack.enter_async_context(running(*app.tasks()))
        yield Gate(server, pool, app)
