"""A prompt from a file, keyed as the gateway keys it, for `warmroute index --prompt`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from gateway.prompts.body import BadRequestError, BodyKind, Completion, RoutedBody, Unkeyed, parse_body
from gateway.prompts.keyer import KeySpace, Prompt, PromptKeyer, TokenizerError
from indexer.keys import pool_fingerprint, prompt_keys
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match
from warmroute.process.lifecycle import StartupError

BUDGET_SECONDS: Final = 60.0
REASONS: Final[Mapping[str, str]] = {
    "template": "it needs a chat template that the model's folder lacks, or that refuses it, or it brings its own",
    "media": "it holds media and is to be truncated: such prompts are routed by load",
    "stored": "it continues what only the worker that answered before has",
    "items": "it holds items that are not mapped to a chat",
    "inline_system": "it holds system messages among the others, which engines put in different places",
    "embeds": "it is made of embeddings",
    "malformed": "its fields have shapes that no engine takes",
    "too_long": "it is longer than any gateway keys",
    "path": "prompts of this path are not keyed",
    "no_tokenizer": "the gateway has no tokenizer for this pool",
    "no_key_space": "no worker keys with the gateway's tokenizer",
    "mismatch": "replies count other tokens than the gateway, and the engine tells none",
    "budget": "to tokenise it took longer than gateway.prompt_budget_seconds",
    "busy": "too many other long prompts are being tokenised",
    "error": "the gateway failed to tokenise it, see its log",
}
"""Why a prompt has no keys, in words."""

_KINDS: Final[Mapping[str, BodyKind]] = {"messages": BodyKind.CHAT, "input": BodyKind.RESPONSE}
"""What the request is, by the field that it has; a completion otherwise."""


@dataclass(frozen=True, slots=True)
class HolderView:
    """How much of a prompt one worker holds. `share` is of the prompt's tokens."""

    worker_id: str
    address: str
    late: bool
    matched_blocks: int
    device_blocks: int
    host_blocks: int
    matched_tokens: int
    device_tokens: int
    host_tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class PromptView:
    """A prompt and who holds how much of it, the longest match first."""

    pool: str
    kind: str
    tokens: int
    blocks: int
    index_block_tokens: int
    fingerprint: str
    holders: tuple[HolderView, ...]


def parse_prompt(data: bytes, *, model: str) -> tuple[RoutedBody, str]:
    """The request and what it is: a chat, a text or token ids.

    A JSON object is the body of a request, in which `model` may be left out; anything else is a plain prompt. Raises
    StartupError.
    """
    if not data.lstrip().startswith(b"{"):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise StartupError(f"--prompt: the file is neither JSON nor UTF-8 text: {error}") from error
        return RoutedBody(model, "", Completion([text]), len(data)), "text"
    try:
        fields = orjson.loads(data)
        if "model" not in fields:
            data = orjson.dumps({**fields, "model": model})
        kind = next((kind for field, kind in _KINDS.items() if field in fields), BodyKind.COMPLETION)
        body = parse_body(data, kind)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, BadRequestError) as error:
        raise StartupError(
            f'--prompt: the file begins like a request body and is none: {error}. A text goes in as {{"prompt": "..."}}'
        ) from error
    if kind is BodyKind.CHAT and "prompt" in fields:
        raise StartupError("--prompt: the request has both messages and prompt; leave one out")
    if not isinstance(body.prompt, Completion):
        return body, kind.value
    if len(body.prompt.prompts) > 1:
        raise StartupError("--prompt: the request holds several prompts: give one")
    return body, "text" if isinstance(body.prompt.prompts[0], str) else "token ids"


def named_model(data: bytes) -> str | None:
    """The model that a request body names; None for a plain text, or where it names none."""
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    model = fields.get("model") if isinstance(fields, dict) else None
    return model if isinstance(model, str) else None


def key_space(workers: Iterable[WorkerFacts], tokenizer: str | None) -> KeySpace:
    """What most workers key by; of those that use this tokenizer (its digest), where one is given.

    Raises StartupError where none does.
    """
    facts = list(workers)
    usable = [
        each
        for each in facts
        if tokenizer is None
        or each.fingerprint
        == pool_fingerprint(index_block_tokens=each.index_block_tokens, base_model=each.model, tokenizer=tokenizer)
    ]
    spaces = Counter(KeySpace(each.fingerprint, each.index_block_tokens) for each in usable)
    if spaces:
        return spaces.most_common(1)[0][0]
    known = ", ".join(sorted({f"{each.fingerprint} ({each.model})" for each in facts})) or "no worker is there"
    raise StartupError(
        f"--model-path: no worker of the pool keys with the tokenizer {tokenizer}; fingerprints in the index: {known}. "
        "Name the folder that the engine serves"
    )


async def key_prompt(
    body: RoutedBody, workers: Iterable[WorkerFacts], model_folder: Callable[[], AbstractAsyncContextManager[Path]]
) -> tuple[Prompt, KeySpace]:
    """Keys by the gateway's own functions. `model_folder` is entered only where text has to be tokenised.

    Raises StartupError.
    """
    match body.prompt:
        case Completion(prompts=[[*ids]], handling=handling) if handling.truncation is None:
            space = key_space(workers, None)
            try:
                keys = prompt_keys(ids, space.fingerprint, block_tokens=space.index_block_tokens, salt=body.salt)
            except (TypeError, OverflowError) as error:
                message = f"--prompt: prompt must be a list of token ids from 0 to 2**32 - 1: {error}"
                raise StartupError(message) from error
            return Prompt(len(ids), keys), space
        case Unkeyed() as unkeyed:
            raise _unkeyed(unkeyed)
    try:
        async with model_folder() as folder:
            keyer = PromptKeyer.from_folder(folder, budget_seconds=BUDGET_SECONDS)
    except TokenizerError as error:
        raise StartupError(
            f"--model-path: {error}; name the folder with tokenizer.json that the engine serves"
        ) from error
    try:
        space = key_space(workers, keyer.tokenizer.digest)
        prompt = await keyer.key(body, space)
    finally:
        keyer.close()
    if isinstance(prompt, Unkeyed):
        raise _unkeyed(prompt)
    return prompt, space


def _unkeyed(prompt: Unkeyed) -> StartupError:
    return StartupError(f"--prompt: the prompt has no keys: {REASONS.get(prompt.reason, prompt.reason)}")


def view_prompt(
    pool: str,
    kind: str,
    prompt: Prompt,
    space: KeySpace,
    workers: Mapping[str, tuple[str, bool]],
    matches: Mapping[str, Match],
) -> PromptView:
    """`workers`: worker id -> (address, late); who holds nothing is listed too."""
    size = space.index_block_tokens

    def holder(worker_id: str) -> HolderView:
        match = matches.get(worker_id, Match(0))
        address, late = workers[worker_id]
        return HolderView(
            worker_id=worker_id,
            address=address,
            late=late,
            matched_blocks=match.blocks,
            device_blocks=match.device_blocks,
            host_blocks=match.host_blocks,
            matched_tokens=match.blocks * size,
            device_tokens=match.device_blocks * size,
            host_tokens=match.host_blocks * size,
            share=match.blocks * size / prompt.tokens if prompt.tokens else 0.0,
        )

    holders = sorted(map(holder, workers), key=lambda each: (-each.matched_blocks, each.host_blocks, each.worker_id))
    return PromptView(pool, kind, prompt.tokens, len(prompt.keys), size, space.fingerprint, tuple(holders))
