from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.worker.engine.support import SPECIAL_TOKENS, VOCAB_SIZE, byte_tokenizer
from warmroute.chat_template import ChatTemplateError
from worker.engine.errors import ModelError
from worker.engine.tokenizer import Detokenizer, EngineTokenizer

TOKENIZER = byte_tokenizer()


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@given(st.text())
def test_text_comes_back_in_whole_characters(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    emitted = pieces(TOKENIZER, ids)
    assert "".join(emitted) == text.replace("<|end|>", "").replace("<|user|>", "").replace("<|assistant|>", "")
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in emitted)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60))
def test_any_bytes_add_up(ids: list[int]) -> None:
    assert "".join(pieces(TOKENIZER, ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_a_character_waits_for_its_last_byte() -> None:
    ids = TOKENIZER.encode("a😀b", add_special_tokens=False).ids
    assert pieces(TOKENIZER, ids) == ["a", "", "", "", "😀", "b", ""]


def test_undecodable_bytes_are_not_held_for_ever() -> None:
    [continuation] = TOKENIZER.encode("é", add_special_tokens=False).ids[1:]
    emitted = pieces(TOKENIZER, [continuation] * 200)
    assert max(len(piece) for piece in emitted) <= 64
    assert emitted[63]


def test_leading_spaces_of_other_decoders() -> None:
    """A Metaspace decoder drops the space of whatever it decodes first."""
    vocabulary = {"\u2581Hello": 0, "\u2581world": 1, "!": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.decoder = decoders.Metaspace()
    assert pieces(tokenizer, [0, 1, 2, 1]) == ["Hello", " world", "!", " world", ""]


def test_chats(tiny_folder: Path) -> None:
    tokenizer = EngineTokenizer.from_folder(tiny_folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert ids == tokenizer.encode("<|user|>user:hi<|assistant|>", add_special_tokens=False)
    assert ids[0] == SPECIAL_TOKENS.index("<|user|>")
    bare = tokenizer.encode_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert bare == ids[:-1]
    tools = tokenizer.encode_chat([{"role": "user", "content": "hi"}], tools=[{"name": "t"}])
    assert tools == tokenizer.encode('<|user|>user:hitools:[{"name": "t"}]<|assistant|>', add_special_tokens=False)
    with pytest.raises(ChatTemplateError, match="no such role"):
        tokenizer.encode_chat([{"role": "forbidden", "content": ""}])


def test_a_folder_without_a_template_still_encodes(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        EngineTokenizer.from_folder(tmp_path)
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    tokenizer = EngineTokenizer.from_folder(tmp_path)
    assert len(tokenizer.encode("abc", add_special_tokens=True)) == 3
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])
