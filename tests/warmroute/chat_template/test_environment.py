"""No template and no chat keeps a thread for good."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from warmroute.chat_template import ChatTemplate, ChatTemplateError
from warmroute.chat_template.environment import STEPS
from warmroute.chat_template.fast import FUEL

ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for i in range(99999) %}{% for j in range(99999) if j %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}" + "much text " * 200 + "{% endfor %}",
]
PAIRS = "{% for m in messages %}{% for n in messages %}{% if n == m %}{{ m.role }}{% endif %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_without_an_end_is_not_taken(source: str) -> None:
    begun = time.process_time()
    with pytest.raises(ChatTemplateError, match="does not come to an end"):
        ChatTemplate(source)
    assert time.process_time() - begun < 30


@pytest.mark.parametrize(("source", "bound"), [(PAIRS, f"{FUEL} instr"), (PAIRS + "{{ 1e22 }}", f"{STEPS} steps")])
def test_a_chat_that_is_too_much_work_is_refused(source: str, bound: str) -> None:
    """By minijinja, and by jinja2 where that has the template."""
    template = ChatTemplate(source)
    with pytest.raises(ChatTemplateError, match=f"more than {bound}"):
        template.render([{"role": "u", "content": ""}] * 5_000)


def test_work_is_counted_for_each_rendering_by_itself() -> None:
    template = ChatTemplate(PAIRS)
    chat = [{"role": "u", "content": str(number)} for number in range(400)]
    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(template.render, [chat] * 6, timeout=60)) == {"u" * 400}
