"""`warmroute index`: what the index holds now, once or again and again, and who holds how much of a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson
from redis.exceptions import NoPermissionError, RedisError

from gateway.prompts.hub import HubError, hub_folder
from gateway.prompts.offered_files import FileSet, ModelFilesError, fetch, most_common, unpack
from indexer.inspection.ledger_reader import Reader, Survey
from indexer.layout import WorkerFacts
from warmroute.cli import index_table
from warmroute.cli.index_prompt import PromptView, key_prompt, named_model, parse_prompt, view_prompt
from warmroute.cli.index_report import Report
from warmroute.cli.index_streams import describe
from warmroute.cli.input_file import read_input
from warmroute.config.model import Config
from warmroute.config.redis_url import redacted
from warmroute.config.worker import WorkerConfig
from warmroute.process.lifecycle import StartupError, until_signal
from warmroute.redis.client import Client, connect
from warmroute.rpc.security import ClientSecurity

# How old the walk over the key space may be while watching: it is the one reading whose cost grows with the server.
SURVEY_SECONDS: Final = 30.0
CONNECTIONS: Final = 2
_CLEAR, _HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


def run(config: Config, as_json: bool, watch_seconds: float | None, prompt_file: str | None) -> int:
    """Print and return 0, on SIGINT and SIGTERM too while watching. Raises StartupError."""
    prompt = _read_prompt(prompt_file, config.gateway.body_limit_bytes) if prompt_file is not None else None
    try:
        asyncio.run(_run(config, as_json, watch_seconds, prompt))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read this, such as `head`, has enough. The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


async def _run(config: Config, as_json: bool, watch_seconds: float | None, prompt: bytes | None) -> None:
    redis = connect(config.redis, connections=CONNECTIONS)
    try:
        inspector = Inspector(config, redis)
        look = inspector.report if prompt is None else lambda: inspector.holders(prompt)
        if watch_seconds is None:
            _print(await _within_reach(config, look), as_json)
        else:
            await until_signal(_watch(config, look, as_json, watch_seconds))
    finally:
        await redis.aclose()


async def _within_reach(config: Config, look: Callable[[], Awaitable[Report | PromptView]]) -> Report | PromptView:
    try:
        return await look()
    except (RedisError, OSError) as error:
        raise StartupError(
            f"redis.url: {redacted(config.redis.url)} cannot be read: {str(error).rstrip('.')}. "
            "Name the Redis of the index with --redis-url, and see that it runs and lets this user in"
        ) from error


async def _watch(
    config: Config, look: Callable[[], Awaitable[Report | PromptView]], as_json: bool, seconds: float
) -> None:
    """The first look must succeed; later ones that do not are said, and tried again."""
    seen = await _within_reach(config, look)
    screen = not as_json and sys.stdout.isatty()
    if screen:
        sys.stdout.write(_CLEAR)
    trouble: str | None = None
    try:
        while True:
            if screen:
                _draw(_text(seen), seconds, trouble)
            elif trouble is None:
                _print(seen, as_json, stamp=True)
            else:
                print(trouble, file=sys.stderr, flush=True)
            await asyncio.sleep(seconds)
            try:
                seen, trouble = await _within_reach(config, look), None
            except StartupError as error:
                trouble = f"{time.strftime('%H:%M:%S')}  {error}"
    finally:
        if screen:
            print(flush=True)  # the shell's prompt goes below the last picture


def _draw(text: str, seconds: float, trouble: str | None) -> None:
    """Over what is there, at most a screen of it."""
    size = shutil.get_terminal_size()
    head = trouble or f"{time.strftime('%H:%M:%S')}  every {seconds:g} s, Ctrl-C ends"
    lines = [head, *text.splitlines()]
    if len(lines) > size.lines:
        hidden = len(lines) - size.lines + 1
        lines = [*lines[: size.lines - 1], f"... {hidden} more lines: make the window higher, or choose a --pool"]
    body = f"{_TO_LINE_END}\n".join(line[: size.columns] for line in lines)
    sys.stdout.write(f"{_HOME}{body}{_TO_LINE_END}{_TO_SCREEN_END}")
    sys.stdout.flush()


def _print(seen: Report | PromptView, as_json: bool, *, stamp: bool = False) -> None:
    if as_json:
        print(orjson.dumps(seen.to_json() if isinstance(seen, Report) else asdict(seen)).decode(), flush=True)
    else:
        print(f"{time.strftime('%H:%M:%S')}\n{_text(seen)}\n" if stamp else _text(seen), flush=True)


def _text(seen: Report | PromptView) -> str:
    if isinstance(seen, PromptView):
        return index_table.prompt_text(seen)
    return index_table.report_text(seen)


class Inspector:
    """Looks at the index as the configuration says. All methods raise RedisError, OSError or StartupError."""

    def __init__(self, config: Config, redis: Client) -> None:
        self._config = config
        self._redis = redis
        self._reader = Reader(redis)
        self._security = ClientSecurity(config.grpc)
        self._survey: Survey | None = None
        self._surveyed_at = 0.0

    async def report(self) -> Report:
        """The server, the pools and what indexers add. Raises StartupError where the wanted pool is not there."""
        started_at = time.monotonic()
        survey = await self._surveyed()
        names = [self._wanted(survey)] if self._config.index.pool is not None else survey.pools
        server = await self._reader.server()
        pools = [await self._reader.pool(name, survey) for name in names]
        indexers, streams = await describe(
            self._config.index.indexers or self._config.gateway.indexers, names, self._security
        )
        return Report(
            redis=redacted(self._config.redis.url),
            server=server,
            survey_complete=survey.complete,
            pools=pools,
            indexers=indexers,
            streams=streams,
            read_seconds=time.monotonic() - started_at,
        )

    async def holders(self, data: bytes) -> PromptView:
        """Who holds how much of a prompt. Raises StartupError where it has no keys, or no pool is meant."""
        survey = await self._surveyed()
        name = await self._pool_of(data, survey)
        pool = await self._reader.pool(name, survey)
        entries = await self._reader.entries(name, survey)
        facts = {worker: entry.record.facts for part in entries.values() for worker, entry in part.items()}
        model = next(iter(facts.values())).model if facts else ""
        body, kind = parse_prompt(data, model=model or name)
        prompt, space = await key_prompt(body, facts.values(), lambda: self._model_folder(name, facts))
        matches = await self._reader.match(name, survey, prompt.keys)
        workers = {worker.worker_id: (worker.address, worker.late) for worker in pool.workers}
        return view_prompt(name, kind, prompt, space, workers, matches)

    async def _surveyed(self) -> Survey:
        if self._survey is None or time.monotonic() - self._surveyed_at > SURVEY_SECONDS:
            self._survey = await self._reader.survey(self._config.index.pool)
            self._surveyed_at = time.monotonic()
        return self._survey

    def _wanted(self, survey: Survey) -> str:
        pool = self._config.index.pool
        if pool is None or pool not in survey.pools:
            self._survey = None  # it may come
            raise StartupError(
                f"index.pool: {pool!r} is not in the index at {redacted(self._config.redis.url)}. "
                "Leave --pool out to see which pools are; a pool is there once a worker has published to it"
            )
        return pool

    async def _pool_of(self, data: bytes, survey: Survey) -> str:
        """The pool that is meant: the wanted one, the only one, or the one that serves the model named."""
        if self._config.index.pool is not None:
            return self._wanted(survey)
        if len(survey.pools) == 1:
            return survey.pools[0]
        model = named_model(data)
        serving = []
        for name in survey.pools:
            entries = await self._reader.entries(name, survey)
            models = {entry.record.facts.model for part in entries.values() for entry in part.values()}
            if model in models:
                serving.append(name)
        if len(serving) == 1:
            return serving[0]
        known = ", ".join(survey.pools) or "none"
        raise StartupError(
            f"index.pool: the prompt's model {model!r} is served by {len(serving)} pools; choose one with --pool. "
            f"Pools in the index: {known}"
        )

    @contextlib.asynccontextmanager
    async def _model_folder(self, pool: str, facts: Mapping[str, WorkerFacts]) -> AsyncIterator[Path]:
        """The tokenizer's folder: of the flag, of the pool in the file, of the workers' files in the index, or of the
        built-in model. Raises StartupError."""
        with tempfile.TemporaryDirectory(prefix="warmroute-model-") as name:
            folder = await self._named_folder(pool)
            trouble = ""
            if folder is None:
                folder, trouble = await self._offered_files(pool, facts.values(), Path(name))
            folder = folder or _builtin_folder(facts.values())
            if folder is None:
                raise StartupError(
                    f"index.model_path: nothing says where the tokenizer of pool {pool!r} lies, and {trouble}. Name "
                    "the folder that its engine serves with --model-path, or a file with gateway.pools with --config; "
                    "token ids need none"
                )
            yield folder

    async def _offered_files(self, pool: str, facts: Iterable[WorkerFacts], folder: Path) -> tuple[Path | None, str]:
        """The folder with the files that most workers offer in it; None, and why there are none."""
        files = most_common(filter(None, map(FileSet.of, facts)), None)
        if files is None:
            return None, "its workers offer none"
        try:
            unpack(await fetch(self._redis, pool, files), folder)
        except (ModelFilesError, NoPermissionError) as error:
            return None, str(error)
        return folder, ""

    async def _named_folder(self, pool: str) -> Path | None:
        if self._config.index.model_path is not None:
            return self._config.index.model_path
        for known in self._config.gateway.pools:
            if known.name == pool and known.model_path is not None:
                return known.model_path
            if known.name == pool and known.tokenizer is not None:
                try:
                    return await asyncio.to_thread(hub_folder, known.tokenizer)
                except HubError as error:
                    raise StartupError(f"gateway.pools: {error}") from error
        return None


def _builtin_folder(facts: Iterable[WorkerFacts]) -> Path | None:
    if WorkerConfig().model not in {each.model for each in facts}:
        return None
    try:
        from worker.model_cache import ModelCacheError, ensure_model
    except ModuleNotFoundError:
        return None
    try:
        return ensure_model()
    except ModelCacheError as error:
        raise StartupError(f"index.model_path: {error}") from error


def _read_prompt(name: str, limit_bytes: int) -> bytes:
    """The file, or stdin for `-`. Raises StartupError."""
    data = read_input(name, limit_bytes, argument="--prompt")
    if not data:
        raise StartupError(f"--prompt: {name} is empty; give the JSON body of a request, or text")
    return data
