"""minijinja renders only where it gives jinja2's output."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from warmroute.chat_template import ChatTemplate, ChatTemplateError
from warmroute.chat_template.fast import Agreement

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
ARGUMENTS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ v | string }};{% endfor %}{% endfor %}{% endfor %}"
)
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}


@pytest.mark.parametrize(
    ("source", "agreement"),
    [
        (CHAT, Agreement.ALL),
        (CHAT.replace("m.content", "m.content | trim"), Agreement.ALL),
        (CHAT.replace("m.content", "m.content | tojson"), Agreement.ALL),
        (CHAT + "{{ strftime_now('%d %b %Y') }}", Agreement.ALL),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", Agreement.ALL),
        (ARGUMENTS, Agreement.PLAIN),
        ("{{ messages[0].pop('role') }}", None),
        ("{{ 1e22 }}", None),
        (CHAT + "{{ [1, 2] | sum }}{{ lipsum(1) }}", None),
    ],
)
def test_agreement_is_found_out_at_load(source: str, agreement: Agreement | None) -> None:
    assert ChatTemplate(source).serving(None).agreement == agreement


def call(value: object) -> dict:
    return {**CALL, "tool_calls": [{"function": {"name": "f", "arguments": {"k": value}}}]}


@pytest.mark.parametrize("value", ["text", 7, True, 1.0, 1e22, None, 2**70, [1.5], {"a": None}, {"a": "x"}])
def test_values_print_as_jinja_prints_them(value: object) -> None:
    template = ChatTemplate(ARGUMENTS)
    assert template.serving(None).agreement is Agreement.PLAIN
    assert template.render([call(value)]) == f"k={value};"


def test_refusals_have_the_templates_own_words() -> None:
    refusal = "{% if messages[0].role == 'wizard' %}{{ raise_exception('no wizards') }}{% endif %}"
    template = ChatTemplate(CHAT + refusal)
    assert template.serving(None).agreement is Agreement.ALL
    with pytest.raises(ChatTemplateError, match="no wizards"):
        template.render([{"role": "wizard", "content": ""}])


def test_calls_nested_too_deeply_are_refused() -> None:
    nested: object = "x"
    for _ in range(5_000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested"):
        ChatTemplate(ARGUMENTS).render([call(nested)])


def test_the_clock_goes_on_after_the_comparison() -> None:
    times = iter([datetime(2024, 1, 1), datetime(2025, 1, 1)])
    template = ChatTemplate("{{ strftime_now('%Y') }}", now=lambda: next(times))
    assert [template.render([]), template.render([])] == ["2024", "2025"]


def test_threads_render_at_once() -> None:
    template = ChatTemplate(CHAT.replace("m.content", "m.content | tojson"))
    assert template.serving(None).agreement is Agreement.ALL
    chats = [[{"role": "user", "content": f"{number} é" * 20}] * 20 for number in range(8)]
    expected = [template.render(chat) for chat in chats]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(template.render, chats * 50, timeout=60)) == expected * 50
