"""Parses the requests of unary calls, so that malformed ones get a status. grpc itself would log a traceback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

Context = grpc.aio.ServicerContext[Any, Any]


class MessageParser(grpc.aio.ServerInterceptor):
    """For methods with one request. The service itself parses and refuses the messages of streams."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer
        if handler.response_streaming:
            stream: Any = handler.unary_stream

            async def answers(body: bytes, context: Context) -> AsyncIterator[Any]:
                async for answer in stream(await _parsed(parse, body, context), context):
                    yield answer

            return grpc.unary_stream_rpc_method_handler(answers, None, handler.response_serializer)
        method: Any = handler.unary_unary

        async def answer(body: bytes, context: Context) -> Any:
            return await method(await _parsed(parse, body, context), context)

        return grpc.unary_unary_rpc_method_handler(answer, None, handler.response_serializer)


async def _parsed(parse: Callable[[bytes], Any], body: bytes, context: Context) -> Any:
    try:
        return parse(body)
    except DecodeError:
        await _refuse(context)


async def _refuse(context: Context) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "body: this is no request of this method")
    raise AssertionError("abort returned")
