"""The parts as processes of their own, with a supervisor that starts again what ends, and proxies on their ways."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.chaos.api_server import (
    LABELS,
    POD,
    POD_IP,
    Programs,
    create_pod,
    etcd_arguments,
    kubeconfig,
    server_arguments,
)
from bench.chaos.engine_process import MODEL, POOL, Settings
from bench.chaos.proxy import Proxy
from warmroute.cli.children import Child, free_ports, stop_all

GATEWAYS: Final = ("gateway-1", "gateway-2")
WORKERS: Final = ("worker-1", "worker-2", "engine-1")
"""The first two publish by themselves, the third by its agent."""
RESTART_SECONDS: Final = 1.0
"""Between a part's end and its new start, as a supervisor waits."""
END_SECONDS: Final = 10.0
FIRST_BYTE_SECONDS: Final = 5.0
"""What a gateway waits for a worker's first byte before it asks another one; these engines need 0.3 s."""
POLL_SECONDS: Final = 0.05


@dataclass(slots=True)
class Part:
    """One process. `wanted`: started again when it ends by itself."""

    name: str
    arguments: tuple[str, ...]
    child: Child
    wanted: bool = True
    starts: int = 1


class Cluster:
    """A context: started inside, all ended after it. Nothing is ready yet."""

    def __init__(self, model: Path, programs: Programs | None = None) -> None:
        """With `programs` there is an API server, by which the gateways find one worker more."""
        self._model = model
        self._programs = programs
        self.workers = WORKERS if programs is None else (*WORKERS, POD)
        self.parts: dict[str, Part] = {}
        self.proxies: dict[str, Proxy] = {}
        names = ["redis", "indexer", *self.workers, *GATEWAYS, "etcd", "etcd-peer", "api-server"]
        admins = ["indexer", "agent-1", *GATEWAYS]
        ways = ["redis", "indexer", "worker-1", "engine-1", "agent-1", "gateway-1", "api-server"]
        ports = iter(free_ports(len(names) + len(admins) + len(ways) + 2))
        self.ports = {name: next(ports) for name in names}
        self.admin_ports = {name: next(ports) for name in admins}
        targets = {**self.ports, "agent-1": self.ports["indexer"]}
        self.proxies = {name: Proxy(next(ports), targets[name]) for name in ways}
        self._events_ports = (next(ports), next(ports))
        self.restarts = 0
        self._supervisor: asyncio.Task[None] | None = None
        self._pod_uid = ""

    async def __aenter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="warmroute-chaos-")
        self.folder = Path(self._temporary.name)
        try:
            for proxy in self.proxies.values():
                await proxy.start()
            if self._programs is not None:
                await self._start_api_server(self._programs)
            self._start_all()
        except BaseException:
            await self._end()
            raise
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        for part in self.parts.values():  # one that is stopped would not hear SIGTERM
            self.send(part.name, signal.SIGCONT)
        stop_all([part.child for part in self.parts.values()])
        for proxy in self.proxies.values():
            await proxy.close()
        self._temporary.cleanup()

    # --- what is started ---------------------------------------------------------------------------------------------

    def reached_at(self, name: str) -> str:
        """Where others reach a part: through its proxy, if it has one."""
        proxy = self.proxies.get(name)
        return f"{self.host(name)}:{self.ports[name]}" if proxy is None else proxy.address

    def host(self, name: str) -> str:
        """Where a part listens."""
        return POD_IP if name == POD else "127.0.0.1"

    async def _start_api_server(self, programs: Programs) -> None:
        ports, folder = self.ports, self.folder
        self._start("etcd", *etcd_arguments(programs, folder, ports["etcd"], ports["etcd-peer"]))
        self._start("api-server", *server_arguments(programs, folder, ports["api-server"], ports["etcd"]))
        self._pod_uid = await asyncio.to_thread(create_pod, ports["api-server"])
        (folder / "kubeconfig").write_text(kubeconfig(self.proxies["api-server"].address), "utf-8")

    def _start_all(self) -> None:
        self._start("redis", "warmroute.cli.embedded_redis", str(self.ports["redis"]))
        redis = {"url": f"redis://{self.reached_at('redis')}/0"}
        self._warmroute("indexer", {"indexer": {**self._listen("indexer"), "open": True}, "redis": redis})
        for name in self.workers:
            settings: Settings = {
                "host": self.host(name),
                "port": self.ports[name],
                "name": self._pod_uid if name == POD else name,
                "address": self.reached_at(name),
                "model_folder": str(self._model),
            }
            if name == "engine-1":
                settings["events_port"], settings["replay_port"] = self._events_ports
            else:
                settings["indexer"] = self.reached_at("indexer")
            self._start(name, "bench.chaos.engine_process", json.dumps(settings))
        agent = {
            "engine": "vllm",
            "engine_url": f"http://{self.reached_at('engine-1')}",
            "indexer": self.proxies["agent-1"].address,
            "pool": POOL,
            "model": MODEL,
            "model_path": str(self._model),
            "worker_id": "engine-1",
            "admin_port": self.admin_ports["agent-1"],
        }
        self._warmroute("agent-1", {"agent": agent})
        for name in GATEWAYS:
            self._warmroute(name, {"gateway": self._gateway(name), "redis": redis})

    def _gateway(self, name: str) -> dict[str, Any]:
        workers = [{"address": self.reached_at(worker), "worker_id": worker} for worker in WORKERS]
        pool: dict[str, Any] = {"name": POOL, "model": MODEL, "model_path": str(self._model), "workers": workers}
        if self._programs is not None:
            selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
            file = str(self.folder / "kubeconfig")
            pool["kubernetes"] = {"selector": selector, "port": self.ports[POD], "kubeconfig": file}
        return {
            **self._listen(name),
            "indexers": [self.reached_at("indexer")],
            "pools": [pool],
            "first_byte_seconds": FIRST_BYTE_SECONDS,
            "drain_seconds": 3.0,
            # What a full disk has to stop.
            "access_log": str(self.folder / f"{name}.access"),
            "decision_log": str(self.folder / f"{name}.decisions"),
        }

    def _listen(self, name: str) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.ports[name], "admin_port": self.admin_ports[name]}

    def _warmroute(self, name: str, sections: dict[str, Any]) -> None:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(sections), "utf-8")  # JSON is YAML
        self._start(name, "warmroute", name.partition("-")[0], "--config", str(file))

    def _start(self, name: str, *arguments: str) -> None:
        self.parts[name] = Part(name, arguments, Child(name, arguments, self.folder / f"{name}.1.log"))

    # --- ends and starts ---------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Start again what has ended by itself."""
        ended_at: dict[str, float] = {}
        while True:
            now = time.monotonic()
            for part in self.parts.values():
                if not part.wanted or part.child.exit_code is None:
                    ended_at.pop(part.name, None)
                elif now - ended_at.setdefault(part.name, now) >= RESTART_SECONDS:
                    self.restarts += 1
                    self.start_again(part.name)
            await asyncio.sleep(POLL_SECONDS)

    def start_again(self, name: str) -> None:
        """A part that has ended."""
        part = self.parts[name]
        part.starts += 1
        part.child = Child(name, part.arguments, self.folder / f"{name}.{part.starts}.log")
        part.wanted = True

    def send(self, name: str, number: signal.Signals) -> None:
        """Does nothing to a part that has ended."""
        child = self.parts[name].child
        if child.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    async def end(self, name: str, number: signal.Signals) -> None:
        """Until it has ended; not started again. Killed where it takes too long."""
        part = self.parts[name]
        part.wanted = False
        self.send(name, number)
        deadline = time.monotonic() + END_SECONDS
        while part.child.exit_code is None:
            if time.monotonic() > deadline:
                self.send(name, signal.SIGKILL)
            await asyncio.sleep(POLL_SECONDS)

    @property
    def gone(self) -> set[str]:
        """Parts that were ended and are not to be started again yet."""
        return {part.name for part in self.parts.values() if not part.wanted}

    def last_lines(self) -> str:
        """The end of each part's output, for messages."""
        return "\n".join(f"{part.name}:\n{part.child.last_lines(3)}" for part in self.parts.values())
