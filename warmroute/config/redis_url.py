"""Where Redis is, as one URL says it. Pure: nothing is resolved or opened here.

    redis://[[user]:password@]host[:6379][/db]                           one server
    unix://[[user]:password@]/path/to/socket[?db=N]                      one server on this machine
    redis+sentinel://[...@]host[:26379],host...[,...]/master-name[/db]   whichever server Sentinel says is the master
    redis+cluster://[...@]host[:6379],host...                            a cluster; any of its nodes may be named

With `rediss` for `redis` every connection is TLS, those to Sentinels too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote

Topology = Literal["single", "sentinel", "cluster"]
Address = tuple[str, int]

_SCHEMES: Final[dict[str, tuple[Topology, bool, int]]] = {
    "redis": ("single", False, 6379),
    "rediss": ("single", True, 6379),
    "redis+sentinel": ("sentinel", False, 26379),
    "rediss+sentinel": ("sentinel", True, 26379),
    "redis+cluster": ("cluster", False, 6379),
    "rediss+cluster": ("cluster", True, 6379),
}
_HOST_PORT: Final = re.compile(r"(\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:@\s]+))(:(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """What a URL says. `addresses` are the server, the Sentinels, or some nodes of the cluster."""

    topology: Topology
    tls: bool
    addresses: tuple[Address, ...] = ()
    socket: str = ""
    master: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def redacted(url: str) -> str:
    """The URL without user and password, for logs and errors. A password with an unescaped / or @ is cut too."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", url, flags=re.DOTALL), flags=re.DOTALL)


def parse(url: str) -> RedisTarget:
    """Raises ValueError with what is wrong and the remedy, never with the password."""
    scheme, found, rest = url.partition("://")
    if scheme == "unix" and found:
        return _parse_unix(rest)
    if not found or scheme not in _SCHEMES:
        raise ValueError(
            "the URL must begin with redis://, rediss://, redis+sentinel://, rediss+sentinel://, redis+cluster://, "
            "rediss+cluster:// or unix://"
        )
    topology, tls, port = _SCHEMES[scheme]
    if "?" in rest or "#" in rest:
        raise ValueError(
            "the URL takes no options; they are settings of their own, such as redis.tls_ca_file. "
            "Write ? and # in a password as %3F and %23"
        )
    authority, _, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    username, password = _credentials(userinfo) if at else (None, None)
    addresses = tuple(_address(host, port) for host in hosts.split(","))
    if topology == "single" and len(addresses) > 1:
        raise ValueError("one server has one host; for several use redis+sentinel:// or redis+cluster://")
    steps = path.split("/") if path else []
    master = unquote(steps.pop(0)) if topology == "sentinel" and steps else ""
    if topology == "sentinel" and not master:
        raise ValueError("name Sentinel's master after the hosts: redis+sentinel://host:26379/mymaster")
    if topology == "cluster" and steps not in ([], ["0"], [""]):
        raise ValueError("a cluster has database 0 alone: leave the path out")
    database = _database(steps.pop(0)) if steps and steps != [""] else 0
    if steps and steps != [""]:
        raise ValueError("the URL's path is too long: a database's number ends it")
    return RedisTarget(topology, tls, addresses, "", master, database, username, password)


def _parse_unix(rest: str) -> RedisTarget:
    path, _, query = rest.partition("?")
    userinfo, at, socket = path.rpartition("@")
    username, password = _credentials(userinfo) if at else (None, None)
    name, _, value = query.partition("=")
    if query and name != "db":
        raise ValueError("a unix:// URL takes no option but db, as in unix:///run/redis.sock?db=1")
    if not socket.startswith("/"):
        raise ValueError("a unix:// URL names the socket's full path: unix:///run/redis.sock")
    return RedisTarget(
        "single",
        tls=False,
        socket=unquote(socket),
        database=_database(value) if query else 0,
        username=username,
        password=password,
    )


def _credentials(userinfo: str) -> tuple[str | None, str | None]:
    username, colon, password = userinfo.partition(":")
    return unquote(username) or None, unquote(password) if colon else None


def _address(text: str, default_port: int) -> Address:
    match = _HOST_PORT.fullmatch(text)
    # What does not parse may be a piece of a password, so it is not repeated.
    if not match:
        raise ValueError(
            "the URL is malformed: give host or host:port, an IPv6 address in brackets, "
            "and write / : @ and , in a password as %2F %3A %40 and %2C"
        )
    port = int(match["port"] or default_port)
    if not 1 <= port <= 65535:
        raise ValueError("the URL's port must be 1 to 65535")
    return match["v6"] or match["host"], port


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("the URL's path must be a database's number, such as /0; write / in a password as %2F")
    return int(text)
