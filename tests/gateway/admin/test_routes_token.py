"""What the admin port tells of prompts and loads is told to who has its token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.gateway.admin.test_routes import BODY, gateway
from tests.gateway.http.support import run
from tests.gateway.process.test_processes import children, fetch, healthy_then, reply, worker
from tests.gateway.process.test_processes import gateway as several
from tests.ports import free_ports
from warmroute.cli.main import main
from warmroute.process.watched_files import SecurityError

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_explanations_and_decisions_want_the_token_and_probes_do_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OLD}\n{NEW}\n")

    async def scenario() -> None:
        async with gateway(admin_token_file=str(file)) as (gate, ask):
            for headers in ({}, bearer("another-0123456789"), {"authorization": OLD}, {"authorization": "Basic x"}):
                for path, body in (("/explain", BODY), ("/decisions", None), ("/what-comes-later", None)):
                    status, answer = await ask(path, body, headers)
                    assert (status, answer["error"]["code"]) == (401, "invalid_admin_token"), (path, headers)
                    assert OLD not in str(answer)
            for token in (OLD, NEW):
                status, answer = await ask("/explain", BODY, bearer(token))
                assert (status, answer["path"]) == (200, "/v1/chat/completions")
                assert await ask("/decisions", None, bearer(token)) == (200, {"decisions": []})
            status, answer = await ask("/readyz")
            assert status == 200
            assert OLD not in str(answer)
            file.write_text(NEW)  # another size: seen at once
            assert (await ask("/decisions", None, bearer(OLD)))[0] == 401
            file.write_text("")
            assert (await ask("/decisions", None, bearer(NEW)))[0] == 200  # what cannot be used leaves the former
            assert gate.config.admin_token_file == file

    run(scenario())


def test_a_token_that_is_none_ends_the_start(tmp_path: Path) -> None:
    async def scenario(**fields: str) -> None:
        async with gateway(**fields):
            pass

    (tmp_path / "short").write_text("short")
    for fields, said in (
        ({"admin_token_file": str(tmp_path / "missing")}, r"gateway\.admin_token_file: .*cannot be read"),
        ({"admin_token_file": str(tmp_path / "short")}, r"gateway\.admin_token_file: the token \(not shown\)"),
        ({"admin_token": OLD, "admin_token_file": str(tmp_path / "short")}, r"gateway\.admin_token is set too"),
    ):
        with pytest.raises(SecurityError, match=said):
            run(scenario(**fields))


def test_several_processes_ask_for_it_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            several(tmp_path, engine.port, processes=2, admin_token=OLD) as (process, _, ready),
        ):
            admin = ready.removesuffix("/readyz")
            assert len(children(process.pid)) == 2
            for path, body in (("/decisions", None), ("/explain", BODY)):
                for headers, expected in (({}, 401), (bearer(OLD), 200)):
                    status, answer = await asyncio.to_thread(fetch, f"{admin}{path}", body, headers)
                    assert status == expected, answer

    run(scenario())


def test_the_command_shows_the_token_and_says_where_to_put_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, file = tmp_path / "request.json", tmp_path / "token"
    request.write_bytes(BODY)
    file.write_text(f"{OLD}\n")

    async def scenario() -> None:
        (port,) = free_ports(1)
        async with gateway(admin_token=OLD, admin_port=port):
            command = ["explain", str(request), "--json", "--url", f"http://127.0.0.1:{port}"]
            assert await asyncio.to_thread(main, command) == 2
            said = capsys.readouterr().err
            assert "--token-file" in said
            assert "WARMROUTE_EXPLAIN_TOKEN_FILE" in said
            assert await asyncio.to_thread(main, [*command, "--token-file", str(file)]) == 0
            assert orjson.loads(capsys.readouterr().out)["path"] == "/v1/chat/completions"
            monkeypatch.setenv("WARMROUTE_EXPLAIN_TOKEN_FILE", str(file))
            assert await asyncio.to_thread(main, command) == 0

    run(scenario())
