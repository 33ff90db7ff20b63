"""From bodies to keys: equal to what the engine computes, and never later than the budget."""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.prompts import keyer as keyer_module
from gateway.prompts.body import PIECES_LIMIT, BodyKind, RoutedBody, Unkeyed, parse_body, routed_body
from gateway.prompts.encoding import Encoded
from gateway.prompts.keyer import INLINE_BYTES, INLINE_PIECES, SIZE_LIMIT, KeySpace, Prompt, PromptKeyer
from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import prompt_keys, token_bytes
from warmroute.chat_template import ChatTemplate
from warmroute.config.pool import MediaTokensConfig
from worker.engine.tokenizer import EngineTokenizer

SPACE = KeySpace("fingerprint", 64)
LONG = "A sentence that is repeated until the prompt fills several index blocks. " * 20


def key(keyer: PromptKeyer, *, kind: BodyKind = BodyKind.CHAT, adapter: str = "", **fields) -> Prompt | Unkeyed:
    parsed = parse_body(orjson.dumps({"model": "m", **fields}), kind)
    return asyncio.run(keyer.key(replace(parsed, adapter=adapter), SPACE))


def kind_of(fields: dict) -> BodyKind:
    return BodyKind.CHAT if "messages" in fields else BodyKind.COMPLETION


MEMBERS = [
    "role",
    "content",
    "type",
    "text",
    "function",
    "name",
    "arguments",
    "image_url",
    "url",
    "tool_calls",
    "input",
]
FIELDS = st.sampled_from(
    ["tools", "chat_template_kwargs", "cache_salt", "add_generation_prompt", "documents", "truncate_prompt_tokens"]
)


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
    assert key(keyer, kind=BodyKind.COMPLETION, prompt=LONG) == expected
    assert key(keyer, kind=BodyKind.COMPLETION, prompt=ids) == expected


@pytest.mark.parametrize("ids", [[1, "a"], [-1], [1 << 32], [1.5], [1, None]])
def test_ids_that_are_none_are_left_to_the_engine(keyer: PromptKeyer, ids: list) -> None:
    assert key(keyer, kind=BodyKind.COMPLETION, prompt=ids) == Unkeyed("malformed")


@pytest.mark.parametrize("name", ["self", "add_generation_prompt", "context", "loop", "range", "bos_token"])
def test_template_variables_of_any_name_break_nothing(keyer: PromptKeyer, name: str) -> None:
    plain = key(keyer, messages=CHATS[0])
    assert key(keyer, messages=CHATS[0], chat_template_kwargs={name: 1}) == plain


def test_long_prompts_do_not_stall_the_loop(keyer: PromptKeyer) -> None:
    """While a megabyte of new text is keyed, the loop goes on turning."""
    text = "".join(f"word{number} " for number in range(100_000))
    bodies = [
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": "user", "content": "<|im_end|>" * 100_000}]},
        {"messages": [{"role": "user", "content": f"m{number}"} for number in range(9_000)]},
        {"prompt": list(range(40_000)) * 10},
        {"prompt": text},
    ]

    async def longest_stall(fields: dict) -> float:
        parsed = parse_body(orjson.dumps({"model": "m", **fields}), kind_of(fields))
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
    result = key(keyer, kind=BodyKind.COMPLETION, prompt=text)
    assert isinstance(result, Unkeyed)
    assert result.reason == "too_long"
    assert result.tokens == pytest.approx(len(text) / 4, rel=0.01)


USER = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def pieces(count: int) -> list[dict]:
    """Bodies with that many of each kind of thing that is gone through one by one, one at least the user's message."""
    rest = count - 1
    return [
        {"messages": [USER] * count},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * rest}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL] * rest}]},
        {"messages": [USER], "tools": [TOOL] * rest},
        {"prompt": ["a"] * count},
    ]


@pytest.mark.parametrize("fields", pieces(PIECES_LIMIT + 1))
def test_more_pieces_than_any_context_holds_are_not_gone_through(keyer: PromptKeyer, fields: dict) -> None:
    result = key(keyer, kind=kind_of(fields), **fields)
    assert isinstance(result, Unkeyed)
    assert result.reason == "too_long"


