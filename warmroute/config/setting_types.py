"""What settings are made of: addresses and URLs that are checked, and the base of all sections."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from warmroute.config.redis_url import parse, redacted
from warmroute.config.secret import conceal

DEFAULT_INDEX_BLOCK_TOKENS: Final = 64
"""Tokens in an index block where nobody says otherwise."""

Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _check_host_port(value: str) -> str:
    """host:port that can be resolved or connected to: a name, an IPv4 address, or an IPv6 address in brackets."""
    if "://" in value:
        raise ValueError("leave the scheme out: give host:port")
    host, _, port = value.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("give host:port with a port of 1 to 65535")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if name != host or ":" in host:
        if name == host:
            raise ValueError("put an IPv6 address in brackets: [::1]:8000")
        ipaddress.IPv6Address(name)
    elif not _HOST.fullmatch(host):
        raise ValueError("the host must be a DNS name or an IP address")
    return value


def _check_host_ports(value: str) -> str:
    """One or more of them with commas between, as one text."""
    return ",".join(_check_host_port(item.strip()) for item in value.split(","))


def _check_redis_url(value: str) -> str:
    parse(value)
    return value


def _check_http_url(value: str) -> str:
    """http://host:port or https://host:port, perhaps with a path before the API's own."""
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError("give http://host:port or https://host:port, without user, query or fragment")
    _ = parts.port  # raises ValueError for a port that is none
    return value.rstrip("/")


def _check_endpoint(value: str) -> str:
    """A ZMQ endpoint, as the engine's flags have it."""
    scheme, _, rest = value.partition("://")
    host, _, port = rest.rpartition(":")
    reachable = host and port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535
    if not (reachable if scheme == "tcp" else scheme == "ipc" and rest):
        raise ValueError("give a ZMQ endpoint such as tcp://127.0.0.1:5557 or ipc:///run/engine/events")
    return value


class _ConcealedUrl(str):
    """Errors print the input's repr: without user and password here."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redacted(self))


def _conceal_url(value: object) -> object:
    return _ConcealedUrl(value) if isinstance(value, str) else conceal(value)


_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
HostPort = Annotated[str, AfterValidator(_check_host_port)]
RedisUrl = Annotated[str, AfterValidator(_check_redis_url), BeforeValidator(_conceal_url)]
HttpUrl = Annotated[str, AfterValidator(_check_http_url)]
ZmqEndpoint = Annotated[str, AfterValidator(_check_endpoint)]
HostPorts = Annotated[str, AfterValidator(_check_host_ports)]
_HUB_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
HubName = Annotated[str, StringConstraints(pattern=f"^{_HUB_PART}/{_HUB_PART}(@[A-Za-z0-9_./-]{{1,96}})?$")]
PolicyName = Literal[
    "warm", "round_robin", "least_requests", "power_of_two", "consistent_hash", "prefix_only", "lmetric"
]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
