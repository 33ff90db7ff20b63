"""From bodies to keys: equal to what the engine computes, and never later than the budget."""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.prompts.body import Unkeyed, parse_body
from gateway.prompts.keyer import INLINE_CHARACTERS, SIZE_LIMIT, KeySpace, Prompt, PromptKeyer
from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import prompt_keys
from warmroute.chat_template import ChatTemplate
from worker.engine.tokenizer import EngineTokenizer

SPACE = KeySpace("fingerprint", 64)
LONG = "A sentence that is repeated until the prompt fills several index blocks. " * 20


def key(keyer: PromptKeyer, *, chat: bool = True, **fields) -> Prompt | Unkeyed:
    parsed = parse_body(orjson.dumps({"model": "m", **fields}), chat=chat)
    return asyncio.run(keyer.key(parsed, SPACE))


@pytest.fixture
def keyer(smollm2: Path) -> PromptKeyer:
    return PromptKeyer.from_folder(smollm2, budget_seconds=10)


CHATS = [
    [{"role": "user", "content": LONG}],
    [{"role": "system", "content": LONG}, {"role": "user", "content": "ünïcödé 漢字 🙂"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": LONG}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "text with <|im_end|> inside"}],
]


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_chats_key_as_the_engine_tokenises_them(
    keyer: PromptKeyer, smollm2: Path, messages: list[dict], salt: str | None
) -> None:
    fields = {"messages": messages, **({"cache_salt": salt} if salt else {})}
    prompt = key(keyer, **fields)
    ids = EngineTokenizer.from_folder(smollm2).encode_chat(messages)
    assert prompt == Prompt(len(ids), prompt_keys(ids, SPACE.fingerprint, salt=salt or ""))


def test_completions_key_their_text_or_ids(keyer: PromptKeyer, smollm2: Path) -> None:
    ids = EngineTokenizer.from_folder(smollm2).encode(LONG, add_special_tokens=True)
    expected = Prompt(len(ids), prompt_keys(ids, SPACE.fingerprint))
    assert key(keyer, chat=False, prompt=LONG) == expected
    assert key(keyer, chat=False, prompt=ids) == expected


@pytest.mark.parametrize("ids", [[1, "a"], [-1], [1 << 32], [1.5], [1, None]])
def test_ids_that_are_none_are_left_to_the_engine(keyer: PromptKeyer, ids: list) -> None:
    assert key(keyer, chat=False, prompt=ids) == Unkeyed("malformed")


@pytest.mark.parametrize("name", ["self", "messages", "tools", "add_generation_prompt", "context", "loop"])
def test_template_variables_of_any_name_break_nothing(keyer: PromptKeyer, name: str) -> None:
    plain = key(keyer, messages=CHATS[0])
    assert key(keyer, messages=CHATS[0], chat_template_kwargs={name: 1}) == plain


def test_long_prompts_do_not_stall_the_loop(keyer: PromptKeyer) -> None:
    """While a megabyte of new text is keyed, the loop goes on turning."""
    text = "".join(f"word{number} " for number in range(100_000))
    bodies = [
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": "user", "content": "<|im_end|>" * 100_000}]},
        {"messages": [{"role": "user", "content": f"m{number}"} for number in range(20_000)]},
        {"prompt": list(range(40_000)) * 10},
        {"prompt": text},
    ]

    async def longest_stall(fields: dict) -> float:
        parsed = parse_body(orjson.dumps({"model": "m", **fields}), chat="messages" in fields)
        loop, stalls = asyncio.get_running_loop(), [0.0]
        work = asyncio.ensure_future(keyer.key(parsed, SPACE))
        while not work.done():
            before = loop.time()
            await asyncio.sleep(0)
            stalls.append(loop.time() - before)
        assert isinstance(work.result(), Prompt)
        return max(stalls)

    for fields in bodies:
        assert asyncio.run(longest_stall(fields)) < 0.4


def test_text_beyond_any_context_is_not_tokenised(keyer: PromptKeyer) -> None:
    text = "x" * (SIZE_LIMIT + 1)
    result = key(keyer, chat=False, prompt=text)
    assert isinstance(result, Unkeyed)
    assert result.reason == "too_long"
    assert result.tokens == pytest.approx(len(text) / 4, rel=0.01)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(st.fixed_dictionaries({"role": json_values, "content": json_values}), max_size=3)
NAMES = st.sampled_from(["tools", "chat_template_kwargs", "cache_salt", "add_generation_prompt", "prompt"])


@given(messages=messages, more=st.dictionaries(NAMES, json_values), chat=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_makes_it_raise(keyer: PromptKeyer, messages: list, more: dict, chat: bool) -> None:
    assert isinstance(key(keyer, chat=chat, messages=messages, **more), Prompt | Unkeyed)


def test_a_prompt_shorter_than_a_block_has_no_keys(keyer: PromptKeyer) -> None:
    assert key(keyer, chat=False, prompt="hi") == Prompt(1, [])


def test_a_template_that_refuses_leaves_the_request_to_load(smollm2: Path) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    keyer = PromptKeyer(PromptTokenizer.from_folder(smollm2), template, budget_seconds=10)
    assert key(keyer, messages=[{"role": "user", "content": "hi"}]) == Unkeyed("template")


def test_a_model_without_template_keys_completions_only(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((smollm2 / "tokenizer.json").read_bytes())
    keyer = PromptKeyer.from_folder(tmp_path, budget_seconds=10)
    assert key(keyer, messages=[{"role": "user", "content": "hi"}]) == Unkeyed("template")
    assert isinstance(key(keyer, chat=False, prompt="hi"), Prompt)


class SlowTokenizer(PromptTokenizer):
    """A tokenizer that finishes when it is told to."""

    def __init__(self, tokenizer_json: bytes) -> None:
        super().__init__(tokenizer_json)
        self.released = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        if len(text) > INLINE_CHARACTERS:
            assert self.released.wait(30)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_a_slow_tokenizer_costs_the_budget_and_its_work_is_remembered(smollm2: Path) -> None:
    tokenizer = SlowTokenizer((smollm2 / "tokenizer.json").read_bytes())
    keyer = PromptKeyer(tokenizer, ChatTemplate.from_folder(smollm2), budget_seconds=0.05)
    body = parse_body(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": LONG * 3}]}), chat=True)

    async def scenario() -> None:
        tokenizer.released.clear()
        assert await keyer.key(body, SPACE) == Unkeyed("budget", body.size // 4)
        tokenizer.released.set()
        async with asyncio.timeout(10):
            while not isinstance(await keyer.key(body, SPACE), Prompt):
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_too_many_long_prompts_at_once_go_by_load(smollm2: Path) -> None:
    tokenizer = SlowTokenizer((smollm2 / "tokenizer.json").read_bytes())
    keyer = PromptKeyer(tokenizer, None, budget_seconds=5)
    bodies = [parse_body(orjson.dumps({"model": "m", "prompt": f"{n} {LONG * 3}"}), chat=False) for n in range(80)]

    async def scenario() -> None:
        work = [asyncio.ensure_future(keyer.key(body, SPACE)) for body in bodies]
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        tokenizer.released.set()
        results = await asyncio.gather(*work)
        assert (
            sum(result == Unkeyed("busy", body.size // 4) for result, body in zip(results, bodies, strict=True)) == 48
        )
        assert sum(isinstance(result, Prompt) for result in results) == 32

    asyncio.run(scenario())


NOT_YET_KEYED = {"continue-final", "developer-role"}
FIXTURES = os.environ.get("WARMROUTE_TEST_FIXTURES")


@pytest.mark.skipif(not FIXTURES, reason="WARMROUTE_TEST_FIXTURES names no folder of captures from real engines")
def test_token_counts_and_keys_equal_a_real_engines(tmp_path: Path) -> None:
    """Chats and prompts with the ids that vLLM's /tokenize gave for them.

    Chats with tools are left out: vLLM drops fields of a tool's declaration that it does not know before it renders.
    So are roles that it renames.
    """
    folder = Path(FIXTURES or "")
    (tmp_path / "tokenizer.json").write_bytes(lzma.decompress((folder / "tokenizer/tokenizer.json.xz").read_bytes()))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / "tokenizer" / name).read_bytes())
    keyer = PromptKeyer.from_folder(tmp_path, budget_seconds=10)
    compared = 0
    with gzip.open(folder / "tokenize-parity.jsonl.gz", "rt") as lines:
        for line in lines:
            case = json.loads(line)
            ids, name = case.pop("tokens"), case.pop("name")
            if "tools" in case or name in NOT_YET_KEYED:
                continue
            prompt = key(keyer, chat="messages" in case, **case)
            assert prompt == Prompt(len(ids), prompt_keys(ids, SPACE.fingerprint)), name
            compared += 1
    assert compared > 50
