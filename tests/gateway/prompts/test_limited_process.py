"""A process that may break, and what its questioner sees of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gateway.prompts.limited_process import BrokenError, LimitedProcess, RefusedError

CHAT = {"messages": [{"role": "user", "content": "hi"}], "tools": None, "add_generation_prompt": True}
GROWING = b"{% set ns = namespace(s=messages[0].content) %}"
GROWING += b"{% for i in range(n or 0) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s[:9] }}"


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    limited = LimitedProcess(
        memory_bytes=512 << 20, opening=lambda: ("template", {"chat_template.jinja": GROWING}, None)
    )
    yield limited
    limited.close()


def test_it_answers_again_after_it_broke(process: LimitedProcess) -> None:
    def render(rounds: int) -> bytes:
        return process.ask("render", "default", {**CHAT, "n": rounds}, seconds=10)

    assert render(0) == b"hi"
    with pytest.raises((BrokenError, RefusedError)):
        render(60)
    assert render(1) == b"hihi"


def test_it_is_given_up_when_it_is_late(process: LimitedProcess) -> None:
    process.ask("render", "default", CHAT, seconds=10)
    begun = time.monotonic()
    with pytest.raises(BrokenError, match=r"0\.001 s") as caught:
        process.ask("template", {"chat_template.jinja": GROWING}, None, seconds=0.001)
    assert caught.value.by_question
    assert time.monotonic() - begun < 5


def test_what_is_refused_does_not_end_it(process: LimitedProcess) -> None:
    assert b"found" in process.open(seconds=30)
    with pytest.raises(RefusedError, match="pow"):
        process.ask("template", {"chat_template.jinja": b"{{ 10**(10**8) }}"}, None, seconds=10)
    with pytest.raises(RefusedError) as caught:
        process.ask("template", {}, None, seconds=10)
    assert caught.value.missing
