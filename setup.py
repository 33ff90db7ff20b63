"""The optional compiled build: with WARMROUTE_COMPILE=1 the gateway's hot modules become C extensions, by mypyc.

pyproject.toml has everything else. `make compile` runs this in a checkout, deploy/Dockerfile for the image. It needs a
C compiler, Python's headers and mypy; without the variable none of this is needed, and the modules run as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from setuptools import Extension, setup

HOT = {
    "gateway/engines": "base builtin registry sglang tensorrt_llm vllm",
    "gateway/http": "connection deadlines exchange flow_control forwarding framing message outcome reply "
    "request_parser sse upstream upstream_connection",
    "gateway/requests": "access app edit inference_request json_members key models paths relay request_edits resolve "
    "settle usage",
    "gateway/routing": "candidates routed_request router",
    "gateway/routing/census": "census workers",
    "gateway/routing/policies": "facts least_requests lmetric memory policy prices round_robin warm warm_seconds",
    "gateway/routing/state": "approximate load_report means peer_sync peer_view pool_state predictions reservations "
    "retry_budget sessions sparse",
    "gateway/tenants": "headers leased_bucket limiter salts tenant tenant_quota tenants",
    "indexer/reader": "eviction_price mirror",
    "warmroute/process": "cached_labels",
}
"""What every request runs, by folder, and nothing that has what mypyc (2.4) gets wrong:

- a module's `Final` tuple of floats cannot be read (`gateway.discovery.load_reports`);
- an `await` within `except` or `finally` leaves the exception that is handled with whoever runs next on the thread
  (the tests' fixture `nothing_is_handled` finds it).

It runs the `__init__` that `dataclass` makes as Python: what is made for every worker has one of its own
(`gateway.routing.policies.facts`).
"""
PATHS = [f"{folder}/{name}.py" for folder, names in HOT.items() for name in names.split()]
DIGESTS = Path("gateway/compiled.json")
"""Which sources were compiled; `gateway.process.compiled` compares."""


def extensions() -> list[Extension]:
    """The modules of PATHS, compiled; none without WARMROUTE_COMPILE=1."""
    if os.environ.get("WARMROUTE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    digests = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in PATHS}
    DIGESTS.write_text(json.dumps(digests, indent=1), encoding="utf-8")
    # Silent: other modules are `make lint`'s matter. The group's library lies in a package, where every way of
    # installing finds it.
    return mypycify(
        ["--config-file=pyproject.toml", "--follow-imports=silent", *PATHS],
        opt_level="3",
        debug_level="0",
        group_name="gateway.compiled_core",
    )


try:
    setup(ext_modules=extensions())
except BaseException:  # what was compiled before, if anything, is not what is noted now
    DIGESTS.unlink(missing_ok=True)
    raise
