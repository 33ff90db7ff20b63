"""Several processes on one port, as the command starts them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.gateway.admin.test_routes import BODY, fetch
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, client, plain, request, run, worker
from tests.gateway.process.test_gateway import REQUEST, gateway, healthy_then, is_ready
from tests.support import eventually
from warmroute.cli.stack import get_json
from warmroute.config.gateway import GatewayConfig


def children(pid: int) -> list[int]:
    """The gateway processes of this parent."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def counted(ready: str) -> dict[str, int]:
    """Requests answered with 200, by process."""
    with urllib.request.urlopen(ready.replace("readyz", "metrics"), timeout=5) as response:  # noqa: S310  loopback
        text = response.read().decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a metric is declared twice"
    found = re.findall(r'^warmroute_gateway_requests_total\{code="200",.*process="(\d)"\} (\d+)', text, re.MULTILINE)
    return {process: int(count) for process, count in found}


async def reply(link: Link) -> None:
    await link.send(plain(b"{}"))


async def ask(port: int) -> int:
    async with client(port) as connected:
        return (await connected.ask(REQUEST)).status


def test_they_share_the_port_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            gateway(tmp_path, engine.port, processes=2) as (process, port, ready),
        ):
            asked = 0

            async def both() -> bool:
                nonlocal asked
                assert await ask(port) == 200
                asked += 1
                return len(await asyncio.to_thread(counted, ready)) == 2

            await eventually(both, within=20)
            assert sum((await asyncio.to_thread(counted, ready)).values()) == asked
            details = await asyncio.to_thread(get_json, ready)
            assert [one["ready"] for one in details["processes"]] == [True, True]

            killed, kept = children(process.pid)
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda: asyncio.to_thread(lambda: not is_ready(ready)), within=10)
            assert await ask(port) == 200
            await eventually(lambda: asyncio.to_thread(is_ready, ready), within=30)
            assert kept in children(process.pid)
            assert len(children(process.pid)) == 2
            before = children(process.pid)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 15) == 0
            assert not any(map(alive, before))

    run(scenario())


def test_any_process_explains_and_all_tell_their_decisions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            gateway(tmp_path, engine.port, processes=2) as (process, port, ready),
        ):
            admin = ready.removesuffix("/readyz")

            async def both() -> list[dict]:
                assert await ask(port) == 200
                _, answer = await asyncio.to_thread(fetch, f"{admin}/decisions?limit=1000")
                seen = answer["decisions"]
                return seen if {one["process"] for one in seen} == {0, 1} else []

            seen = await eventually(both, within=20)
            assert [one["time"] for one in seen] == sorted((one["time"] for one in seen), reverse=True)
            _, answer = await asyncio.to_thread(fetch, f"{admin}/decisions?limit=1")
            assert answer["decisions"] == seen[:1]
            status, answer = await asyncio.to_thread(fetch, f"{admin}/explain?path=/v1/completions", BODY)
            assert (status, answer["path"]) == (200, "/v1/completions")
            assert answer["decision"]["winner"]["worker"] == seen[0]["worker"]
            assert (await asyncio.to_thread(fetch, f"{admin}/explain", b"{"))[0] == 400
            # One that is gone is no reason to have no answer.
            killed, _ = children(process.pid)
            os.kill(killed, signal.SIGSTOP)
            try:
                explained = await asyncio.gather(
                    *(asyncio.to_thread(fetch, f"{admin}/decisions") for _ in range(2)),
                )
                assert {status for status, _ in explained} == {200}
            finally:
                os.kill(killed, signal.SIGCONT)

    run(scenario())


