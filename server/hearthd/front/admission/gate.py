"""The gate in front of every method: identifies the caller from the headers of a call, then reads the first message.

Both transports use it. Handlers of all methods are registered as streaming handlers, because gRPC calls those when the
headers have arrived, and buffers no more of the body than its flow-control window until a message is requested. The
caller is identified once for each call, because a ticket is valid for one call. Services get it from `caller()`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import Message

from hearth_proto.reasons import Reason, Refusal
from hearthd.front import opentelemetry
from hearthd.front.admission import wire
from hearthd.front.admission.account import UnauthenticatedBytes
from hearthd.front.admission.fair_lock import FairLock
from hearthd.front.admission.limits import MAX_STRANGER_BYTES, AdmissionLimits, CredentialSource, MethodLimit
from hearthd.front.auth.authenticator import Authenticator, host_of
from hearthd.front.auth.session_binding import shown_caller
from hearthd.front.connections.limits import enter_call
from hearthd.front.errors import Context, malformed
from hearthd.front.sessions.attach import EOF
from hearthd.front.tenancy.tenants import EVERYONE, Caller

_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Returns the caller of the call that this task serves. Only for methods whose credential is in the headers."""
    return _caller.get()


class Admission(NamedTuple):
    """The gate's decision on the headers of a call."""

    caller: Caller | None
    """The authenticated caller. None: the headers show no credential, and the method takes one in its first message, or
    needs none."""
    max_bytes: int
    """Maximum size of the first message in bytes."""


