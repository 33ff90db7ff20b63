"""`warmroute up`: everything on this machine until Ctrl-C."""

from __future__ import annotations

import json
import time

from warmroute.cli.children import is_taken
from warmroute.cli.stack import MODEL, PartDiedError, Plan, Ports, Stack, model_folder, say_on_stderr
from warmroute.config import UpConfig
from warmroute.lifecycle import StartupError

WATCH_SECONDS = 0.5
# Long enough to fill an index block: shorter prompts have nothing to find again.
QUESTION = (
    "Name the planets of the solar system, one a line, with one fact about each of them, and say which of them have "
    "rings, which have moons, and which can be seen with the naked eye on a clear night from a dark place."
)


def run(config: UpConfig) -> int:
    """Start, print what runs where, watch, stop. Raises StartupError."""
    plan = _plan(config)
    _check_ports(config, plan)
    say_on_stderr(f"Starting the index, {config.workers} workers and the gateway ...")
    with Stack(plan, say_on_stderr) as stack:
        print(_summary(plan, stack), flush=True)
        try:
            _watch(stack)
        except KeyboardInterrupt:
            say_on_stderr("\nStopping ...")
    say_on_stderr("Stopped.")
    return 0


def _watch(stack: Stack) -> None:
    """Until Ctrl-C: say which worker ended; without the other parts, or without any worker, there is no going on."""
    while True:
        time.sleep(WATCH_SECONDS)
        for part in stack.ended():
            if part.vital:
                raise PartDiedError(part.child)
            say_on_stderr(f"{PartDiedError(part.child)}\nThe others go on.")
        if not any(name.startswith("worker") for name in stack.parts):
            raise StartupError(f"no worker is left. Their logs are in {stack.log_folder}")


def _plan(config: UpConfig) -> Plan:
    return Plan(
        host=config.host,
        indexer=Ports(config.indexer_port, config.indexer_admin_port),
        workers=[
            Ports(config.worker_port + number, config.worker_admin_port + number) for number in range(config.workers)
        ],
        gateways=[("gateway", config.policy, Ports(config.port, config.port + 1))],
        redis_url=config.redis_url,
        model_path=model_folder(),
        start_seconds=config.start_seconds,
    )


def _check_ports(config: UpConfig, plan: Plan) -> None:
    """Refuse to start on ports that are taken, all of them named at once."""
    flags = {
        "--port": [plan.gateways[0][2].main, plan.gateways[0][2].admin],
        "--indexer-port": [plan.indexer.main],
        "--indexer-admin-port": [plan.indexer.admin],
        "--worker-port": [ports.main for ports in plan.workers],
        "--worker-admin-port": [ports.admin for ports in plan.workers],
    }
    taken = {flag: [port for port in ports if is_taken(config.host, port)] for flag, ports in flags.items()}
    lines = [f"  {flag}: {', '.join(map(str, ports))}" for flag, ports in taken.items() if ports]
    if lines:
        raise StartupError(
            "ports are taken; stop what listens there or choose others with the flag in front:\n" + "\n".join(lines)
        )
    every = [port for ports in flags.values() for port in ports]
    if len(set(every)) != len(every):
        raise StartupError(f"two parts would listen on one port ({flags}); choose ports that lie further apart")


def _summary(plan: Plan, stack: Stack) -> str:
    _, policy, gateway = plan.gateways[0]
    body = json.dumps({"model": MODEL, "max_tokens": 32, "messages": [{"role": "user", "content": QUESTION}]})
    url = f"http://{plan.host}:{gateway.main}"
    lines = [
        "",
        f"Warmroute is up: policy {policy}, model {MODEL}. Ctrl-C stops everything.",
        "",
        f"  gateway   {url}   OpenAI API",
        f"            http://{plan.host}:{gateway.admin}   /readyz, /metrics",
        f"  indexer   {plan.host}:{plan.indexer.main}   gRPC; http://{plan.host}:{plan.indexer.admin}/metrics",
        *(
            f"  worker-{number}  http://{plan.host}:{ports.main}   engine; http://{plan.host}:{ports.admin}/metrics"
            for number, ports in enumerate(plan.workers, start=1)
        ),
        f"  index     {plan.redis_url or 'embedded Valkey, in memory'}",
        f"  logs      {stack.log_folder}",
        "",
        "Try it, twice; the second time the headers say what the index knew:",
        "",
        f"  curl -si {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        "",
    ]
    return "\n".join(lines)
