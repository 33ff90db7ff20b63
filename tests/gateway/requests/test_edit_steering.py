"""What of a body reaches the engine."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.gateway.http.support import plain, replying, run, worker
from tests.gateway.requests.support import bearer, tenants
from tests.gateway.support import gate

STEERING = {"kv_transfer_params": {"remote_host": "10.0.0.9"}, "data_parallel_rank": 1, "rid": "another's", "n": 1}
BODIES = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}], **STEERING},
    "/v1/completions": {"model": "m", "prompt": "hi", **STEERING},
    "/v1/embeddings": {"model": "m", "input": "hi", **STEERING},
    "/v1/responses": {"model": "m", "input": "hi", **STEERING},
}


@pytest.mark.parametrize("path", BODIES)
def test_fields_that_steer_an_engine_are_taken_out_of_tenants_bodies_alone(path: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        body = orjson.dumps(BODIES[path])
        async with worker(replying(plain(b"{}"))) as engine:
            async with gate(engine.port, access=tenants(tmp_path, allow_unsalted=True)) as gateway:
                assert (await gateway.ask("POST", path, body, bearer("a"))).status == 200
                got = orjson.loads(engine.requests[-1].body)
                assert not {"kv_transfer_params", "data_parallel_rank", "rid"} & set(got)
                assert got["n"] == 1
                for field in ("kv_transfer_params", "data_parallel_rank", "rid"):
                    assert gateway.count("stripped_fields_total", field=field) == 1
            async with gate(engine.port) as gateway:
                assert (await gateway.ask("POST", path, body)).status == 200
                assert engine.requests[-1].body == body

    run(scenario())


def test_what_the_operator_allows_passes(tmp_path: Path) -> None:
    async def scenario() -> None:
        body = orjson.dumps(BODIES["/v1/embeddings"])
        async with worker(replying(plain(b"{}"))) as engine:
            for allowed, kept in ((frozenset({"rid"}), {"rid"}), (None, {"rid", "kv_transfer_params"})):
                access = tenants(tmp_path, allow_unsalted=True, allowed_fields=allowed)
                async with gate(engine.port, access=access) as gateway:
                    assert (await gateway.ask("POST", "/v1/embeddings", body, bearer("a"))).status == 200
                    assert {"rid", "kv_transfer_params"} & set(orjson.loads(engine.requests[-1].body)) == kept

    run(scenario())
