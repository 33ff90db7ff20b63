"""The access log: one line of JSON a request, bounded, without keys or prompts."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.gateway.http.support import Link, gateway, plain, replying, request, run, worker
from tests.support import eventually


def test_a_line_a_request_and_nothing_secret_in_it(tmp_path: Path) -> None:
    file = tmp_path / "access.log"

    async def main() -> None:
        async with (
            worker(replying(plain(b"fine"))) as engine,
            gateway(engine.port, access_log=str(file)) as gate,
            gate.client() as user,
        ):
            headers = ["Authorization: Bearer sk-secret", "X-Request-Id: one"]
            await user.ask(request(path="/v1/chat/completions?api_key=sk-secret", body=b"a prompt", headers=headers))
            await eventually(file.exists)
            await user.ask(request("GET", "/teapot", b"", ["X-Request-Id: two"]))

    run(main())
    text = file.read_bytes()
    assert b"secret" not in text
    assert b"prompt" not in text
    first, second = map(orjson.loads, text.splitlines())
    assert 0 <= first.pop("seconds") < 10
    assert first.pop("time") > 1e9
    assert first == {
        "request_id": "one",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "worker": "w0",
    }
    assert (second["request_id"], second["status"], second["worker"]) == ("two", 418, "")


def test_a_client_that_left_is_a_499(tmp_path: Path) -> None:
    file = tmp_path / "access.log"

    async def silent(link: Link) -> None:
        await link.request()
        await link.peer_gone()

    async def main() -> None:
        async with worker(silent) as engine, gateway(engine.port, access_log=str(file)) as gate, gate.client() as user:
            user.send(request())
            await eventually(lambda: engine.requests)
            user.leave()
            await gate.result()

    run(main())
    assert orjson.loads(file.read_bytes())["status"] == 499
