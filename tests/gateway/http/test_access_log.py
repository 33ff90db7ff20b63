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


def test_a_request_that_is_refused_before_it_is_whole_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "access.log"

    async def main() -> None:
        async with gateway(9, access_log=str(file), body_limit_bytes=1024) as gate:
            for bad in (
                b"GARBAGE\r\n\r\n",
                b"POST /v1/x?key=secret HTTP/1.1\r\nHost: h\r\nContent-Length: 1025\r\n\r\n",
                b"GET /v1/" + b"x" * 300_000,
            ):
                await gate.ask(bad)

    run(main())
    lines = list(map(orjson.loads, file.read_bytes().splitlines()))
    assert [line["status"] for line in lines] == [400, 413, 431]
    assert (lines[1]["method"], lines[1]["path"], lines[1]["client"]) == ("POST", "/v1/x", "127.0.0.1")
    assert all(len(line["request_id"]) == 32 and line["worker"] == "" for line in lines)
    assert b"secret" not in file.read_bytes()
