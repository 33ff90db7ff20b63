"""`warmroute up`: everything on this machine until Ctrl-C."""

from __future__ import annotations

import json
import time

from warmroute.cli.children import is_taken
from warmroute.cli.stack import MODEL, PartDiedError, Plan, Ports, Stack, model_folder, say_on_stderr
from warmroute.config.local import UpConfig
from warmroute.config.log import LogConfig
from warmroute.config.redis_url import redacted
from warmroute.process.addresses import address
from warmroute.process.lifecycle import StartupError

WATCH_SECONDS = 0.5
LAST_PORT = 65_535
FIRST_OPEN_PORT = 1024
# Long enough to fill an index block: shorter prompts have nothing to find again.
QUESTION = (
    "Name the planets of the solar system, one a line, with one fact about each of them, and say which of them have "
    "rings, which have moons, and which can be seen with the naked eye on a clear night from a dark place."
)


def run(config: UpConfig, log: LogConfig) -> int:
    """Start, print what runs where, watch, stop. Raises StartupError."""
    _check_ports(config)
    plan = _plan(config, log)
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


def _plan(config: UpConfig, log: LogConfig) -> Plan:
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
        log=log,
    )


def _check_ports(config: UpConfig) -> None:
    """Refuse to start on ports that are taken or beyond the last one, all of them named at once."""
    ports = {
        "--port": [config.port, config.port + 1],
        "--indexer-port": [config.indexer_port],
        "--indexer-admin-port": [config.indexer_admin_port],
        "--worker-port": [config.worker_port + number for number in range(config.workers)],
        "--worker-admin-port": [config.worker_admin_port + number for number in range(config.workers)],
    }
    beyond = [flag for flag, numbers in ports.items() if numbers[0] < 1 or numbers[-1] > LAST_PORT]
    if beyond:
        raise StartupError(f"{', '.join(beyond)}: ports must lie in 1 to {LAST_PORT}, those that follow included")
    every = [number for numbers in ports.values() for number in numbers]
    if len(set(every)) != len(every):
        twice = sorted({number for number in every if every.count(number) > 1})
        flags = [flag for flag, numbers in ports.items() if set(numbers) & set(twice)]
        raise StartupError(
            f"{', '.join(flags)}: two parts would listen on port {', '.join(map(str, twice))}; "
            "choose ports that lie further apart"
        )
    try:
        taken = {flag: [port for port in numbers if is_taken(config.host, port)] for flag, numbers in ports.items()}
    except PermissionError as error:
        low = ", ".join(flag for flag, numbers in ports.items() if min(numbers) < FIRST_OPEN_PORT)
        raise StartupError(f"{low}: ports below {FIRST_OPEN_PORT} need rights that this user lacks") from error
    except OSError as error:
        raise StartupError(f"--host: cannot listen on {config.host}: {error.strerror or error}") from error
    lines = [f"  {flag}: {', '.join(map(str, numbers))}" for flag, numbers in taken.items() if numbers]
    if lines:
        raise StartupError(
            "ports are taken; stop what listens there or choose others with the flag in front, such as\n"
            f"  warmroute up --port 9000   or   make up ARGS='--port 9000'\n{chr(10).join(lines)}"
        )


def _summary(plan: Plan, stack: Stack) -> str:
    _, policy, gateway = plan.gateways[0]
    body = json.dumps(
        {"model": MODEL, "max_tokens": 32, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    )

    def url(port: int) -> str:
        return f"http://{address(plan.host, port)}"

    indexer = address(plan.host, plan.indexer.main)
    lines = [
        "",
        f"Warmroute is up: policy {policy}, model {MODEL}. Ctrl-C stops everything.",
        "",
        f"  gateway   {url(gateway.main)}   OpenAI API",
        f"            {url(gateway.admin)}   /readyz, /metrics",
        f"  indexer   {url(plan.indexer.admin)}   /readyz, /metrics; gRPC on {plan.indexer.main}",
        *(
            f"  worker-{number}  {url(ports.main)}   engine; {url(ports.admin)}/metrics"
            for number, ports in enumerate(plan.workers, start=1)
        ),
        f"  index     {redacted(stack.redis_url)}{'' if plan.redis_url else ' (embedded, in memory)'}",
        f"  logs      {stack.log_folder} (removed at the end)",
        "",
        "Try it, twice; the second time the headers say what the index knew:",
        "",
        f"  curl -si {url(gateway.main)}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        "",
        f"See what the index holds: warmroute index --redis-url {redacted(stack.redis_url)} --indexers {indexer} \\",
        f"    --grpc-token-file {stack.token_file}",
        "",
    ]
    return "\n".join(lines)
