"""Templates render as transformers renders them, and refuse with a reason."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from warmroute.chat_template import ChatTemplate, ChatTemplateError

MESSAGES = [{"role": "user", "content": "<b>&'\"é"}, {"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m['content'] | tojson }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}",
        "{{ messages | tojson(indent=2) }}",
        "{%- for m in messages -%}\n  {%- if m.role == 'assistant' %}{% break %}{% endif %}\n{{ m }}{%- endfor %}",
        "{% set x = namespace(n=0) %}{% for m in messages %}{% set x.n = x.n + 1 %}{% endfor %}{{ x.n }}",
        "{{ eos_token }}",
        "  {% if true %}\n  lstrip\n  {% endif %}\n",
        "{{ tools | tojson if tools else 'none' }}",
    ],
)
def test_equals_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    (expected,), _ = render_jinja_template(
        conversations=[MESSAGES], chat_template=source, add_generation_prompt=True, eos_token="</s>"
    )
    assert ChatTemplate(source, {"eos_token": "</s>"}).render(MESSAGES) == expected


def test_the_clock_is_an_argument() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", now=lambda: datetime(2024, 2, 29))
    assert template.render(MESSAGES) == "2024-02-29"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_refusals_are_of_one_kind(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_deep_nesting_is_refused() -> None:
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested"):
        ChatTemplate("{{ messages | tojson }}").render([{"role": "user", "content": nested}])


def test_from_folder_prefers_the_file_and_reads_special_tokens(tmp_path: Path) -> None:
    config = {"chat_template": "from config {{ bos_token }}", "bos_token": {"content": "<s>"}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.from_folder(tmp_path).render([]) == "from config <s>"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert ChatTemplate.from_folder(tmp_path).render([]) == "from file"


def test_named_templates_use_the_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_folder(tmp_path).render([]) == "plain"


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_folders_without_a_template(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ChatTemplateError):
        ChatTemplate.from_folder(tmp_path)
