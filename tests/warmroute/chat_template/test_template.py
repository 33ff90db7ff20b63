"""Templates render as transformers renders them, and refuse with a reason."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

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
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
        "{%- for m in messages -%}\n {%- generation -%} {{ m.content }} {%- endgeneration %}\n{% endfor %}",
        "{{ messages | map(attribute='role') | list }} {{ documents }} {{ messages[0].get('x', 'y') }}",
    ],
)
def test_equals_transformers(source: str) -> None:
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


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_from_folder_prefers_the_file_and_reads_special_tokens(tmp_path: Path) -> None:
    config = {"chat_template": "from config {{ bos_token }}", "bos_token": {"content": "<s>"}, "eos_token": None}
    write(tmp_path, tokenizer_config_json=config, special_tokens_map_json={"bos_token": "old", "unk_token": "<unk>"})
    assert ChatTemplate.from_folder(tmp_path).render([]) == "from config <s>"
    assert ChatTemplate.from_folder(tmp_path).special_tokens == {"bos_token": "<s>", "unk_token": "<unk>"}
    write(tmp_path, chat_template_jinja="from file")
    assert ChatTemplate.from_folder(tmp_path).render([]) == "from file"


def test_named_templates_are_chosen_by_tools(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    template = ChatTemplate.from_folder(write(tmp_path, tokenizer_config_json={"chat_template": named}))
    assert template.render([]) == "plain"
    assert template.render([], tools=[{}]) == "tools"
    assert template.render([], tools=[]) == "tools"


def test_named_templates_in_files_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, chat_template_jinja="plain", additional_chat_templates__tool_use_jinja="tools")
    template = ChatTemplate.from_folder(tmp_path)
    assert (template.render([]), template.render([], tools=[{}])) == ("plain", "tools")


def test_a_processors_template_serves_chats_without_tools(tmp_path: Path) -> None:
    write(tmp_path, chat_template_json={"chat_template": "processor"}, tokenizer_config_json={"chat_template": "own"})
    template = ChatTemplate.from_folder(tmp_path)
    assert (template.render([]), template.render([], tools=[{}])) == ("processor", "own")
    alone = ChatTemplate.from_files({"chat_template.json": b'{"chat_template": "processor"}'})
    with pytest.raises(ChatTemplateError, match="with tools"):
        alone.render([], tools=[{}])


def test_models_whose_chats_engines_write_by_code_have_no_template(tmp_path: Path) -> None:
    write(tmp_path, chat_template_jinja="x", config_json={"model_type": "gpt_oss"})
    with pytest.raises(ChatTemplateError, match="gpt_oss models by code"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"chat_template": [{"name": "other", "template": "x"}]}'])
def test_folders_without_a_template(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ChatTemplateError, match=re.escape(str(tmp_path))):
        ChatTemplate.from_folder(tmp_path)


def test_a_template_that_is_no_utf8_is_named() -> None:
    with pytest.raises(ChatTemplateError, match=r"chat_template\.jinja cannot be read as UTF-8"):
        ChatTemplate.from_files({"chat_template.jinja": b"\xff"})


CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
TRIMMING = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}</>{% endfor %}"


@pytest.mark.parametrize("source", [CHATML, TRIMMING, PARTS])
@pytest.mark.parametrize("final", ["The answer is", " The answer is ", ""])
def test_the_final_message_is_continued_as_transformers_continues_it(source: str, final: str) -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": final}]
    if source == PARTS:
        chat = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in chat]
    (expected,), _ = render_jinja_template(conversations=[chat], chat_template=source, continue_final_message=True)
    rendered = ChatTemplate(source).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected


@pytest.mark.parametrize(
    ("source", "content"),
    [("{{ messages[0].content[:2] }}", "gone"), (CHATML, None), (PARTS, [{"type": "image"}]), ("fixed", "x")],
)
def test_a_final_message_that_cannot_be_continued_is_refused(source: str, content: object) -> None:
    with pytest.raises(ChatTemplateError, match="final message"):
        ChatTemplate(source).render([{"role": "assistant", "content": content}], continue_final_message=True)


def test_variables_do_not_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ tools }}{{ add_generation_prompt }}{{ own }}")
    variables = {"messages": [], "tools": 1, "add_generation_prompt": 2, "own": 3}
    assert template.render(MESSAGES[1:], variables=variables) == "xNoneTrue3"
