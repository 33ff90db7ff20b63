"""CPU microseconds of a prompt's way to keys, by its steps and as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Final

from bench.prompts.chats import Turns
from gateway.prompts.body import BodyKind, parse_body
from gateway.prompts.keyer import KeySpace, Prompt, PromptKeyer
from gateway.prompts.prompt_input import Chat
from indexer.keys import root

SPACE: Final = KeySpace("bench", 64)
STEPS: Final = ("parse", "render", "tokenise", "hash")

Encode = Callable[[list[dict[str, Any]]], object]
"""A baseline: messages to token ids."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians over the chats, in microseconds of CPU of all threads."""

    steps: dict[str, float]
    whole: float
    bytes_per_second: float
    """Bytes of text that the step `tokenise` takes a second."""


def cpu_us(work: Callable[[], object]) -> float:
    """CPU that one call takes."""
    started_at = time.process_time_ns()
    work()
    return (time.process_time_ns() - started_at) / 1e3


async def whole(keyer: PromptKeyer, bodies: Iterable[bytes]) -> list[float]:
    """The gateway's own way from bodies to keys. Raises ValueError where one has none."""
    taken = []
    for body in bodies:
        started_at = time.process_time_ns()
        prompt = await keyer.key(parse_body(body, BodyKind.CHAT), SPACE)
        taken.append((time.process_time_ns() - started_at) / 1e3)
        if not isinstance(prompt, Prompt) or not prompt.keys:
            raise ValueError(f"a chat has no keys: {prompt}")
    return taken


def steps(keyer: PromptKeyer, bodies: Iterable[bytes]) -> tuple[dict[str, list[float]], list[float]]:
    """The same, step by step, and how many bytes a second each text's tokenising took."""
    taken: dict[str, list[float]] = {step: [] for step in STEPS}
    speeds = []
    template, tokenizer = keyer.encoder.template, keyer.tokenizer
    assert template is not None
    for body in bodies:
        marks = [time.process_time_ns()]
        parsed = parse_body(body, BodyKind.CHAT)
        request = parsed.prompt
        assert isinstance(request, Chat)
        marks.append(time.process_time_ns())
        chat = template.conversation(request.messages, tools=request.tools, typed_calls=request.typed_calls)
        text = keyer.encoder.text(template, request, chat)
        marks.append(time.process_time_ns())
        prepared = tokenizer.prepare(text)
        prepared.encode()
        marks.append(time.process_time_ns())
        prepared.keys(root(SPACE.fingerprint, salt=parsed.salt), SPACE.index_block_tokens)
        marks.append(time.process_time_ns())
        for step, (before, after) in zip(STEPS, pairwise(marks), strict=True):
            taken[step].append((after - before) / 1e3)
        speeds.append(len(text.encode()) / max(taken["tokenise"][-1], 1e-3) * 1e6)
    return taken, speeds


async def measure(make: Callable[[], PromptKeyer], chats: list[Turns]) -> tuple[Costs, Costs]:
    """New prompts, and the next turns of the same chats. `make`: a keyer that remembers nothing."""
    first, second = ([Turns.body(chat.first) for chat in chats], [Turns.body(chat.second) for chat in chats])
    costs = []
    by_steps, as_whole = make(), make()
    try:
        for bodies in (first, second):
            taken, speeds = steps(by_steps, bodies)
            wholes = await whole(as_whole, bodies)
            medians = {step: median(values) for step, values in taken.items()}
            costs.append(Costs(medians, median(wholes), median(speeds)))
    finally:
        by_steps.close()
        as_whole.close()
    return costs[0], costs[1]


def baseline(encode: Encode, chats: list[Turns]) -> float:
    """What `encode` takes for the second turns."""
    encode(chats[0].second)
    return median(cpu_us(partial(encode, chat.second)) for chat in chats)
