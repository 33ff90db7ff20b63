"""The processes of a run: Redis, indexer and engines for all of it, and one gateway at a time in front of them."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families

from bench.index.processes import ProcessDiedError
from bench.index.servers import Servers
from bench.relay.servers import Server, family_cpu_seconds
from bench.routing_live.engine_process import MODEL, POOL, engine_name
from warmroute.cli.children import Child, free_ports, stop_all
from warmroute.cli.stack import get_json

START_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 30.0
"""Longest wait for the engines to end what they do between two workloads."""
POLL_SECONDS: Final = 0.05
PEER_SETTLE_SECONDS: Final = 3.0
"""Given to another gateway after its first reply, to find all of its workers healthy."""
CALL_SECONDS: Final = 10.0
BY_CACHE: Final = "by cache and load"
UNKEYED: Final = ("warmroute_gateway_load_only_total", "warmroute_prompt_tokens_mismatch_total")


@dataclass(frozen=True, slots=True)
class Front:
    """A gateway in front of the engines."""

    name: str
    port: int
    cpu_seconds: Callable[[], float]
    admin_port: int | None = None
    """None for another gateway than ours."""

    def unkeyed(self) -> dict[str, int]:
        """How many requests it has routed by load alone, and how many prompts it has keyed otherwise than the engine,
        by reason. Empty where it does not tell."""
        if self.admin_port is None:
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=CALL_SECONDS) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            sample.labels.get("reason", "mismatch"): int(sample.value)
            for sample in samples
            if sample.name in UNKEYED and sample.value
        }


class Cluster:
    """Started and ready within its context; all ends with it."""

    def __init__(self, engines: int, model: Path) -> None:
        self.engines = engines
        self._model = model
        self._stack = ExitStack()
        self._children: list[Child] = []
        self._ports = free_ports(engines)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-bench-")))
            self._servers = stack.enter_context(Servers())
            self._servers.start_indexer()
            stack.callback(lambda: stop_all(self._children))
            for number, port in enumerate(self._ports):
                arguments = (str(port), str(number), self._servers.indexer_address, str(self._model))
                self._start(engine_name(number), "bench.routing_live.engine_process", *arguments)
            self._wait(lambda: all(self._states("published")), START_SECONDS, "the engines do not publish")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- engines -----------------------------------------------------------------------------------------------------

    def start_over(self, cache_tokens: int, running_requests: int) -> None:
        """All engines with empty caches of this size, which the index knows. Raises TimeoutError."""
        self._wait(lambda: all(self._states("idle")), IDLE_SECONDS, "the engines do not become idle")
        for port in self._ports:
            _call(port, "PUT", {"cache_tokens": cache_tokens, "running_requests": running_requests})
        self._wait(lambda: all(self._states("published")), START_SECONDS, "the engines do not publish")

    def late_seconds(self) -> float:
        """The latest that a step of any engine ended, since they started over."""
        return max(float(_call(port, "GET")["late_seconds"]) for port in self._ports)

    def _states(self, name: str) -> Iterator[bool]:
        for port in self._ports:
            try:
                yield bool(_call(port, "GET")[name])
            except OSError:  # it does not listen yet
                yield False

    # --- gateways ----------------------------------------------------------------------------------------------------

    @contextmanager
    def gateway(self, policy: str) -> Iterator[Front]:
        """Ours with this policy and else its defaults, ready to route by cache and load."""
        port, admin_port = free_ports(2)
        workers = [
            {"address": f"127.0.0.1:{engine}", "worker_id": engine_name(number)}
            for number, engine in enumerate(self._ports)
        ]
        settings = {
            "gateway": {
                "port": port,
                "admin_port": admin_port,
                "indexers": [self._servers.indexer_address],
                "drain_seconds": 1.0,
                "pools": [{"name": POOL, "model": MODEL, "policy": policy, "workers": workers}],
            },
            "redis": {"url": self._servers.redis_url},
            "log": {"level": "warning"},
        }
        file = self._folder / f"gateway-{policy}.yaml"
        file.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
        child = self._start(f"gateway-{policy}", "warmroute", "gateway", "--config", str(file))

        def ready() -> bool:
            pool = ((get_json(f"http://127.0.0.1:{admin_port}/readyz") or {}).get("pools") or {}).get(POOL) or {}
            return pool.get("ready_workers") == self.engines and pool.get("routing") == BY_CACHE

        try:
            self._wait(ready, START_SECONDS, f"the gateway does not route {BY_CACHE}")
            yield Front(policy, port, lambda: family_cpu_seconds(child.pid), admin_port)
        finally:
            stop_all([child])
            self._children.remove(child)

    @contextmanager
    def peer(self, command: str) -> Iterator[Front]:
        """Another gateway, from a shell command with `{port}` and `{workers}` (their URLs, with blanks between)."""
        (port,) = free_ports(1)
        workers = " ".join(f"http://127.0.0.1:{engine}" for engine in self._ports)
        text = command.replace("{port}", str(port)).replace("{workers}", workers)
        with Server("peer", ["/bin/sh", "-c", text], port, None, quiet=True) as server:
            # The gateway's own failure to start ends the wait too.
            self._wait(lambda: not server.running or _answers(port), START_SECONDS, "the peer does not answer")
            if not server.running:
                raise ProcessDiedError(f"the peer ended: {text}")
            time.sleep(PEER_SETTLE_SECONDS)
            yield Front("peer", port, server.cpu_seconds)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str) -> Child:
        child = Child(name, arguments, self._folder / f"{name}.log")
        self._children.append(child)
        return child

    def _wait(self, ready: Callable[[], bool], seconds: float, trouble: str) -> None:
        """Raises TimeoutError, ProcessDiedError."""
        deadline = time.monotonic() + seconds
        while not ready():
            for child in self._children:
                if child.exit_code is not None:
                    raise ProcessDiedError(f"{child.name} ended:\n{child.last_lines(20)}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{child.name}:\n{child.last_lines(3)}" for child in self._children)
                raise TimeoutError(f"{trouble} within {seconds:.0f} s\n{logs}")
            time.sleep(POLL_SECONDS)


def _call(port: int, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask an engine how it is, or tell it to start over. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        connection.request(method, "/simulation", None if body is None else json.dumps(body))
        reply = connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise OSError(f"the engine on port {port} answered {reply.status}: {data.decode()[:200]}")
        return dict(json.loads(data)) if data else {}
    finally:
        connection.close()


def _answers(port: int) -> bool:
    """Whether a gateway answers a small chat."""
    body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "ready?"}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), headers={"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        reply.read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return reply.status == 200
    finally:
        connection.close()