class GatedService(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The methods of one service, by path."""

    def __init__(self, name: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self.name = name
        self.methods = dict(methods)
        """Handlers by method name."""
        self._paths = {f"/{name}/{method}": handler for method, handler in methods.items()}

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the handler of a call of this service; None for calls of other services."""
        return self._paths.get(handler_call_details.method)


class AdmissionGate:
    """The gate of a daemon. Belongs to the event loop."""

    def __init__(self, auth: Authenticator, limits: AdmissionLimits, account: UnauthenticatedBytes) -> None:
        self.auth = auth
        self.limits = limits
        self.account = account
        self.read_lock = FairLock()
        self.on_credential: Callable[[Caller | None], None] = lambda caller: None
        """Called with the caller to which the running call's credential belongs; None: the call has no valid
        credential."""
        self.on_probe: Callable[[], None] = lambda: None
        """Called for each call that needs no credential."""
        self.overloaded: Callable[[str], Refusal | None] = lambda method: None
        """Returns the refusal of a method because of overload, before the message of an admitted caller is read. None:
        it is served."""

    def method_gate(self, service: str, method: str, *, limit: MethodLimit | None = None) -> MethodGate:
        """Returns the gate of one method. `limit` replaces the limit from the table."""
        return MethodGate(self, service, method, limit or self.limits.find(service, method))

    def service(self, name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> GatedService:
        """Returns a service with these handlers, as streaming handlers.

        Each is guarded by its method gate (see `server_call.guarded`).
        """
        return GatedService(
            name, {method: _streaming(handler, _behaviour(handler)) for method, handler in handlers.items()}
        )

    def open_service(
        self, name: str, handlers: Mapping[str, Any], guard: Callable[[MethodGate, Any], Any]
    ) -> GatedService:
        """Returns a service with the handlers of another package, for callers without a credential.

        `guard` creates a behaviour from the gate of a method and the coroutine that serves the method.
        """
        limit = MethodLimit(CredentialSource.NONE, MAX_STRANGER_BYTES)
        methods = {}
        for method, handler in handlers.items():
            method_gate = self.method_gate(name, method, limit=limit)
            methods[method] = _streaming(handler, guard(method_gate, _message_server(handler)))
        return GatedService(name, methods)

    def decide(self, method_gate: MethodGate, context: Context) -> Admission:
        """Decides from the headers of a call. Raises the refusal."""
        auth, limit = self.auth, method_gate.limit
        if auth.directory.open:
            return Admission(Caller(EVERYONE, peer=context.peer()), max(limit.max_bytes, MAX_STRANGER_BYTES))
        if limit.credential is CredentialSource.NONE:
            return Admission(None, limit.max_bytes)
        if limit.credential is CredentialSource.SESSION and not auth.has_credential(context):
            return Admission(None, min(limit.max_bytes, MAX_STRANGER_BYTES))
        authenticated = auth.identify(context, by_session=limit.credential is not CredentialSource.LOGIN)
        return Admission(authenticated, limit.max_bytes)


class MethodGate:
    """The gate of one method."""

    def __init__(self, gate: AdmissionGate, service: str, method: str, limit: MethodLimit) -> None:
        self.service = service
        self.method = method
        self.limit = limit
        self.decode: Callable[[bytes], Any] | None = None
        """The decoder of the first message. None: the message stays as bytes."""
        self.message: type[Message] | None = None
        """The message type that `decode` creates."""
        self.unary = True
        """True if the method takes exactly one message."""
        self._gate = gate
        self._path = f"/{service}/{method}"
        self._seconds = gate.limits.seconds(limit)

    async def enter(self, context: Context) -> Any:
        """Admits a call whose headers have arrived, and returns its first message; None if a stream has none.

        Raises the refusal of a call that is not admitted.
        """
        enter_call(context)
        admitted: Any = getattr(context, "admitted", None)  # for framed calls the decision was made when METHOD arrived
        try:
            if admitted is None:
                admitted = self._gate.decide(self, context)
            elif isinstance(admitted, Refusal):
                raise admitted
        except Refusal as refusal:
            self._gate.on_credential(None)
            if refusal.reason == Reason.UNAUTHENTICATED:
                with self._gate.account.holding(MAX_STRANGER_BYTES) as reserved:
                    await self._gate.auth.record_failure(context.peer(), self.method, refusal, wait=reserved)
            raise
        overload = self._gate.overloaded(self.method)
        if overload is not None:
            raise overload
        if admitted.caller is not None:
            self._gate.on_credential(admitted.caller)
            _caller.set(opentelemetry.of_caller(admitted.caller))
        elif self.limit.credential is CredentialSource.NONE:
            self._gate.on_probe()
        shown_caller.set(admitted.caller)
        message = await self._read(context, admitted)
        if admitted.caller is not None:  # its credential may have been revoked while the message was awaited
            _caller.set(self._gate.auth.reidentify(admitted.caller))
        if message is EOF:
            if not self.unary:
                return None
            raise malformed(
                f"{self._path} was called without a request message.", "Send one message before the end of the stream."
            )
        return self._check_and_decode(message, context, admitted)

    async def _read(self, context: Context, admitted: Admission) -> Any:
        """Reads the first message, without decoding it; `EOF` if there is none."""
        try:
            if admitted.caller is None and not hasattr(context, "admitted"):
                return await self._read_with_lock(context)
            settings = self._gate.limits.settings
            async with asyncio.timeout(self._seconds if admitted.caller is not None else settings.request_timeout):
                return await context.read()
        except TimeoutError:
            self._gate.account.refused("request_timeout", context.peer(), self._path)
            raise Refusal(
                Reason.DEADLINE_EXCEEDED,
                f"The first message of {self.method} did not arrive in time.",
                fix="Send it with the call, faster than admission.request_rate; send a long message with the "
                "credential in the metadata.",
                details={"limit": "admission.request_timeout"},
            ) from None

    async def _read_with_lock(self, context: Context) -> Any:
        peer = context.peer()
        with self._gate.account.holding(MAX_STRANGER_BYTES) as reserved:
            if not reserved:
                self._gate.account.refused("unauthenticated_bytes", peer, self._path)
                raise Refusal(
                    Reason.QUEUE_FULL,
                    "Too many calls without a credential in their metadata are waiting to be read.",
                    fix='Send "authorization" or "hearth-session" in the metadata of the call, or try again later.',
                    details={"limit": "admission.max_unauthenticated_bytes", "allowed": self._gate.account.limit},
                    retry_after_s=1.0,
                )
            return await self._gate.read_lock.run(host_of(peer), context.read)

    def _check_and_decode(self, message: Any, context: Context, admitted: Admission) -> Any:
        """Checks the size and the number of fields of the message, and returns it decoded."""
        if isinstance(message, bytes):
            size = len(message)
            if size > admitted.max_bytes:
                raise self.too_large(size, context.peer(), admitted)
            settings = self._gate.limits.settings
            if self.message is not None and wire.exceeds(message, self.message.DESCRIPTOR, settings.max_request_fields):
                self._gate.account.refused("request_fields", context.peer(), self._path)
                raise Refusal(
                    Reason.MESSAGE_TOO_LARGE,
                    f"The request of {self.method} has more than {settings.max_request_fields} fields.",
                    fix="Send smaller messages; admission.max_request_fields is the maximum number of fields of a "
                    "message.",
                    details={"allowed": settings.max_request_fields, "limit": "admission.max_request_fields"},
                )
            if self.decode is not None:
                message = self.decode(message)
        return message

    def too_large(self, size: int, peer: str, admitted: Admission) -> Refusal:
        """Returns the refusal of a first message of `size` bytes."""
        self._gate.account.refused("request_size", peer, self._path, size=size)
        if admitted.caller is None:
            return Refusal(
                Reason.MESSAGE_TOO_LARGE,
                f"The first message of {self.method} has {size} bytes; without a credential in the call's metadata the "
                f"maximum is {admitted.max_bytes}.",
                fix='Send "hearth-session: <session token>" or "authorization: Bearer <token>" in the metadata.',
                details={"requested": size, "allowed": admitted.max_bytes},
            )
        return Refusal(
            Reason.MESSAGE_TOO_LARGE,
            f"The request of {self.method} has {size} bytes; the maximum is {admitted.max_bytes}.",
            fix="Send smaller messages; admission.max_request_bytes is the maximum size of a request without bulk "
            "data.",
            details={"requested": size, "allowed": admitted.max_bytes, "limit": "admission.max_request_bytes"},
        )


def _streaming(handler: Any, behaviour: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns a streaming handler with this behaviour, which is called before its first message is read.

    Its method gate decodes, as `handler` does.
    """
    method_gate: MethodGate = behaviour.method_gate
    method_gate.decode, method_gate.unary = handler.request_deserializer, not handler.request_streaming
    method_gate.message = getattr(method_gate.decode, "message", None)
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(behaviour, response_serializer=handler.response_serializer)


def _behaviour(handler: Any) -> Any:
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    return getattr(handler, kind)


def _message_server(handler: Any) -> Any:
    """Returns the coroutine that serves a method.

    It is called with the first message, and reads further messages of a stream.
    """
    behaviour = _behaviour(handler)

    async def serve(first: Any, context: Context) -> Any:
        request = _messages(first, context, handler.request_deserializer) if handler.request_streaming else first
        if inspect.isasyncgenfunction(behaviour):
            async for response in behaviour(request, context):
                await context.write(response)
            return None
        return await behaviour(request, context)

    return serve


async def _messages(first: Any, context: Context, decode: Any) -> AsyncIterator[Any]:
    """Yields the messages of a stream, starting with `first`, which has been read."""
    message = first
    while message is not None and message is not EOF:
        yield message
        raw: Any = await context.read()
        message = raw if raw is EOF or decode is None else decode(raw)
