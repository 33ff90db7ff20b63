"""A real API server (etcd and miniapi) and a relay in front of it that can misbehave as networks do."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from warmroute.config.pool import KubernetesDiscoveryConfig

START_SECONDS = 30.0
INSECURE = ssl.create_default_context()
INSECURE.check_hostname = False
INSECURE.verify_mode = ssl.CERT_NONE  # the test server signs its own certificate


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(method: str, url: str, body: Any = None, content_type: str = "application/json") -> Any:
    request = urllib.request.Request(  # noqa: S310 - loopback only
        url, None if body is None else json.dumps(body).encode(), {"content-type": content_type}, method=method
    )
    with urllib.request.urlopen(request, timeout=30, context=INSECURE if url.startswith("https") else None) as reply:  # noqa: S310
        text = reply.read()
    return json.loads(text) if text[:1] in (b"{", b"[") else text


class Process:
    """A server of the tests: started, waited for, ended."""

    def __init__(self, arguments: list[str], ready_url: str, log: Path) -> None:
        self._arguments = arguments
        self._ready_url = ready_url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                call("GET", self._ready_url)
            except OSError as error:
                if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
                    return  # it serves, and asks for a token
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    pytest.fail(f"{self._arguments[0]} does not start:\n{self._log.read_text()[-2000:]}")
                time.sleep(0.02)
            else:
                return

    def end(self, signal_number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal_number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None


class ApiServer(Process):
    """miniapi over an etcd. The methods are what the cluster's other parts do to pods."""

    def __init__(self, binary: str, etcd_url: str, folder: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.etcd_url = etcd_url
        folder.mkdir(exist_ok=True)
        arguments = [binary, "-port", str(self.port), "-etcd", etcd_url, "-cert-dir", str(folder / "certs"), *flags]
        super().__init__(arguments, f"{self.url}/readyz", folder / f"api-{self.port}.log")

    def pods_url(self, namespace: str, name: str = "") -> str:
        return f"{self.url}/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")

    def create(self, namespace: str, name: str, **metadata: Any) -> str:
        """A scheduled pod without address or readiness; returns its UID."""
        metadata = {"labels": {"warmroute.dev/pool": "main"}, **metadata, "name": name}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}
        return str(call("POST", self.pods_url(namespace), body)["metadata"]["uid"])

    def status(self, namespace: str, name: str, ready: bool = True, ip: str | None = "10.0.0.1") -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        body = {"status": {"phase": "Running", "podIP": ip, "conditions": conditions}}
        call("PATCH", self.pods_url(namespace, name) + "/status", body, "application/merge-patch+json")

    def label(self, namespace: str, name: str, key: str, value: str | None) -> None:
        body = {"metadata": {"labels": {key: value}}}
        call("PATCH", self.pods_url(namespace, name), body, "application/merge-patch+json")

    def get(self, namespace: str, name: str) -> Any:
        return call("GET", self.pods_url(namespace, name))

    def delete(self, namespace: str, name: str) -> None:
        call("DELETE", self.pods_url(namespace, name) + "?gracePeriodSeconds=0")

    def compact(self) -> None:
        """Drop etcd's history: every version before now is expired."""
        revision = call("POST", f"{self.etcd_url}/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        call("POST", f"{self.etcd_url}/v3/kv/compaction", {"revision": revision})


class Relay:
    """An HTTP relay to the API server that can hold watches back, go silent and lose lines. Owns its port.

    It speaks plain HTTP to its client, so that a test sees what is asked.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.lists = 0
        self.watches = 0
        self.watch_queries: list[dict[str, str]] = []
        self.watch_asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.lose: Callable[[bytes], bool] = lambda line: False
        self._streams: list[web.Request] = []
        self.url = ""

    async def __aenter__(self) -> Relay:
        connector = TCPConnector(ssl=False)
        self._session = ClientSession(connector=connector, timeout=ClientTimeout(total=120), auto_decompress=False)
        application = web.Application()
        application.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.break_streams()
        await self._runner.cleanup()
        await self._session.close()

    def break_streams(self) -> None:
        """Cut every open watch in its middle."""
        for request in list(self._streams):
            if request.transport is not None:
                request.transport.abort()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        if not watch:
            self.lists += 1
        else:
            self.watches += 1
            self.watch_queries.append(dict(request.query))
            self.watch_asked.set()
            await self.open.wait()
        async with self._session.get(self._upstream + request.path_qs) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": "application/json"})
            await response.prepare(request)
            self._streams.append(request)
            try:
                async for line in answer.content:
                    if not (watch and self.lose(line)):
                        await response.write(line)
            except ClientError:
                self.break_streams()
            finally:
                self._streams.remove(request)
        return response


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = os.environ.get("WARMROUTE_TEST_ETCD") or shutil.which("etcd")
    if binary is None:
        pytest.skip("etcd is missing: install etcd-server or set WARMROUTE_TEST_ETCD")
    folder = tmp_path_factory.mktemp("etcd")
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    arguments = [binary, "--data-dir", str(folder / "data"), "--unsafe-no-fsync"]
    arguments += ["--listen-client-urls", client, "--advertise-client-urls", client]
    arguments += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    arguments += ["--initial-cluster", f"default={peer}"]
    process = Process(arguments, f"{client}/health", folder / "etcd.log")
    process.start()
    yield client
    process.end()


@pytest.fixture(scope="session")
def new_api(etcd: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ApiServer]]:
    """Start another API server over the same etcd, with miniapi's flags."""
    binary = os.environ.get("WARMROUTE_TEST_MINIAPI")
    if not binary:
        pytest.skip("WARMROUTE_TEST_MINIAPI is not set: it names an API server for tests")
    started: list[ApiServer] = []

    def start(*flags: str) -> ApiServer:
        server = ApiServer(binary, etcd, tmp_path_factory.mktemp("api"), *flags)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="session")
def api(new_api: Callable[..., ApiServer]) -> ApiServer:
    return new_api()


@pytest.fixture
def new_relay() -> Callable[[str], Relay]:
    """A relay to an API server's URL, to be entered inside the event loop."""
    return Relay


@pytest.fixture
def namespace() -> str:
    """Each test has its own."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def configured(tmp_path: Path, namespace: str) -> Callable[[str], KubernetesDiscoveryConfig]:
    """The configuration for an API server's URL."""

    def configure(server: str) -> KubernetesDiscoveryConfig:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(document))  # YAML contains JSON
        return KubernetesDiscoveryConfig(namespace=namespace, selector="warmroute.dev/pool=main", kubeconfig=path)

    return configure


@pytest.fixture
def new_listener() -> Iterator[Callable[[bytes], str]]:
    """Serve one body to whoever asks for anything: what stands where the API server should."""
    servers: list[HTTPServer] = []

    def start(body: bytes) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
