"""Chats of a given length, of real agents' text where there is some."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import TOKEN_BYTES

SESSIONS: Final = "lmcache_miniswe.jsonl.gz"
"""Calls of agents, a JSON object each: `session_id`, `timestamp`, `input` (the whole prompt as one text), `output`."""
_WORDS: Final = 6_000
_GENERATED_SESSIONS: Final = 60
_GENERATED_TURNS: Final = 40

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turns:
    """One conversation, and the same with one more answer and question."""

    first: list[Message]
    second: list[Message]

    @staticmethod
    def body(messages: list[Message]) -> bytes:
        """The request that sends it."""
        return orjson.dumps({"model": "m", "messages": messages, "stream": True})


def sessions(folder: Path | None, seed: int) -> list[list[Message]]:
    """Conversations, question and answer in turn; generated where no folder has any."""
    found = list(_generated(seed)) if folder is None else list(_recorded(folder / SESSIONS))
    Random(f"{seed} order").shuffle(found)
    return found


def chats(all_sessions: list[list[Message]], tokens: int, count: int, tokenizer: PromptTokenizer) -> list[Turns]:
    """Up to `count` chats of about so many tokens, none of which shares a message with another.

    Sessions follow one another in a chat where one is too short, and end where it is long enough.
    """
    made: list[Turns] = []
    collected: list[Message] = []
    length = 0
    for question, answer in (pair for session in all_sessions for pair in _pairs(session)):
        if length >= tokens:
            made.append(Turns(collected[:-1], [*collected, question]))
            if len(made) == count:
                break
            collected, length = [], 0
        collected += [question, answer]
        length += sum(len(tokenizer.encode(message["content"])) // TOKEN_BYTES for message in (question, answer))
    return made


def _pairs(session: list[Message]) -> Iterator[tuple[Message, Message]]:
    return zip(session[::2], session[1::2], strict=False)


def _recorded(path: Path) -> Iterator[list[Message]]:
    """What each call's prompt has more than the one before and its answer is the next question."""
    calls: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            call = json.loads(line)
            calls.setdefault(call["session_id"], []).append(call)
    for session in calls.values():
        session.sort(key=lambda call: call["timestamp"])
        messages = [_user(session[0]["input"])]
        for call, following in pairwise(session):
            messages.append({"role": "assistant", "content": call["output"]})
            added = following["input"].removeprefix(call["input"]).strip().removeprefix(call["output"].strip())
            messages.append(_user(added))
        yield messages


def _generated(seed: int) -> Iterator[list[Message]]:
    random = Random(f"{seed} text")
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(random.choices(letters, range(26, 0, -1), k=random.randint(1, 9))) for _ in range(_WORDS)]

    def text(length: int) -> str:
        return " ".join(
            random.choice(words) + random.choices(("", ",", ".\n", f" {random.randrange(999)}"), (20, 2, 2, 1))[0]
            for _ in range(length)
        )

    for _ in range(_GENERATED_SESSIONS):
        session = [_user(text(600))]
        for _ in range(_GENERATED_TURNS):
            session += [{"role": "assistant", "content": text(random.randint(30, 200))}, _user(text(80))]
        yield session


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
