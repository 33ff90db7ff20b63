"""Texts and token ids."""

from __future__ import annotations

import pytest

from gateway.prompts.completion import completion_prompt
from gateway.prompts.prompt_input import Completion, Handling, MalformedError, Truncation, Unkeyed


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["text"], ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([1, "a"], [[1, "a"]]),
    ],
)
def test_prompts(prompt: object, prompts: list) -> None:
    assert completion_prompt({"prompt": prompt}) == Completion(prompts)


def test_special_tokens_are_added_unless_the_request_says_no() -> None:
    assert completion_prompt({"prompt": "x"}) == Completion(["x"], Handling(True))
    assert completion_prompt({"prompt": "x", "add_special_tokens": False}) == Completion(["x"], Handling(False))
    made = completion_prompt({"prompt": "x", "truncate_prompt_tokens": 5})
    assert made == Completion(["x"], Handling(True, Truncation(5)))


def test_embeddings_have_no_tokens() -> None:
    assert completion_prompt({"prompt": "x", "prompt_embeds": "AAAA"}) == Unkeyed("embeds")


@pytest.mark.parametrize("prompt", [None, {}, [], ["a", 1], [[1], "a"], [None], [1.5], 7])
def test_shapes_that_engines_refuse(prompt: object) -> None:
    with pytest.raises(MalformedError):
        completion_prompt({"prompt": prompt})