@pytest.mark.parametrize("fields", [each for each in pieces(INLINE_PIECES) if "messages" in each])
def test_many_pieces_are_not_gone_through_on_the_loop(
    keyer: PromptKeyer, fields: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    encode = keyer.encoder.encode

    def spied(*arguments: Any, **keywords: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(*arguments, **keywords)

    monkeypatch.setattr(keyer.encoder, "encode", spied)
    key(keyer, **fields)
    assert threads == ["MainThread"]
    threads.clear()
    key(keyer, **{**fields, "messages": [USER, *fields["messages"]]})
    assert [name.rstrip("_01") for name in threads] == ["prompts"]


@pytest.mark.parametrize("size", [INLINE_BYTES, INLINE_BYTES + 1])
def test_long_bodies_are_read_on_a_thread(keyer: PromptKeyer, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def spied(*arguments: Any) -> RoutedBody:
        threads.append(threading.current_thread().name.rstrip("_01"))
        return routed_body(*arguments)

    async def read(budget: float) -> RoutedBody | Unkeyed:
        deadline = asyncio.get_running_loop().time() + budget
        return await keyer.read({"model": "m", "messages": [USER]}, size, BodyKind.CHAT, deadline=deadline)

    monkeypatch.setattr(keyer_module, "routed_body", spied)
    assert isinstance(asyncio.run(read(30)), RoutedBody)
    assert threads == ["MainThread" if size == INLINE_BYTES else "prompts"]
    if size > INLINE_BYTES:
        assert asyncio.run(read(0)) == Unkeyed("budget", size // 4)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.sampled_from(["user", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=8,
)
messages = st.lists(st.fixed_dictionaries({"role": json_values, "content": json_values}), max_size=3)


@given(messages=messages, more=st.dictionaries(FIELDS, json_values), kind=st.sampled_from(BodyKind))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_makes_it_raise(keyer: PromptKeyer, messages: list, more: dict, kind: BodyKind) -> None:
    fields = {"messages": messages, "prompt": messages, "input": messages, **more}
    assert isinstance(key(keyer, kind=kind, **fields), Prompt | Unkeyed)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [["hi"]]}]},
        {"messages": [{"role": "user", "content": [{"type": [], "text": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "\\ud800"}}]}]},
        {"prompt": [[1], "x"]},
        {},
    ],
)
def test_odd_bodies_are_left_to_the_engine(keyer: PromptKeyer, fields: dict) -> None:
    result = key(keyer, kind=kind_of(fields), **fields)
    assert result == Unkeyed("malformed") or isinstance(result, Prompt)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (63, 0), (64, 1), (65, 1), (128, 2), (129, 2)])
def test_full_blocks_have_keys_all_different_for_one_token_repeated(
    keyer: PromptKeyer, tokens: int, blocks: int
) -> None:
    prompt = key(keyer, kind=BodyKind.COMPLETION, prompt=[7] * tokens)
    assert isinstance(prompt, Prompt)
    assert (prompt.tokens, len(set(prompt.keys))) == (tokens, blocks)


def test_prompts_of_equal_length_share_no_key(keyer: PromptKeyer) -> None:
    one, other = (key(keyer, kind=BodyKind.COMPLETION, prompt=[number] * 200) for number in (7, 8))
    assert isinstance(one, Prompt)
    assert isinstance(other, Prompt)
    assert not set(one.keys) & set(other.keys)


def test_text_that_looks_like_fields_is_text(keyer: PromptKeyer) -> None:
    quoting = [{"role": "user", "content": LONG + '", "user": "x", "cache_salt": "s", "model": "other'}]
    plain, salted = (key(keyer, messages=quoting, **more) for more in ({}, {"user": "y", "prompt_cache_key": "z"}))
    assert plain == salted


def test_adapter_salt_and_picture_share_nothing(smollm2: Path) -> None:
    """Another adapter or salt from the first block on, another picture from its own block on."""
    template = (
        "{% for m in messages %}{% for p in m.content %}"
        "{{ p.text if p.type == 'text' else '<repo_name>' }}{% endfor %}{% endfor %}"
    )
    media = {"image": MediaTokensConfig(placeholder="<repo_name>", tokens=100)}
    tokenizer = PromptTokenizer.from_folder(smollm2)
    keyer = PromptKeyer(tokenizer, ChatTemplate(template), budget_seconds=10, media=media)

    def keys(picture: str = "1", **more: str) -> list[int]:
        content = [LONG, {"type": "image_url", "image_url": {"url": picture}}, LONG]
        prompt = key(keyer, messages=[{"role": "user", "content": content}], **more)
        assert isinstance(prompt, Prompt)
        assert prompt.exact
        return prompt.keys

    plain = keys()
    assert not set(plain) & set(keys(cache_salt="s"))
    assert not set(plain) & set(keys(adapter="lora-a"))
    shared = sum(one == other for one, other in zip(plain, keys("2"), strict=True))
    assert shared == len(tokenizer.encode(LONG)) // 4 // 64 > 1
    assert plain == keys()


