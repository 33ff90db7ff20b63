"""The processes of the benchmark: an upstream and the proxies in front of it, each pinned to a core."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.relay.load import API_KEY, MODEL
from warmroute.cli.children import free_ports

STOP_SECONDS = 10.0

TENANT = "bench"
SALT_SECRET = "the benchmark's salts, that need a secret of 32 bytes"  # noqa: S105 - it guards nothing
LIMIT_WAIT_SECONDS = 1.0  # Redis shares a core with clients and upstream, and may have to wait for them
LIMITS = {"requests_per_minute": 60_000_000, "tokens_per_minute": 60_000_000_000, "concurrent_requests": 4096}
"""Kept, leased through Redis and reported in every reply, but out of reach of the load."""

NGINX = """\
worker_processes 1;
master_process off;
daemon off;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_body_buffer_size 64k;
  keepalive_requests 100000000;
  upstream engines {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
    }}
  }}
}}
"""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    return free_ports(1)[0]


class Server:
    """A process that listens on `port`, killed with what it started at the end of the context."""

    def __init__(self, name: str, command: Sequence[str], port: int, core: int | None, *, quiet: bool = False) -> None:
        """`quiet`: without its standard output."""
        self.name = name
        self.port = port

        def pin() -> None:
            if core is not None:
                os.sched_setaffinity(0, {core})

        self._process = subprocess.Popen(
            command, start_new_session=True, preexec_fn=pin, stdout=subprocess.DEVNULL if quiet else None
        )

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """See `family_cpu_seconds`."""
        return family_cpu_seconds(self._process.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.running:
                break
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def family_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, all threads, user and system, to the nanosecond; Linux."""
    nanoseconds = 0
    for member in _family(pid):
        for thread in Path(f"/proc/{member}/task").glob("*/schedstat"):
            nanoseconds += int(thread.read_text("ascii").split()[0])
    return nanoseconds / 1e9


def _family(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found.extend(map(int, children.read_text("ascii").split()))
    return found


def upstream(core: int | None) -> Server:
    """The engine's stand-in."""
    port = free_port()
    return Server("upstream", [sys.executable, "-m", "bench.relay.upstream", str(port)], port, core)


def valkey(core: int | None) -> Server:
    """A real server, for the tenants' limits and the index. Its CPU is not the gateway's."""
    port = free_port()
    return Server("valkey", [sys.executable, "-m", "warmroute.cli.embedded_redis", str(port)], port, core, quiet=True)


class Gateway(Server):
    """The gateway as it is deployed, with health checks and accounting."""

    def __init__(
        self,
        name: str,
        folder: Path,
        upstream_port: int,
        redis_port: int,
        core: int | None,
        *,
        keys: bool = True,
        model_path: Path | None = None,
    ) -> None:
        """`keys`: with API keys, salts and limits. `model_path`: its requests are routed by cache and load, if an index
        has keys of the model; else by load. The pool has the gateway's name."""
        port = free_port()
        self.admin_port = free_port()
        pool: dict[str, object] = {"name": name, "model": MODEL, "workers": [f"127.0.0.1:{upstream_port}"]}
        if model_path is not None:
            pool["model_path"] = str(model_path)
        settings: dict[str, object] = {
            "gateway": {
                "port": port,
                "admin_port": self.admin_port,
                "indexers": [f"127.0.0.1:{free_port()}"],  # nobody is there: no load reports
                "pools": [pool],
            },
            "redis": {"url": f"redis://127.0.0.1:{redis_port}/0"},
            "log": {"level": "error"},
        }
        if keys:
            settings["tenants"] = {
                "keys_file": str(keys_file(folder)),
                "salt_secret": SALT_SECRET,
                "limit_wait_seconds": LIMIT_WAIT_SECONDS,
            }
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
        super().__init__(name, [sys.executable, "-m", "warmroute", "gateway", "--config", str(file)], port, core)


def keys_file(folder: Path) -> Path:
    """The file of the one tenant that the clients are."""
    tenant = {"name": TENANT, "keys": [hashlib.sha256(API_KEY).hexdigest()], "limits": LIMITS}
    file = folder / "keys.json"
    file.write_text(json.dumps({"tenants": [tenant]}), "utf-8")
    return file


def aiohttp(upstream_port: int, core: int | None) -> Server:
    """A plain proxy written with aiohttp."""
    port = free_port()
    command = [sys.executable, "-m", "bench.relay.aiohttp_proxy", str(port), str(upstream_port)]
    return Server("aiohttp", command, port, core)


def nginx(folder: Path, upstream_port: int, core: int | None) -> Server | None:
    """nginx with one process, kept connections and no buffering of replies; None where it is not installed."""
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        return None
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(port=port, upstream=upstream_port, folder=folder), "utf-8")
    return Server("nginx", [path, "-p", str(folder), "-c", str(file), "-e", "stderr"], port, core)


def peer(command: str, upstream_port: int, core: int | None) -> Server:
    """Another gateway, from a shell command with `{port}` and `{upstream}` (a port on 127.0.0.1) in it."""
    port = free_port()
    text = command.replace("{port}", str(port)).replace("{upstream}", str(upstream_port))
    return Server("peer", ["/bin/sh", "-c", text], port, core)