def test_a_stored_response_is_found_by_any_process(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "keys.yaml").write_text(
        yaml.safe_dump({"tenants": [{"name": "a", "keys": [sha256(b"key-a").hexdigest()]}]})
    )
    tenants = {"keys_file": "keys.yaml", "salt_secret": "s" * 32}

    async def stored(link: Link) -> None:
        await link.send(plain(b'{"id": "resp_1"}'))

    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, stored)) as engine,
            gateway(tmp_path, engine.port, tenants, redis_url, processes=2) as (_, port, ready),
        ):
            key = "Authorization: Bearer key-a"
            async with client(port) as connected:
                made = await connected.ask(request(path="/v1/responses", body=b'{"model": "m"}', headers=[key]))
                assert made.status == 200

            async def show() -> int:
                async with client(port) as connected:
                    return (await connected.ask(request("GET", "/v1/responses/resp_1", b"", [key]))).status

            async def written() -> bool:
                return await show() == 200

            await eventually(written)

            async def both() -> bool:
                assert await show() == 200 or len(await asyncio.to_thread(counted, ready)) < 2
                return len(await asyncio.to_thread(counted, ready)) == 2

            await eventually(both, within=20)
            assert [await show() for _ in range(20)] == [200] * 20

    run(scenario())


def test_a_signal_lets_streams_finish(tmp_path: Path) -> None:
    async def scenario() -> None:
        released = asyncio.Event()

        async def stream(link: Link) -> None:
            await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
            await released.wait()
            await link.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

        async with (
            worker(lambda link: healthy_then(link, stream)) as engine,
            gateway(tmp_path, engine.port, processes=2) as (process, port, ready),
            client(port) as streaming,
        ):
            streaming.send(REQUEST)
            await streaming.reader.readuntil(b"data: 1\n\n")
            process.send_signal(signal.SIGINT)
            await eventually(lambda: len(children(process.pid)) == 1, within=10)  # the idle one has ended
            assert not await asyncio.to_thread(is_ready, ready)
            released.set()
            assert (await streaming.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert await asyncio.wait_for(process.wait(), 15) == 0

    run(scenario())


@pytest.mark.parametrize("end", ["second signal", "killed parent"])
def test_nothing_is_left_behind(end: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async def forever(link: Link) -> None:
            await link.send(SSE_HEAD + chunk(b"data: 1\n\n"))
            await asyncio.Event().wait()

        async with (
            worker(lambda link: healthy_then(link, forever)) as engine,
            gateway(tmp_path, engine.port, processes=2, drain_seconds=1.0) as (process, port, ready),
            client(port) as streaming,
        ):
            streaming.send(REQUEST)
            await streaming.reader.readuntil(b"data: 1\n\n")
            pids = children(process.pid)
            if end == "killed parent":
                process.kill()
            else:
                process.send_signal(signal.SIGTERM)
                await eventually(lambda: asyncio.to_thread(lambda: not is_ready(ready)), within=5)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 15) == 0
            await eventually(lambda: not any(map(alive, pids)), within=20)

    run(scenario())


@pytest.mark.parametrize("fault", ["certificate", "port"])
def test_what_cannot_start_says_why_and_ends(fault: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            section = {"pools": [{"model": "m", "workers": ["127.0.0.1:9"]}], "processes": 2, "admin_port": 0}
            section["port"] = port
            if fault == "certificate":
                taken.close()
                section |= {"tls_cert_file": str(tmp_path / "no.pem"), "tls_key_file": str(tmp_path / "no.key")}
            else:
                taken.listen()
            path = tmp_path / "gateway.yaml"
            path.write_text(yaml.safe_dump({"gateway": section, "redis": {"url": "redis://127.0.0.1:9"}}))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "warmroute", "gateway", "--config", str(path)), stderr=asyncio.subprocess.PIPE
            )
            _, errors = await asyncio.wait_for(process.communicate(), 40)
        assert process.returncode == 2, errors
        assert (b"gateway.tls_cert_file" if fault == "certificate" else b"gateway.port: cannot listen") in errors
        assert b"Traceback" not in errors

    run(scenario())


def test_what_several_processes_cannot_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot share a Unix socket"):
        GatewayConfig(processes=2, unix_socket=tmp_path / "socket")
    with pytest.raises(ValueError, match="set port"):
        GatewayConfig(processes=2, port=0)
