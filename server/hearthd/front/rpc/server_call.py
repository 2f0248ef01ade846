"""The wrapper of every call: refusals become statuses, unexpected errors become INTERNAL, and calls are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

from hearth_proto.reasons import Code, Reason, Refusal, from_status
from hearthd.front import opentelemetry
from hearthd.front.errors import Context, abort, malformed
from hearthd.front.sessions.attach import EOF

if TYPE_CHECKING:
    from hearthd.front.admission.gate import MethodGate

log = structlog.get_logger("hearthd.rpc")

_CODE_NAMES = {int(code): code.name for code in Code}
_DISCONNECT_ERRORS = (grpc.RpcError, grpc.aio.UsageError)
"""Errors that mean that the call ended before the answer was written, because the client disconnected."""
Behaviour = Callable[[Any, Context], Awaitable[Any]]


class CallObserver(Protocol):
    """Counts calls."""

    def call_started(self, service: str, method: str) -> None:
        """Counts a call when it arrives, before its caller is known. `call_handled` follows once."""
        ...

    def call_refused(self, service: str, method: str, reason: str) -> None:
        """Counts a call that ends with a refusal or a device's error. `reason`: the reason code."""
        ...

    def call_handled(self, service: str, method: str, code: str, seconds: float) -> None:
        """Counts the end of a call. `code`: the name of gRPC's status code; `seconds`: the duration of the call."""
        ...


class StatusError(Exception):
    """A device's answer that is an error status. It is passed on unchanged, including failures of the stream."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.message)
        self.status = status


class StreamClosed(asyncio.CancelledError):
    """Raised when the client ends a stream on which nothing was under way.

    This is the regular end of a stream, not an error.
    """


class SubjectEnded(Exception):
    """Raised when the client has ended the subject of its stream.

    The stream ends with a refusal, but this does not count as an error.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def decoder(message: type[Message]) -> Callable[[bytes], Message]:
    """Returns a decoder of requests, which raises `MALFORMED_MESSAGE`. The method's gate calls it, not gRPC."""

    def decode(data: bytes) -> Message:
        try:
            return message.FromString(data)
        except DecodeError as error:
            name = message.DESCRIPTOR.name
            raise malformed(f"The message is not a valid {name}: {error}.", f"Send a {name}.") from None

    decode.message = message  # type: ignore[attr-defined]  # for the gate, which counts the message's fields first
    return decode


def serialize(message: Message) -> bytes:
    """Returns a response as bytes, for every type of message."""
    return message.SerializeToString()


def unary_handlers(
    messages: ModuleType, behaviours: Mapping[str, Behaviour], guard: Callable[[str, Behaviour], Behaviour]
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Returns the handlers of methods with one request and one answer, by method.

    The request of a method is `{method}Request` of `messages`. `guard` wraps a behaviour, as `guarded` does.
    """
    return {
        method: grpc.unary_unary_rpc_method_handler(
            guard(method, behaviour),
            request_deserializer=decoder(getattr(messages, f"{method}Request")),
            response_serializer=serialize,
        )
        for method, behaviour in behaviours.items()
    }


class RequestStream:
    """The messages of a client's stream. Raises the refusal of a message that could not be decoded.

    The messages are read through the context, because gRPC's own iterator refers to itself. Unless that iterator is
    read to its end, which does not happen with a broken stream or a resumable upload, it stays in memory with its call
    and its last message, possibly a megabyte. The garbage collector counts objects, not bytes, and may take minutes to
    free it.
    """

    def __init__(self, context: Context, decode: Callable[[bytes], Any] | None = None) -> None:
        """Creates the iterator. `decode` decodes each message; without it, messages are bytes."""
        self._context = context
        self._decode = decode

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        message = await self._context.read()
        if message is EOF:
            raise StopAsyncIteration
        return message if self._decode is None else self._decode(message)


def guarded(method_gate: MethodGate, behaviour: Behaviour, observer: CallObserver) -> Behaviour:
    """Wraps the `behaviour` of a method: its errors become statuses, and its calls are counted.

    `method_gate` admits the caller and passes the first message to `behaviour`. The wrapper is called without it.
    """
    service, method = method_gate.service, method_gate.method

    async def serve(request: Any, context: Context) -> Any:
        observer.call_started(service, method)
        started_at = time.monotonic()
        span = opentelemetry.begin(service, method, context)
        code, reason = "OK", ""
        try:
            try:
                request = await method_gate.enter(context)
                return await behaviour(request, context)
            except (Refusal, StatusError, SubjectEnded) as error:
                status, code, reason = _call_outcome(error)
                if reason:
                    observer.call_refused(service, method, reason)
                error.__traceback__ = None  # a holder of the error must not keep the objects in its frames alive
                await abort(context, status)
            except asyncio.CancelledError as error:
                code = "OK" if isinstance(error, StreamClosed) else "CANCELLED"
                raise
            except grpc.aio.AbortError:
                code = "ABORTED"
                raise
            except grpc.aio.InternalError:
                # A message could not be sent: the client has disconnected, and gRPC has not reported it yet.
                code = "CANCELLED"
                raise asyncio.CancelledError from None
            except Exception as error:
                if isinstance(error, _DISCONNECT_ERRORS) or context.done() or context.cancelled():
                    code = "CANCELLED"
                    raise
                code = "INTERNAL"
                log.exception("call_failed", service=service, method=method)
                await abort(context, _internal_error(method, error).to_status())
        finally:
            observer.call_handled(service, method, code, time.monotonic() - started_at)
            if span is not None:
                span.end(code, reason)
            # gRPC keeps the error that `abort` raises with the call, and the error refers to this frame.
            del request, context

    serve.method_gate = method_gate  # type: ignore[attr-defined]  # for `AdmissionGate.service`
    return serve


def _internal_error(method: str, error: Exception) -> Refusal:
    return Refusal(
        Reason.INTERNAL,
        f"{method} failed inside the daemon: {type(error).__name__}: {error}",
        fix="This is a defect of the daemon; its log has the traceback.",
    )


def _call_outcome(error: Refusal | StatusError | SubjectEnded) -> tuple[Any, str, str]:
    """Returns the status that ends the call, and the code and reason under which it is counted.

    An empty reason: no error.
    """
    if isinstance(error, SubjectEnded):
        return error.refusal.to_status(), "OK", ""
    if isinstance(error, Refusal):
        return error.to_status(), error.code.name, error.reason
    return error.status, _CODE_NAMES.get(error.status.code, "UNKNOWN"), from_status(error.status).reason
