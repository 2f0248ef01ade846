"""The frame of every call: refusals become statuses, surprises become INTERNAL, and all are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
_OVER = (grpc.RpcError, grpc.aio.UsageError)
"""The call was over before the answer was written: the client is gone."""
Behaviour = Callable[[Any, Context], Awaitable[Any]]


class CallObserver(Protocol):
    """Counts calls."""

    def call_started(self, service: str, method: str) -> None: ...

    def call_refused(self, service: str, method: str, reason: str) -> None: ...

    def call_handled(self, service: str, method: str, code: str, seconds: float) -> None: ...


class StatusError(Exception):
    """A device's answer that already is a status; passed on as it came, failures of the stream included."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.message)
        self.status = status


class StreamClosed(asyncio.CancelledError):
    """The client has ended a stream on which nothing was under way: how streams end, and no error."""


class SubjectEnded(Exception):
    """The client has ended the subject of its stream: it is answered so, and that is no error either."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True)
class UndecodableRequest:
    """Placeholder of a request that could not be decoded."""

    refusal: Refusal


def decoder(message: type[Message]) -> Callable[[bytes], Message | UndecodableRequest]:
    """Returns the decoder of requests. gRPC would end a call whose request cannot be decoded with no word but in the
    log, so that is left to `guarded`."""

    def decode(data: bytes) -> Message | UndecodableRequest:
        try:
            return message.FromString(data)
        except DecodeError as error:
            name = message.DESCRIPTOR.name
            return UndecodableRequest(malformed(f"The message is no {name}: {error}.", f"Send a {name}."))

    decode.message = message  # type: ignore[attr-defined]  # for the gate, which counts its fields first
    return decode


class RequestStream:
    """The messages of a client's stream; raises where one could not be decoded.

    They are read through the context because gRPC's own iterator refers to itself: unless it is read to its very end,
    which neither a broken stream nor a resumable upload is, it stays behind with its call and its last message. That
    may be a megabyte, and the collector of cycles, which counts objects and not bytes, takes minutes to come by.
    """

    def __init__(self, context: Context, decode: Callable[[bytes], Any] | None = None) -> None:
        """`decode`: of each message; without it they are bytes."""
        self._context = context
        self._decode = decode

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        message = await self._context.read()
        if message is EOF:
            raise StopAsyncIteration
        if self._decode is not None:
            message = self._decode(message)
        if isinstance(message, UndecodableRequest):
            raise message.refusal
        return message


def guarded(
    service: str, method: str, behaviour: Behaviour, observer: CallObserver, method_gate: MethodGate | None = None
) -> Behaviour:
    """Wraps `behaviour`: its errors become statuses, and calls are counted under its name. `method_gate` admits the
    caller and gives `behaviour` the first message."""

    async def serve(request: Any, context: Context) -> Any:
        observer.call_started(service, method)
        begin = time.monotonic()
        span = opentelemetry.begin(service, method, context)
        code, reason = "OK", ""
        try:
            try:
                if method_gate is not None:
                    request = await method_gate.enter(context)
                if isinstance(request, UndecodableRequest):
                    raise request.refusal
                return await behaviour(request, context)
            except (Refusal, StatusError, SubjectEnded) as error:
                status, code, reason = _ending(error)
                if reason:
                    observer.call_refused(service, method, reason)
                error.__traceback__ = None  # a holder of it must not keep with it what its frames were passing on
                await abort(context, status)
            except asyncio.CancelledError as gone:
                code = "OK" if isinstance(gone, StreamClosed) else "CANCELLED"
                raise
            except grpc.aio.AbortError:
                code = "ABORTED"
                raise
            except grpc.aio.InternalError:
                # A message could not be sent: the client is gone, and gRPC has yet to say so.
                code = "CANCELLED"
                raise asyncio.CancelledError from None
            except Exception as error:
                if isinstance(error, _OVER) or context.done() or context.cancelled():
                    code = "CANCELLED"
                    raise
                code = "INTERNAL"
                log.exception("call_failed", service=service, method=method)
                await abort(context, _defect(method, error).to_status())
        finally:
            observer.call_handled(service, method, code, time.monotonic() - begin)
            if span is not None:
                span.end(code, reason)
            del request, context  # gRPC keeps with the call what `abort` raises, and this frame with that

    if method_gate is not None:
        serve.method_gate = method_gate  # type: ignore[attr-defined]  # for `AdmissionGate.service`
    return serve


def _defect(method: str, error: Exception) -> Refusal:
    return Refusal(
        Reason.INTERNAL,
        f"{method} failed inside the daemon: {type(error).__name__}: {error}",
        fix="This is a defect of the daemon; its log has the traceback.",
    )


def _ending(error: Refusal | StatusError | SubjectEnded) -> tuple[Any, str, str]:
    """The status that ends the call, and the code and the reason that it is counted under; no reason: no error."""
    if isinstance(error, SubjectEnded):
        return error.refusal.to_status(), "OK", ""
    if isinstance(error, Refusal):
        return error.to_status(), error.code.name, error.reason
    return error.status, _CODE_NAMES.get(error.status.code, "UNKNOWN"), from_status(error.status).reason
