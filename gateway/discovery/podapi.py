"""List and watch pods: the calls to the Kubernetes API, their deadlines and their ways to fail.

Bodies are read as JSON, not as the client's typed models: a pod of a GPU worker is 10 to 20 KB, of which five fields
matter, and a typed model refuses a pod with a field value that is newer than the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import orjson
import yaml
from kubernetes.aio import client
from kubernetes.aio import config as credentials

from gateway.discovery.pods import Pod
from warmroute.config.pool import KubernetesDiscoveryConfig

FAILURES = (
    aiohttp.ClientError,
    client.ApiException,
    credentials.ConfigException,
    OSError,  # TLS, refused connections, unreadable credentials, and TimeoutError
    ValueError,  # JSON cut off in the middle, a line longer than the reader's buffer, malformed certificates
    yaml.YAMLError,
)


class ApiUnavailableError(Exception):
    """The API server cannot be reached, refused, or broke off."""


class HistoryExpiredError(ApiUnavailableError):
    """410: the server no longer holds the changes since the version we asked for. A new list tells the whole state."""


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods that match, as of `resource_version`."""

    resource_version: str
    pods: list[Pod]


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED, or BOOKMARK (whose pod holds a version and nothing else)."""

    kind: str
    pod: Pod


@asynccontextmanager
async def connect(config: KubernetesDiscoveryConfig) -> AsyncIterator[PodApi]:
    """A client for `config`; ApiUnavailableError where its credentials cannot be read."""
    settings = client.Configuration()
    with _failures("Kubernetes credentials"):
        if config.kubeconfig is None:
            credentials.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            # persist_config would write refreshed tokens into the file, which is mounted read-only in a pod.
            await credentials.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(config.kubeconfig), client_configuration=settings, persist_config=False
            )
        api_client = client.ApiClient(settings)
    try:
        yield PodApi(client.CoreV1Api(api_client), config)
    finally:
        await api_client.close()  # type: ignore[no-untyped-call]


class PodApi:
    """The two calls that discovery makes."""

    def __init__(self, core: client.CoreV1Api, config: KubernetesDiscoveryConfig) -> None:
        self._core = core
        self._namespace = config.namespace
        self._selector = config.selector

    async def list(self, deadline_seconds: float) -> PodList:
        """All pods that match, or ApiUnavailableError."""
        with _failures("list pods"):
            async with asyncio.timeout(deadline_seconds):
                # No resource_version: "0" may be answered from the cache of a server that lags, and would bring back
                # pods whose end we have seen already.
                response = await self._core.list_namespaced_pod_without_preload_content(
                    self._namespace, label_selector=self._selector, _request_timeout=float(deadline_seconds)
                )
                async with response:
                    body = await response.read()
                    _check_status(response.status, body)
            answer = orjson.loads(body)
            # `items` is null, not [], where a server marshals a nil slice.
            return PodList(answer["metadata"]["resourceVersion"], [_pod(item) for item in answer["items"] or ()])

    @asynccontextmanager
    async def watch(
        self, resource_version: str, watch_seconds: int, quiet_seconds: float
    ) -> AsyncIterator[AsyncIterator[PodEvent]]:
        """The events after `resource_version`, until the server ends the watch; ApiUnavailableError where it breaks.

        `resource_version` must be a list's: an empty one replays every pod as ADDED and says nothing of those gone.
        """
        with _failures("watch pods"):
            async with asyncio.timeout(quiet_seconds):
                response = await self._core.list_namespaced_pod_without_preload_content(
                    self._namespace,
                    label_selector=self._selector,
                    watch=True,
                    resource_version=resource_version,
                    # Without bookmarks a watch of a stable pool is silent for hours and looks like a dead socket.
                    allow_watch_bookmarks=True,
                    # Without it the server picks 30 to 60 minutes; and the client library's own Watch, were it in
                    # use, would retry a 410 by itself and hide it.
                    timeout_seconds=watch_seconds,
                    # The client cuts every call after 300 s unless told otherwise: the server is to end it first.
                    _request_timeout=float(watch_seconds) + quiet_seconds,
                )
                if response.status != 200:
                    _check_status(response.status, await response.read())
        try:
            yield _events(response, quiet_seconds)
        finally:
            # TLS's orderly close waits for the other end's farewell: a dead one would hold the socket for 30 s.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()


async def _events(response: aiohttp.ClientResponse, quiet_seconds: float) -> AsyncIterator[PodEvent]:
    while (event := await _next_event(response, quiet_seconds)) is not None:
        yield event


async def _next_event(response: aiohttp.ClientResponse, quiet_seconds: float) -> PodEvent | None:
    """The next line of a watch; None at its end."""
    with _failures("watch pods"):
        # A connection whose other end vanished (a node died, a NAT entry expired) delivers neither data nor an error.
        async with asyncio.timeout(quiet_seconds):
            line = await response.content.readline()
        if not line:
            return None
        event = orjson.loads(line)
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            # A watch answers 200 before it knows whether it can serve: its errors arrive as events with a Status.
            raise _refusal(body.get("code", 0), body)
        return PodEvent(kind, body if kind == "BOOKMARK" else _pod(body))


def _pod(body: Any) -> Pod:
    """The body, if it is an object with the identity that every pod has; KeyError or TypeError else."""
    metadata = body["metadata"]
    if not (metadata["name"] and metadata["uid"]):
        raise ValueError("a pod without name or uid")
    return cast(Pod, body)


def _check_status(status: int, body: bytes) -> None:
    """Raise for an answer other than 200. The client library checks only answers that it decodes itself."""
    if status == 200:
        return
    try:
        raise _refusal(status, orjson.loads(body))
    except ValueError:  # a proxy's HTML, not a Status
        raise ApiUnavailableError(f"HTTP {status}: {body[:200]!r}") from None


def _refusal(code: int, status: Any) -> ApiUnavailableError:
    """The error for a Kubernetes Status object."""
    message = str(status.get("message") if isinstance(status, dict) else status)[:500]
    if code == 410:
        return HistoryExpiredError(message)
    if code in {401, 403}:
        message += " (the gateway's service account needs the verbs get, list and watch on pods)"
    return ApiUnavailableError(f"HTTP {code}: {message}")


@contextmanager
def _failures(doing: str) -> Iterator[None]:
    """Turn every way in which a call can fail into ApiUnavailableError; the loop above knows no other."""
    try:
        yield
    except TimeoutError as error:
        raise ApiUnavailableError(f"{doing}: nothing heard in time") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ApiUnavailableError(f"{doing}: the answer is not Kubernetes' ({error!r})") from error
    except FAILURES as error:
        raise ApiUnavailableError(f"{doing}: {error!r}") from error
