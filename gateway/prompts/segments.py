"""Which part of a request each token of its prompt comes from. For explanations only: no routed request runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.prompts.encoding import Encoded, PromptEncoder, common_start
from gateway.prompts.prompt_input import Chat, Completion, PromptInput, Unkeyed
from indexer.keys import TOKEN_BYTES

TEMPLATE: Final = "template"
TOOLS: Final = "tools"
NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one source: `messages[3] (user)`, `prompt[0]`, `tools`, `chat`, `media` or `template`."""

    source: str
    first_token: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Span:
    source: str
    start: int
    end: int


def explain_prompt(encoder: PromptEncoder, request: PromptInput) -> list[Segment] | Unkeyed:
    """Segments of the keyed tokens, in order and without gaps.

    A token that begins in one part and ends in the next belongs to the next. Parts are found by their texts: text that
    the template changes or adds is `template`. Raises as `PromptEncoder.encode`.
    """
    encoded = encoder.encode(request, character_limit=NO_LIMIT)
    if not isinstance(encoded, Encoded):
        return encoded if isinstance(encoded, Unkeyed) else Unkeyed("too_long")
    if isinstance(request, Completion):
        return list(_completion(request, encoded))
    template = encoder.template
    truncated = encoded.tokens * TOKEN_BYTES != len(encoded.token_ids) or request.handling.truncation is not None
    if template is None or truncated or encoded.items:
        return list(_with_items(encoded))
    chat = template.conversation(request.messages, tools=request.tools, typed_calls=request.typed_calls)
    text = encoder.text(template, request, chat)
    special = request.handling.add_special_tokens

    def ids(end: int) -> bytes:
        return encoder.tokenizer.encode(text[:end], add_special_tokens=special)

    return list(_tokens_of(_spans(text, request, chat.messages), ids, encoded.token_ids))


def _completion(request: Completion, encoded: Encoded) -> Iterator[Segment]:
    tokens = len(encoded.token_ids) // TOKEN_BYTES
    lengths = [len(prompt) for prompt in request.prompts]
    # The longest of several is keyed. Of texts it is the one with most characters, for almost all vocabularies.
    yield Segment(f"prompt[{lengths.index(max(lengths))}]", 0, tokens)


def _with_items(encoded: Encoded) -> Iterator[Segment]:
    """For a chat with media, or a truncated one: its items, and the tokens between them."""
    place = 0
    for item in encoded.items:
        if item.first > place:
            yield Segment("chat", place, item.first - place)
        yield Segment("media", item.first, item.tokens)
        place = item.first + item.tokens
    total = len(encoded.token_ids) // TOKEN_BYTES
    if total > place:
        yield Segment("chat", place, total - place)


def _spans(text: str, request: Chat, messages: list[dict[str, Any]]) -> Iterator[_Span]:
    """The place of each part in the text, searched in order. The rest is the template's."""
    place = 0
    for source, part in _parts(request, messages):
        found = text.find(part, place) if part else -1
        if found < 0:
            continue
        if found > place:
            yield _Span(TEMPLATE, place, found)
        yield _Span(source, found, found + len(part))
        place = found + len(part)
    if place < len(text):
        yield _Span(TEMPLATE, place, len(text))


def _parts(request: Chat, messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for tool in request.tools or ():
        yield TOOLS, tool["function"]["name"]
    for number, message in enumerate(messages):
        source = f"messages[{number}] ({message['role']})"
        yield from ((source, part.strip()) for part in _texts(message))


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(reasoning := message.get("reasoning"), str):
        yield reasoning
    content = message["content"]
    if isinstance(content, str):
        yield content
    else:
        yield from (part["text"] for part in content if "text" in part)
    for call in message.get("tool_calls") or ():
        yield str(call["function"].get("name"))


def _tokens_of(spans: Iterator[_Span], ids: Callable[[int], bytes], whole: bytes) -> Iterator[Segment]:
    first = 0
    source = TEMPLATE
    for span in _merged(spans):
        source = span.source
        last = len(common_start(ids(span.end), whole)) // TOKEN_BYTES
        if last > first:
            yield Segment(source, first, last - first)
            first = last
    total = len(whole) // TOKEN_BYTES
    if total > first:
        yield Segment(source, first, total - first)


def _merged(spans: Iterator[_Span]) -> Iterator[_Span]:
    """Joins neighbours of the same source."""
    last: _Span | None = None
    for span in spans:
        if last is not None and last.source == span.source:
            last = _Span(last.source, last.start, span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
