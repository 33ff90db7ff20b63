"""The command `warmroute`: one subcommand a part, and two that run them all on one machine."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

import warmroute
from warmroute.cli.children import PARENT_VARIABLE, end_with_parent, is_taken
from warmroute.cli.settings import ConfigError, add_flags, load, unknown_variables
from warmroute.config.model import Config
from warmroute.process.descriptors import raise_limit
from warmroute.process.lifecycle import StartupError, cannot_listen

# 0: done; 1: it failed while running; 2: it was called or configured wrongly, or cannot start.
FAILED, MISUSED = 1, 2
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 0.5, 3600.0


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `run` returns the exit code; parts are imported only when they run.

    `example` may have several lines. `flags` declares what is no setting.
    """

    name: str
    help: str
    example: str
    shared: tuple[str, ...]
    run: Callable[[Config, argparse.Namespace], int]
    flags: Callable[[argparse.ArgumentParser], None] = lambda _: None


def _gateway(config: Config, _: argparse.Namespace) -> int:
    gateway = config.gateway
    if gateway.processes == 1:
        from gateway.process.gateway import serve

        return _run_part(serve(gateway, config.redis, config.grpc, config.tenants))
    from gateway.process.processes import supervise

    try:  # processes that share a port would share it with a stranger's too
        taken = OSError(errno.EADDRINUSE, "Address already in use") if is_taken(gateway.host, gateway.port) else None
    except OSError as error:
        taken = error
    if taken is not None:
        raise cannot_listen("gateway.port", gateway.host, gateway.port, taken)
    return _run_part(supervise(gateway, partial(_gateway_process, config)))


def _gateway_process(config: Config, number: int, admin_socket: Path) -> None:
    """One process of several; see gateway.processes."""
    from gateway.process.gateway import serve

    os.setsid()  # Ctrl-C in the terminal reaches the parent alone, which ends its processes in order
    parent = multiprocessing.parent_process()
    if parent is not None:
        os.environ[PARENT_VARIABLE] = str(parent.pid)
    _log(config, f"gateway {number}: ")
    try:
        part = serve(config.gateway, config.redis, config.grpc, config.tenants, admin_socket=admin_socket)
        sys.exit(_run_part(part))
    except StartupError as error:
        print(f"warmroute gateway: {error}", file=sys.stderr)
        sys.exit(MISUSED)


def _indexer(config: Config, _: argparse.Namespace) -> int:
    from indexer.server.process import serve

    return _run_part(serve(config.indexer, config.redis, config.grpc))


def _worker(config: Config, _: argparse.Namespace) -> int:
    # Spinning OpenMP threads starve the engine's neighbours on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", str(config.worker.threads))
    try:
        from worker.app import serve
    except ModuleNotFoundError as error:
        raise StartupError(
            f"the built-in engine needs the package {error.name}: pip install 'warmroute[engine]'"
        ) from error

    return _run_part(serve(config.worker, config.grpc))


def _agent(config: Config, _: argparse.Namespace) -> int:
    from worker.adapters.agent import serve

    return _run_part(serve(config.agent, config.grpc))


def _index(config: Config, arguments: argparse.Namespace) -> int:
    from warmroute.cli.index import run

    return run(config, arguments.json, arguments.watch, arguments.prompt)


def _index_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, a line for each with --watch")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=2.0,
        metavar="SECONDS",
        help="show it again every so many seconds, 2 when left out, until Ctrl-C",
    )
    parser.add_argument(
        "--prompt",
        metavar="FILE",
        help="show who holds how much of a prompt: FILE is the JSON body of a chat or completion request, or plain "
        "text; - reads stdin",
    )


def _explain(config: Config, arguments: argparse.Namespace) -> int:
    from warmroute.cli.explain import run

    return run(config, arguments.file, arguments.header, as_json=arguments.json)


def _explain_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the JSON body of a request, as a client sends it; - reads stdin")
    parser.add_argument("--json", action="store_true", help="print the gateway's answer as one JSON object")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="HEADER",
        help="a header that the client sends, such as 'X-Session-ID: a'; may be given several times",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_WATCH_SECONDS <= seconds <= LONGEST_WATCH_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} is refused: give {SHORTEST_WATCH_SECONDS:g} to {LONGEST_WATCH_SECONDS:g} seconds"
        )
    return seconds


def _demo_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in the last line")


def _up(config: Config, _: argparse.Namespace) -> int:
    from warmroute.cli.up import run

    _end_like_ctrl_c()
    return run(config.up, config.log)


def _demo(config: Config, arguments: argparse.Namespace) -> int:
    from warmroute.cli.demo import run

    _end_like_ctrl_c()
    return run(config.demo, config.log, as_json=arguments.json)


