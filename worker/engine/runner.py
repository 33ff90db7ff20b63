"""The engine's own thread, and the asyncio side of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from warmroute.config.worker import WorkerConfig
from worker.engine.engine import Engine
from worker.engine.errors import EngineStoppedError, QueueFullError
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput
from worker.engine.scheduler import SchedulerStats
from worker.events import EngineLoad, EventSink

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""How long an idle engine sleeps before it looks again, should a wake-up be lost."""


def create_engine(config: WorkerConfig, model_path: Path, sink: EventSink) -> EngineRunner:
    """Load the model and build its engine. Blocks while it loads; nothing runs before `EngineRunner.start()`.

    `model_path` is a Hugging Face folder (`config.model_path` or `worker.model_cache.ensure_model()`). `sink` gets the
    cache events of each step, in order, on the engine's thread. Raises `ModelError` for a folder it cannot serve.
    """
    return EngineRunner(Engine.from_folder(model_path, config), sink, max_waiting=config.max_waiting_requests)


class TokenStream:
    """The tokens of one request, on the event loop that submitted it.

    Iterate with `async for`; the last `TokenOutput` has a finish reason. Iteration raises `EngineStoppedError` if the
    engine dies, never hangs on it. Call `abort()` in a `finally`: it does nothing after the last token. Holds at most
    one item a generated token.
    """

    def __init__(self, runner: EngineRunner, request_id: int, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self._runner = runner
        self._request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[TokenOutput | EngineStoppedError] = asyncio.Queue()
        self._done = False

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenOutput:
        if self._done:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, EngineStoppedError):
            self._done = True
            raise item
        self._done = item.finish_reason is not None
        return item

    def abort(self) -> None:
        """Stop the request and free its blocks, in whatever state it is."""
        if not self._done:
            self._done = True
            self._runner.abort(self._request_id)

    def deliver(self, item: TokenOutput | EngineStoppedError) -> bool:
        """Hand over an item from the engine's thread; False when the event loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop was closed under the request
            return False
        return True


class EngineRunner:
    """Runs an `Engine` on a thread of its own; the methods here are safe to call from other threads.

    At most `max_batch_requests + max_waiting` requests are inside at once; more are refused. When a step raises, every
    request gets `EngineStoppedError`, `error` is set, `healthy` turns false and the thread ends: the cache's state is
    unknown then, so a restart of the process is the remedy.
    """

    def __init__(self, engine: Engine, sink: EventSink, *, max_waiting: int) -> None:
        self._engine = engine
        self._sink = sink
        self._limit = engine.max_batch_requests + max_waiting
        self._changed = threading.Condition()
        # The condition's lock guards all that follows. Each is bounded by the requests inside, resets by their callers.
        self._commands: deque[Callable[[], None]] = deque()
        self._streams: dict[int, TokenStream] = {}
        self._inbox: dict[int, int] = {}
        """Prompt tokens of requests that the thread has not seen yet, by id."""
        self._resets: set[Future[None]] = set()
        self._next_id = 0
        self._stopping = False
        self._load = EngineLoad()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.error: BaseException | None = None
        """What ended the step loop, if anything did."""

    @property
    def block_tokens(self) -> int:
        """Tokens in one KV block."""
        return self._engine.block_tokens

    @property
    def capacity_blocks(self) -> int:
        """KV blocks that requests can use."""
        return self._engine.capacity_blocks

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus reply, in tokens."""
        return self._engine.max_context_tokens

    @property
    def healthy(self) -> bool:
        """Whether the thread runs."""
        return self.error is None and self._thread.is_alive()

    def load(self) -> EngineLoad:
        """The load after the last step, with what has arrived since."""
        with self._changed:
            load = self._load
            return replace(
                load,
                waiting_requests=load.waiting_requests + len(self._inbox),
                waiting_tokens=load.waiting_tokens + sum(self._inbox.values()),
            )

    def stats(self) -> SchedulerStats:
        """Counters since the start."""
        return self._engine.stats

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    async def stop(self, timeout_seconds: float = 30.0) -> None:
        """End the thread after the step it is in; what is in flight gets `EngineStoppedError`. Raises TimeoutError
        when the step takes longer than that."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {timeout_seconds} s")

    def check_length(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raise PromptTooLongError unless prompt and reply fit into the context."""
        self._engine.check_length(prompt_tokens, max_tokens)

    def submit(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, *, salt: str = "", adapter: str = ""
    ) -> TokenStream:
        """Queue a request; call on a running event loop, which then gets the tokens.

        Raises QueueFullError, PromptTooLongError, EngineStoppedError, and ValueError for an empty prompt or ids
        outside the vocabulary.
        """
        with self._changed:
            self._refuse()
            self._next_id += 1
            request_id = self._next_id
        request = self._engine.new_request(request_id, prompt_token_ids, sampling, salt=salt, adapter=adapter)
        stream = TokenStream(self, request_id, len(prompt_token_ids))
        with self._changed:
            self._refuse()
            self._streams[request_id] = stream
            self._inbox[request_id] = len(prompt_token_ids)
            self._command(lambda: self._add(request))
        return stream

    def abort(self, request_id: int) -> None:
        """Stop a request; unknown and finished ones are ignored."""
        with self._changed:
            if self._streams.pop(request_id, None) is not None:
                self._command(lambda: self._engine.abort(request_id))

    async def reset_prefix_cache(self, timeout_seconds: float = 60.0) -> None:
        """Forget every cached block, between two steps. Raises EngineStoppedError, or TimeoutError when the step
        takes longer than that."""
        done: Future[None] = Future()
        with self._changed:
            self._refuse_stopped()
            self._resets.add(done)
            self._command(self._engine.reset_prefix_cache)
            self._command(lambda: self._finish_reset(done))
        async with asyncio.timeout(timeout_seconds):
            await asyncio.wrap_future(done)

    def _refuse(self) -> None:
        self._refuse_stopped()
        if len(self._streams) >= self._limit:
            raise QueueFullError(f"{self._limit} requests are in progress or waiting; try again later")

    def _refuse_stopped(self) -> None:
        if self._stopping or not self.healthy:
            raise EngineStoppedError(f"the engine is not running: {self.error or 'it was stopped or never started'}")

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._changed.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._wait_for_work():
                self._run_commands()
                outputs = self._engine.step()
                self._publish()
                for request_id, output in outputs.items():
                    self._deliver(request_id, output)
        except BaseException as caught:
            log.exception("the engine's step failed; it takes no more requests")
            error = caught
        self._end(error)

    def _wait_for_work(self) -> bool:
        """False when the thread is to end."""
        with self._changed:
            while not (self._stopping or self._commands or self._engine.has_work()):
                self._changed.wait(IDLE_SECONDS)
            return not self._stopping

    def _run_commands(self) -> None:
        while True:
            with self._changed:
                if not self._commands:
                    return
                command = self._commands.popleft()
            command()

    def _add(self, request: EngineRequest) -> None:
        with self._changed:
            self._inbox.pop(request.request_id, None)
        self._engine.add_request(request)

    def _finish_reset(self, done: Future[None]) -> None:
        self._publish()
        with self._changed:
            self._resets.discard(done)
        if not done.cancelled():
            done.set_result(None)

    def _publish(self) -> None:
        """Tell the sink before the clients: who reads a reply may rely on its blocks being announced."""
        load = self._engine.load()
        with self._changed:
            self._load = load
        events = self._engine.drain_events()
        if events:
            self._sink(events)

    def _deliver(self, request_id: int, output: TokenOutput) -> None:
        with self._changed:
            last = output.finish_reason is not None
            stream = self._streams.pop(request_id, None) if last else self._streams.get(request_id)
        if stream is not None and not stream.deliver(output):
            self.abort(request_id)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._stopping = True
            self.error = error
            streams, self._streams = list(self._streams.values()), {}
            resets, self._resets = list(self._resets), set()
            self._commands.clear()
            self._inbox.clear()
            self._load = EngineLoad()
        reason = f"the engine failed: {error!r}" if error else "the engine was stopped"
        for stream in streams:
            stream.deliver(EngineStoppedError(reason))
        for done in resets:
            if not done.cancelled():
                done.set_exception(EngineStoppedError(reason))
