"""The built-in engine's speed: what a cached prefix saves, and what batching gives.

Every figure stands beside its baseline from the same run: cached against cold, eight requests against one.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

from warmroute.config.worker import WorkerConfig
from worker.engine.engine import Engine
from worker.engine.request import SamplingParams
from worker.model_cache import ensure_model


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures of the built-in model on this machine."""
    parser = argparse.ArgumentParser(prog="bench engine", description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    folder = ensure_model()
    engine = Engine.from_folder(folder, WorkerConfig(threads=options.threads, device=options.device))
    prompts = [_prompt(options.prompt_tokens, seed) for seed in range(2)]
    _run(engine, [_prompt(64, seed=99)], 2)  # first calls allocate

    cold, _ = _run(engine, prompts[:1], 1)
    cached, _ = _run(engine, prompts[:1], 1)
    print(f"{folder.name}, {options.prompt_tokens} prompt tokens, {options.threads} thread(s), {options.device}")
    print(f"prefill cold        {options.prompt_tokens / cold:8.0f} tokens/s   first token after {cold * 1e3:7.0f} ms")
    print(
        f"prefill cached      {options.prompt_tokens / cached:8.0f} tokens/s   first token after {cached * 1e3:7.0f} ms"
    )
    print(f"cold / cached       {cold / cached:8.1f} x")

    single = _decode_rate(engine, 1, options.decode_tokens)
    batched = _decode_rate(engine, 8, options.decode_tokens)
    print(f"decode, batch of 1  {single:8.1f} tokens/s")
    print(f"decode, batch of 8  {batched:8.1f} tokens/s")
    print(f"batch of 8 / of 1   {batched / single:8.1f} x")


def _prompt(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(100, 40_000) for _ in range(length)]


def _decode_rate(engine: Engine, batch: int, tokens: int) -> float:
    """Tokens a second of `batch` requests with contexts of 128 tokens, their prefill left out."""
    first, total = _run(engine, [_prompt(128, seed=1000 + number) for number in range(batch)], tokens + 1)
    return batch * tokens / (total - first)


def _run(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, float]:
    """Seconds until every prompt has its first token, and until the end."""
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(tokens, temperature=0.0, ignore_eos=True)
        engine.add_request(engine.new_request(number, prompt, sampling))
    started = time.perf_counter()
    seen: set[int] = set()
    first = 0.0
    while engine.has_work():
        seen |= engine.step().keys()
        if not first and len(seen) == len(prompts):
            first = time.perf_counter() - started
    return first, time.perf_counter() - started


if __name__ == "__main__":
    main()
