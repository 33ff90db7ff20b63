"""`warmroute explain`: where a gateway would send a request, and why."""

from __future__ import annotations

import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final

import orjson

from warmroute.cli.explain_table import explanation_text
from warmroute.cli.input_file import read_input
from warmroute.config.explain import ExplainConfig
from warmroute.config.model import Config
from warmroute.process.bearer_tokens import Tokens
from warmroute.process.lifecycle import StartupError

TIMEOUT_SECONDS: Final = 15.0
"""A gateway makes one explanation at a time, each within 10 s."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def run(config: Config, file: str, headers: Sequence[str], *, as_json: bool) -> int:
    """Ask, print and return 0. `headers`: of the request, each as `Name: value`. Raises StartupError for what cannot be
    asked, and for what a gateway would refuse."""
    body = read_input(file, config.gateway.body_limit_bytes, argument="FILE")
    if not body:
        raise StartupError(f"FILE: {file} is empty; give the JSON body of a request")
    explanation = ask(config.explain, body, dict(map(parse_header, headers)))
    try:
        text = orjson.dumps(explanation).decode() if as_json else explanation_text(explanation)
    except (KeyError, TypeError, ValueError) as error:
        raise _no_gateway(config.explain, f"its answer has another shape: {error!r}") from error
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever read this, such as `head`, has enough. The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def parse_header(text: str) -> tuple[str, str]:
    """A header's name and value. Raises StartupError."""
    name, colon, value = text.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii():
        raise StartupError(f"--header: {text!r} is no header; give 'Name: value', such as 'X-Session-ID: a'")
    return name, value.strip()


def ask(config: ExplainConfig, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """The gateway's answer. Raises StartupError."""
    query = {"path": config.path} | ({} if config.tenant is None else {"tenant": config.tenant})
    url = f"{config.url.rstrip('/')}/explain?{urllib.parse.urlencode(query)}"
    # The gateway's answer hangs on no key of the client's: --tenant says whose request it is.
    sent = {"content-type": "application/json", **headers, **_authorization(config)}
    asked = urllib.request.Request(url, body, sent)  # noqa: S310 - http or https, by the setting's check
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(asked, timeout=TIMEOUT_SECONDS) as response:
            answer = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(config, error.code, error.read()) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _no_gateway(config, str(reason)) from error
    try:
        explanation = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise _no_gateway(config, f"its answer is no JSON: {error}") from error
    if not isinstance(explanation, dict):
        raise _no_gateway(config, "its answer is no JSON object")
    return explanation


def _authorization(config: ExplainConfig) -> dict[str, str]:
    tokens = Tokens("explain.token", config.token, config.token_file).read()
    return {"authorization": f"Bearer {tokens[0].decode()}"} if tokens else {}


def _refused(config: ExplainConfig, status: int, answer: bytes) -> StartupError:
    try:
        error = orjson.loads(answer)["error"]
        message, code = str(error["message"]), error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return _no_gateway(config, f"it answers {status}")
    if code == "invalid_admin_token":
        return StartupError(
            f"explain.token_file: {config.url} asks for its admin token: give --token-file, or set "
            "WARMROUTE_EXPLAIN_TOKEN_FILE"
        )
    if code == "not_found":
        return _no_gateway(config, "it has no /explain, as a gateway's public port")
    return StartupError(f"the gateway would answer {status}: {message}" if status < 500 else message)


def _no_gateway(config: ExplainConfig, reason: str) -> StartupError:
    return StartupError(
        f"explain.url: no gateway's admin port answers at {config.url}: {reason}. Name one with --url, by default port "
        "8001 of the gateway's host"
    )
