"""The shared token of the indexer's gRPC service, sent as the metadata `authorization: Bearer ...`.

A token file is read again when it changes and may hold several tokens, the old and the new one among them: put the new
one on the indexer first, then on the clients, then take the old one away.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc

from warmroute.config.grpc import GrpcConfig
from warmroute.process.watched_files import SecurityError, file_stamp, read_file

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = (8, 4096)
TOKENS_A_FILE: Final = 16


class Tokens:
    """The tokens in force; the file is read again when it changes."""

    def __init__(self, config: GrpcConfig) -> None:
        if config.token is not None and config.token_file is not None:
            raise SecurityError(
                f"grpc.token_file: {str(config.token_file)!r} is refused: grpc.token is set too; keep one of them"
            )
        self.configured = config.token is not None or config.token_file is not None
        self._file = config.token_file
        self._warned = False
        self._stamp: object = None
        self._known: tuple[bytes, ...] = ()
        if config.token is not None:
            self._known = (_check_token("grpc.token", config.token),)
        self.read()

    def read(self) -> tuple[bytes, ...]:
        """Raises SecurityError once for a file that cannot be used; the tokens known before stay in force."""
        if self._file is not None and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp  # also of a file that is refused: it is complained of once
            text = read_file("grpc.token_file", self._file).decode("utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if not 1 <= len(lines) <= TOKENS_A_FILE:
                raise SecurityError(
                    f"grpc.token_file: {str(self._file)!r} is refused: it has {len(lines)} tokens; "
                    f"put one on a line, at most {TOKENS_A_FILE}"
                )
            self._known = tuple(_check_token("grpc.token_file", line) for line in lines)
        return self._known

    def match(self, authorization: str | bytes | None) -> bool:
        """Whether this value of the metadata `authorization` carries one of them."""
        try:
            known = self.read()
        except SecurityError as error:
            logger.warning("the tokens in use stay: %s", error)
            known = self._known
        given = authorization.encode() if isinstance(authorization, str) else authorization or b""
        scheme, _, token = given.partition(b" ")
        # No early end: the time must not tell which token was nearly right.
        matches = [hmac.compare_digest(token.strip(), one) for one in known]
        return scheme.lower() == b"bearer" and any(matches)

    def warn_once(self, target: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the token goes to %s without TLS: whoever sees the traffic has it; set grpc.tls_ca_file", target
            )


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)  # None: there is no such method
        if handler is None or self._tokens.match(dict(handler_call_details.invocation_metadata).get("authorization")):
            return handler
        makers = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        return makers[handler.request_streaming, handler.response_streaming](_refuse)


async def _refuse(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "authorization: the shared token is missing or wrong: set grpc.token_file to the indexer's token",
    )
    raise AssertionError("abort returned")


def _check_token(field: str, token: str) -> bytes:
    least, most = TOKEN_BYTES
    if not least <= len(token) <= most or not token.isascii() or not token.isprintable() or " " in token:
        raise SecurityError(
            f"{field}: the token (not shown) is refused: use {least} to {most} printable ASCII characters without "
            "spaces, such as the output of: openssl rand -hex 32"
        )
    return token.encode()
