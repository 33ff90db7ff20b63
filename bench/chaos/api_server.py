"""A real API server for the bench, where one can be had, and the pod that gateways find by it.

`python -m bench.chaos.api_server PROGRAM ARGUMENT...` becomes that program, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmroute.cli.children import end_with_parent

VARIABLE: Final = "WARMROUTE_TEST_MINIAPI"
POD: Final = "pod-1"
POD_IP: Final = "127.0.0.2"
LABELS: Final = {"warmroute.dev/pool": "chaos"}
START_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.1
_INSECURE: Final = ssl.create_default_context()
_INSECURE.check_hostname = False
_INSECURE.verify_mode = ssl.CERT_NONE  # it signs its own certificate


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the two programs are."""

    server: str
    etcd: str


def programs() -> Programs | None:
    """None where one of them cannot be had."""
    server, etcd = os.environ.get(VARIABLE), os.environ.get("WARMROUTE_TEST_ETCD") or shutil.which("etcd")
    return Programs(server, etcd) if server and etcd else None


def etcd_arguments(programs: Programs, folder: Path, client_port: int, peer_port: int) -> tuple[str, ...]:
    """What the bench's child runs."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return (
        *("bench.chaos.api_server", programs.etcd, "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
    )


def server_arguments(programs: Programs, folder: Path, port: int, etcd_port: int) -> tuple[str, ...]:
    """What the bench's child runs."""
    etcd, certificates = f"http://127.0.0.1:{etcd_port}", str(folder / "certificates")
    return ("bench.chaos.api_server", programs.server, "-port", str(port), "-etcd", etcd, "-cert-dir", certificates)


def create_pod(port: int) -> str:
    """The pod at POD_IP, ready; its UID. Waits until the server at `port` answers; raises TimeoutError."""
    deadline = time.monotonic() + START_SECONDS
    url = f"https://127.0.0.1:{port}/api/v1/namespaces/default/pods"
    pod = {"metadata": {"name": POD, "labels": LABELS}, "spec": {"containers": []}}
    status = {"phase": "Running", "podIP": POD_IP, "conditions": [{"type": "Ready", "status": "True"}]}
    while True:
        try:
            made = _call("POST", url, {"apiVersion": "v1", "kind": "Pod", **pod}, "application/json")
            _call("PATCH", f"{url}/{POD}/status", {"status": status}, "application/merge-patch+json")
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server does not start: {error}") from error
            time.sleep(POLL_SECONDS)
        else:
            return str(made["metadata"]["uid"])


def kubeconfig(address: str) -> str:
    """A kubeconfig file's text, which is JSON and so YAML; `address`: where gateways reach the server."""
    cluster = {"server": f"https://{address}", "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "chaos",
            "clusters": [{"name": "chaos", "cluster": cluster}],
            "users": [{"name": "chaos", "user": {}}],
            "contexts": [{"name": "chaos", "context": {"cluster": "chaos", "user": "chaos"}}],
        }
    )


def _call(method: str, url: str, body: Any, content_type: str) -> Any:
    request = urllib.request.Request(  # noqa: S310 - loopback
        url, json.dumps(body).encode(), {"content-type": content_type}, method=method
    )
    with urllib.request.urlopen(request, timeout=5, context=_INSECURE) as reply:  # noqa: S310
        return json.loads(reply.read())


if __name__ == "__main__":
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - what the bench was given
