"""The shared token of the indexer's gRPC service: who calls without it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from warmroute.process.bearer_tokens import Tokens


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
