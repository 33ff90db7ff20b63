"""Request bodies of the OpenAI API, parsed into typed values; what is wrong names its field.

Fields that this engine does not know are ignored, as clients send those of other servers.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from warmroute.chat_template.tools import declared_tools
from worker.engine.request import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16
"""Of OpenAI's completions API."""
DEFAULT_CHAT_TOKENS = 2**31
"""Chats go on to the end of the context, as vLLM lets them."""
SEED_RANGE = 2**63


class InvalidRequestError(Exception):
    """A request that is answered with an error in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """`stream_options` of a request."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    include_usage: bool | None = None


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check roles and contents; lists of text parts become one string, joined by line ends as vLLM joins them."""
    checked = []
    for number, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"[{number}].role must be a string")  # noqa: TRY004  pydantic reports ValueError only
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_part_text(part, f"[{number}].content[{place}]") for place, part in enumerate(content))
        elif content is not None and not isinstance(content, str):
            raise ValueError(f"[{number}].content must be a string or a list of text parts")
        checked.append({**message, "content": content})
    return checked


def _part_text(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise ValueError(f'{where} must be {{"type": "text", "text": "..."}}: this model takes text only')


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > 16 or any(not stop or len(stop) > 256 for stop in stops):
        raise ValueError("must have at most 16 strings of 1 to 256 characters")
    return tuple(stops)


Messages = Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True), AfterValidator(_messages)]
Tools = Annotated[list[dict[str, Any]], AfterValidator(declared_tools)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
Prompt = Annotated[str, StringConstraints(min_length=1)] | TokenIds


class GenerationRequest(_Body):
    """What chats and completions share."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-SEED_RANGE, lt=SEED_RANGE)
    stop: Annotated[str | list[str] | None, AfterValidator(_stops)] = Field(None, validate_default=True)
    n: int | None = None
    logprobs: bool | int | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    ignore_eos: bool | None = None

    @model_validator(mode="after")
    def _check_n(self) -> Self:
        if self.n not in (None, 1):
            raise InvalidRequestError("n must be 1: this engine gives one reply a request", param="n")
        if self.logprobs not in (None, False):
            raise InvalidRequestError("logprobs are not given by this engine: leave them out", param="logprobs")
        if self.response_format is not None and self.response_format.get("type") != "text":
            message = "response_format must be text: this engine does not constrain its replies"
            raise InvalidRequestError(message, param="response_format")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return self.stop if isinstance(self.stop, tuple) else ()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate, if the request limits them."""
        return self.max_tokens

    @property
    def default_token_limit(self) -> int:
        """The most tokens to generate where the request sets no limit and the context has room."""
        return DEFAULT_CHAT_TOKENS

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Sampling parameters, with OpenAI's defaults."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
        )


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: Tools | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Prompt

    @property
    def default_token_limit(self) -> int:
        return DEFAULT_COMPLETION_TOKENS


class TokenizeRequest(_Body):
    """`POST /tokenize`: of a prompt or of a chat."""

    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give either prompt or messages", param="prompt")
        return self


BodyT = TypeVar("BodyT", bound=_Body)


def parse(body: bytes, kind: type[BodyT]) -> BodyT:
    """Parse a body. Raises InvalidRequestError naming the field and what it must be."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        text = first["msg"].removeprefix("Value error, ")
        raise InvalidRequestError(f"{field}{'' if text.startswith('[') else ': '}{text}", param=field) from error