def test_media_of_unknown_length_leave_the_keys_before_them(keyer: PromptKeyer) -> None:
    before = [{"role": "system", "content": LONG}, {"role": "user", "content": "see"}]
    text, picture = key(keyer, messages=before), {"type": "image_url", "image_url": {"url": "u"}}
    seen = key(keyer, messages=[before[0], {"role": "user", "content": ["see", picture]}])
    assert isinstance(text, Prompt)
    assert isinstance(seen, Prompt)
    assert not seen.exact
    assert seen.keys == text.keys[: len(seen.keys)]
    assert len(seen.keys) >= len(text.keys) - 1 > 1


def test_bodies_of_other_apis_have_the_keys_of_the_same_chat(keyer: PromptKeyer) -> None:
    chat = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    expected = key(keyer, messages=chat)
    assert isinstance(expected, Prompt)
    parts = [{"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]} for turn in chat[1:]]
    assert key(keyer, kind=BodyKind.MESSAGES, system=LONG, messages=parts) == expected
    assert key(keyer, kind=BodyKind.RESPONSE, instructions=LONG, input=chat[1:]) == expected


def test_a_template_that_refuses_leaves_the_request_to_load(smollm2: Path) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    keyer = PromptKeyer(PromptTokenizer.from_folder(smollm2), template, budget_seconds=10)
    assert key(keyer, messages=[{"role": "user", "content": "hi"}]) == Unkeyed("template")


def test_a_model_without_template_keys_completions_only(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((smollm2 / "tokenizer.json").read_bytes())
    keyer = PromptKeyer.from_folder(tmp_path, budget_seconds=10)
    assert key(keyer, messages=[{"role": "user", "content": "hi"}]) == Unkeyed("template", 14)
    assert isinstance(key(keyer, kind=BodyKind.COMPLETION, prompt="hi"), Prompt)


class SlowTokenizer(PromptTokenizer):
    """A tokenizer that finishes when it is told to."""

    def __init__(self, tokenizer_json: bytes) -> None:
        super().__init__(tokenizer_json)
        self.released = threading.Event()
        self.inline_characters = 2_000

    def _segment(self, text: str) -> bytes:
        if len(text) > self.inline_characters:
            assert self.released.wait(30)
        return super()._segment(text)


def test_a_slow_tokenizer_costs_the_budget_and_its_work_is_remembered(smollm2: Path) -> None:
    tokenizer = SlowTokenizer((smollm2 / "tokenizer.json").read_bytes())
    keyer = PromptKeyer(tokenizer, ChatTemplate.from_folder(smollm2), budget_seconds=0.05)
    body = parse_body(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": LONG * 3}]}), BodyKind.CHAT)

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
    raws = [orjson.dumps({"model": "m", "prompt": f"{n} {LONG * 3}"}) for n in range(80)]
    bodies = [parse_body(raw, BodyKind.COMPLETION) for raw in raws]

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


FIXTURES = os.environ.get("WARMROUTE_TEST_FIXTURES")


@pytest.mark.skipif(not FIXTURES, reason="WARMROUTE_TEST_FIXTURES names no folder of captures from real engines")
def test_token_counts_and_keys_equal_a_real_engines(tmp_path: Path) -> None:
    """Chats and prompts with the ids that vLLM's /tokenize gave for them."""
    folder = Path(FIXTURES or "")
    (tmp_path / "tokenizer.json").write_bytes(lzma.decompress((folder / "tokenizer/tokenizer.json.xz").read_bytes()))
    for name in ("tokenizer_config.json", "chat_template.jinja", "config.json"):
        (tmp_path / name).write_bytes((folder / "tokenizer" / name).read_bytes())
    keyer = PromptKeyer.from_folder(tmp_path, budget_seconds=10)
    compared = 0
    with gzip.open(folder / "tokenize-parity.jsonl.gz", "rt") as lines:
        for line in lines:
            case = json.loads(line)
            ids, name = case.pop("tokens"), case.pop("name")
            kind = kind_of(case)
            prompt = key(keyer, kind=kind, **case)
            assert prompt == Prompt(len(ids), prompt_keys(ids, SPACE.fingerprint)), name
            request = parse_body(orjson.dumps({"model": "m", **case}), kind).prompt
            assert not isinstance(request, Unkeyed)
            encoded = keyer.encoder.encode(request, character_limit=SIZE_LIMIT)
            assert isinstance(encoded, Encoded)
            assert encoded.token_ids == token_bytes(ids), name
            compared += 1
    assert compared == 93