def _end_like_ctrl_c() -> None:
    """SIGTERM and a closed terminal end everything as Ctrl-C does.

    So does SIGINT itself where the shell has it ignored, as for what it starts in the background.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _replay(config: Config, arguments: argparse.Namespace) -> int:
    from warmroute.cli.replay import run

    return run(config.replay, arguments.trace, as_json=arguments.json, plot_path=arguments.plot)


def _replay_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="JSON lines, plain or gzip: a trace in Mooncake's or Weka's format, or a gateway's decision log",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG too; needs warmroute[plot]")


COMMANDS = (
    Command("up", "run everything on this machine until Ctrl-C", "warmroute up --workers 2 --port 9000", ("log",), _up),
    Command(
        "demo",
        "hold one scripted conversation, warm and round-robin, and compare",
        "warmroute demo --json",
        (),
        _demo,
        _demo_flags,
    ),
    Command(
        "gateway",
        "route requests to workers",
        "warmroute gateway --config warmroute.yaml (docs/by-hand.md has such a file)",
        ("redis", "grpc", "tenants", "log"),
        _gateway,
    ),
    Command(
        "indexer",
        "collect what workers hold into Redis",
        "warmroute indexer --redis-url redis://redis:6379/0",
        ("redis", "grpc", "log"),
        _indexer,
    ),
    Command(
        "worker",
        "serve a model with the built-in engine",
        "warmroute worker --model-path ./llama --model my-llama --indexer indexer:50051",
        ("grpc", "log"),
        _worker,
    ),
    Command(
        "agent",
        "make a vLLM, SGLang, TensorRT-LLM or other engine a worker",
        "warmroute agent --engine vllm --engine-url http://127.0.0.1:8000 --indexer indexer:50051",
        ("grpc", "log"),
        _agent,
    ),
    Command(
        "index",
        "show what the index holds: workers, keys, lag, memory, and who holds a prompt",
        "warmroute index --redis-url redis://redis:6379/0 --indexers indexer:50051\n"
        "warmroute index --pool chat --watch 5\n"
        "warmroute index --json --pool chat\n"
        "warmroute index --config warmroute.yaml --prompt request.json\n"
        "echo 'Once upon a time' | warmroute index --model-path /models/mine --prompt -",
        ("redis", "grpc", "log"),
        _index,
        _index_flags,
    ),
    Command(
        "explain",
        "ask a gateway where it would send a request, and why; sends nothing",
        "warmroute explain request.json\n"
        "warmroute explain request.json --url http://10.0.0.7:8001 --path /v1/messages --tenant team-a\n"
        """echo '{"model": "m", "prompt": "Once upon a time"}' | warmroute explain - --path /v1/completions --json""",
        ("log",),
        _explain,
        _explain_flags,
    ),
    Command(
        "replay",
        "run a trace of requests through simulated workers, and compare routing policies",
        "warmroute replay conversation.jsonl.gz --speed 3\n"
        "warmroute replay decisions.jsonl --workers 12 --cache-tokens 500000 --policy warm,lmetric --plot ttft.png\n"
        "warmroute replay sessions.jsonl.gz --machine moe --sessions 200 --policy warm,warm:g=1 --runs 5 --json",
        ("log",),
        _replay,
        _replay_flags,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, configure, run; errors are lines on stderr, never tracebacks."""
    arguments = _parser().parse_args(argv)
    command: Command = arguments.command
    try:
        config = load(arguments, os.environ, command.name, *command.shared)
        _log(config)
        for name in unknown_variables(os.environ, command.name, *command.shared):
            logging.getLogger("warmroute").warning("the environment variable %s is no setting; it is ignored", name)
        return command.run(config, arguments)
    except (ConfigError, StartupError) as error:
        print(f"warmroute {command.name}: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return 130


def _log(config: Config, prefix: str = "") -> None:
    logging.basicConfig(
        level=config.log.level.upper(),
        format=f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s",
        stream=sys.stderr,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute",
        description="Prefix-cache-aware routing gateway for LLM inference.",
        epilog="Every flag is also an environment variable and a place in the YAML file; see warmroute COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"warmroute {warmroute.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=_examples(command.example),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(command=command)
        command.flags(subparser)
        add_flags(subparser, command.name, *command.shared)
    return parser


def _examples(text: str) -> str:
    lines = text.splitlines()
    return f"Example: {text}" if len(lines) == 1 else "\n  ".join(["Examples:", *lines])


def _run_part(part: Coroutine[Any, Any, None]) -> int:
    end_with_parent()
    raise_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(part)
        except StartupError:
            raise
        except Exception:
            logging.getLogger("warmroute").exception("it failed")
            return FAILED
    return 0
