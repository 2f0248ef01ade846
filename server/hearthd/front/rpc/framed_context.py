"""A call over a framed socket: its connection, and the context that its handler sees.

The context has the interface of gRPC's context.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from hearth_proto import calls, frames
from hearth_proto.calls import KEEPALIVE, Keepalive
from hearth_proto.frames import Frame, FrameError, FrameReader, FrameTooLarge, Kind
from hearth_proto.reasons import STATUS_DETAILS_KEY, Reason, Refusal
from hearth_proto.v1 import status_pb2
from hearthd.front.admission.limits import MAX_STRANGER_BYTES
from hearthd.front.connections.peers import process_of
from hearthd.front.sessions.attach import EOF
from hearthd.front.sessions.client_process import ClientProcess

if TYPE_CHECKING:
    from hearthd.front.admission.account import UnauthenticatedBytes
    from hearthd.front.admission.gate import Admission, MethodGate
    from hearthd.front.config.front_limits import AdmissionSettings
    from hearthd.front.connections.limiter import ConnectionSlot

_MAX_COPIED_BYTES = 64 << 10
"""Maximum size, in bytes, of a message that is copied to the buffer of its header. Longer messages are written without
a copy."""
_MAX_UNREAD_BYTES = 4 << 20
"""Bytes of requests that may wait to be read. Above this limit, reading from the socket pauses."""
_HIGH_WATER = 1 << 20
_SEND_BUFFER_BYTES = 2 << 20
"""Size, in bytes, of the socket's buffer for responses, as far as the system allows."""
OnMethod = Callable[["FramedCall", bytes], None]


class CallAborted(grpc.aio.AbortError):
    """Raised in a handler to end the call with `status`."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class FramedCall(asyncio.Protocol):
    """A connection and its one call.

    Calls `starts` with the payload of METHOD. To a handler this object is the call's context.
    """

    framed = True
    """True, unlike a gRPC context, which lacks this attribute: the client reads the details of a refusal."""

    def __init__(
        self,
        on_method: OnMethod,
        on_connected: Callable[[FramedCall], bool],
        account: UnauthenticatedBytes,
        settings: AdmissionSettings,
        keepalive: Keepalive = KEEPALIVE,
    ) -> None:
        self.admitted: Admission | Refusal | None = None
        """The gate's decision, made after METHOD arrived. None: METHOD has not arrived."""
        self.slot: ConnectionSlot | None = None
        """The connection's slot among those of the listener."""
        self.on_lost: Callable[[FramedCall], None] = lambda call: None
        self.transport: asyncio.Transport | None = None
        self.pid = 0
        """Process id of the client, as the kernel reports it. 0: unknown."""
        self.metadata: calls.Metadata = ()
        self.identify: Callable[[], calls.Metadata] | None = None
        """Returns metadata that identify the peer. Used if the call shows no credential."""
        self.encode: Callable[[Any], bytes] | None = None
        self.task: asyncio.Task[None] | None = None
        """The task that serves the call."""
        self._on_method: OnMethod | None = on_method
        self._on_connected = on_connected
        self._account = account
        self._settings = settings
        self._keepalive = keepalive
        self._counted_bytes = 0
        """Bytes counted on the account of callers whose headers show no credential."""
        self._method_data = b""
        """The part of METHOD that has arrived, while METHOD is incomplete."""
        self._frames = FrameReader(MAX_STRANGER_BYTES)
        self._max_unread = MAX_STRANGER_BYTES
        self._method_gate: MethodGate | None = None
        self._delivered = False
        """True once a message was given to the handler."""
        self._read_closed = False
        """True if nothing more is read from the client."""
        self._bytes_received = 0
        """Number of bytes received in total."""
        self._frames_received = 0
        """Number of complete frames received in total."""
        self._progress_timer: asyncio.TimerHandle | None = None
        """Timer that checks for progress of an incomplete frame."""
        self._inbox: deque[Any] = deque()
        self._unread_bytes = 0
        self._message_waiter: asyncio.Future[None] | None = None
        self._room_waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._half_closed = False
        self._lost = False
        self._received_since_check = True
        self._pinged = False
        self._keepalive_timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Calls `on_made`, and aborts the connection if it returns False. Called by asyncio."""
        self.transport = transport  # type: ignore[assignment]
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if self._on_connected(self):
            self._keepalive_timer = asyncio.get_running_loop().call_later(self._keepalive.ask, self._check_alive)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Reads METHOD, then queues messages for `read`. Closes the connection after an invalid frame."""
        self._received_since_check, self._pinged = True, False
        if self._read_closed:
            return
        self._bytes_received += len(data)
        try:
            if self._on_method is not None:
                data = self._read_method(data)
                if not data:
                    return
            for frame in self._frames.feed(data):
                self._frames_received += 1
                self._on_frame(frame)
        except FrameTooLarge as error:
            self._refuse_large(error)
        except FrameError:
            self.drop()
            return
        if self._frames.pending and self._progress_timer is None:
            self._start_progress_timer()
        if self._is_unauthenticated:
            self._set_counted_bytes(self._unread_bytes + self._frames.pending)

    # ---- admission ----

    def admit(self, admitted: Admission | Refusal, method_gate: MethodGate) -> None:
        """Applies the gate's decision. `starts` calls this method before any data after METHOD is examined."""
        self.admitted, self._method_gate = admitted, method_gate
        if isinstance(admitted, Refusal):
            self._stop_reading()
            return
        self._frames.max_payload = admitted.max_bytes
        if admitted.caller is not None:
            self._max_unread = _MAX_UNREAD_BYTES

    @property
    def _is_unauthenticated(self) -> bool:
        """True if no credential has been accepted yet."""
        return self.admitted is None or (
            self._max_unread < _MAX_UNREAD_BYTES and not isinstance(self.admitted, Refusal)
        )

    def _read_method(self, data: bytes) -> bytes:
        """Reads METHOD and calls `on_method`.

        Returns the bytes after METHOD; empty while METHOD is incomplete. Raises `FrameError`.
        """
        head = self._method_data + data
        if len(head) >= frames.HEADER.size:
            length, kind, *_ = frames.HEADER.unpack_from(head)
            if kind != Kind.METHOD or length > calls.MAX_HEAD:
                raise FrameError(f"a call begins with frame {kind} of {length} bytes")
            end = frames.HEADER.size + length
            if len(head) >= end:
                assert self._on_method is not None
                on_method, self._on_method, self._method_data = self._on_method, None, b""
                self._set_counted_bytes(0)
                on_method(self, head[frames.HEADER.size : end])
                return b"" if self._read_closed else head[end:]
        self._method_data = head
        self._set_counted_bytes(len(head))
        return b""

    def _set_counted_bytes(self, size: int) -> None:
        """Sets the number of bytes on the account of callers without a credential.

        Closes the connection if the account has no room.
        """
        if size > self._counted_bytes and not self._account.reserve(size - self._counted_bytes):
            self._account.refused("unauthenticated_bytes", self.peer(), "")
            self.drop()
            return
        if size < self._counted_bytes:
            self._account.release(self._counted_bytes - size)
        self._counted_bytes = size

    def _accept(self) -> None:
        """Applies the limits of an accepted caller.

        A handler that has read a message and reads another has identified the caller.
        """
        assert self._method_gate is not None
        self._max_unread = _MAX_UNREAD_BYTES
        self._frames.max_payload = self._method_gate.limit.max_bytes
        self._set_counted_bytes(0)

    def _refuse_large(self, error: FrameTooLarge) -> None:
        if self._method_gate is None or self.admitted is None or isinstance(self.admitted, Refusal):
            self.drop()
            return
        self._enqueue(self._method_gate.too_large(error.size, self.peer(), self.admitted))
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._read_closed = True
        if self.transport is not None:
            self.transport.pause_reading()

    def _start_progress_timer(self) -> None:
        timeout = self._settings.request_timeout
        self._progress_timer = asyncio.get_running_loop().call_later(
            timeout, self._check_progress, self._bytes_received, self._frames_received
        )

    def _check_progress(self, bytes_before: int, frames_before: int) -> None:
        """Refuses a message that arrives too slowly. Time in which reading is paused does not count."""
        self._progress_timer = None
        if self.transport is None or self._read_closed or not self._frames.pending:
            return
        min_bytes = self._settings.request_timeout * self._settings.request_rate
        if (
            self._frames_received > frames_before
            or self._bytes_received - bytes_before >= min_bytes
            or not self.transport.is_reading()
        ):
            self._start_progress_timer()
            return
        self._account.refused(
            "request_timeout", self.peer(), "" if self._method_gate is None else self._method_gate.method
        )
        self._enqueue(
            Refusal(
                Reason.DEADLINE_EXCEEDED,
                f"A message of the call arrived with less than {self._settings.request_rate} bytes a second.",
                fix="Send it faster; admission.request_rate is the minimum rate.",
                details={"limit": "admission.request_rate", "allowed": self._settings.request_rate},
            )
        )
        self._stop_reading()

    def _on_frame(self, frame: Frame) -> None:
        if self._read_closed:
            return
        if frame.kind == Kind.MESSAGE and not self._half_closed:
            self._enqueue(frame.payload)
            self._unread_bytes += len(frame.payload)
            if self._unread_bytes > self._max_unread and self.transport is not None:
                self.transport.pause_reading()
        elif frame.kind == Kind.END and not self._half_closed:
            self._half_closed = True
            self._enqueue(EOF)
        elif frame.kind == Kind.PING:
            self._send(Kind.PONG, b"")
        elif frame.kind != Kind.PONG:
            raise FrameError(f"frame {frame.kind} arrived in a call")

    def _enqueue(self, message: Any) -> None:
        self._inbox.append(message)
        if self._message_waiter is not None and not self._message_waiter.done():
            self._message_waiter.set_result(None)

    def pause_writing(self) -> None:
        """Makes `write` wait. Called by asyncio above `_HIGH_WATER` unsent bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        """Ends the wait of `write`. Called by asyncio, and when the connection is lost."""
        self._paused = False
        if self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)

    def eof_received(self) -> bool:
        """Returns False, so that asyncio closes the connection."""
        return False  # the client has disconnected, which cancels the call

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the call's task, and releases the slot and the counted bytes. Called by asyncio."""
        self._lost, self.transport = True, None
        if self.slot is not None:
            self.slot.release()
            self.slot = None  # the slot refers to the call; without this, only the garbage collector would free both
        self.on_lost(self)
        for timer in (self._keepalive_timer, self._progress_timer):
            if timer is not None:
                timer.cancel()
        self._method_data, self._frames = b"", FrameReader(0)
        self._inbox.clear()
        self._set_counted_bytes(0)
        self.resume_writing()
        if self._message_waiter is not None and not self._message_waiter.done():
            self._message_waiter.set_result(None)
        if self.task is not None:
            self.task.cancel()
            self.task = None

    # ---- liveness of the client ----

    def _check_alive(self) -> None:
        """Ends a call whose client does not answer, for example because its process is stopped.

        Sends pings while the client is silent.
        """
        is_silent, self._received_since_check = not self._received_since_check, False
        if self.transport is None:
            return
        if is_silent and self._pinged:
            self.drop()
            return
        delay = self._keepalive.ask
        if not self._paused:
            # While reading is paused, a ping of the client would not be read, so it is answered in advance.
            if not self.transport.is_reading():
                self._send(Kind.PONG, b"")
            elif is_silent:
                self._send(Kind.PING, b"")
                self._pinged, delay = True, self._keepalive.answer
        self._keepalive_timer = asyncio.get_running_loop().call_later(delay, self._check_alive)

    # ---- the context of the handler ----

    def peer(self) -> str:
        """Returns gRPC's name for peers on a Unix socket, which is the same for all of them."""
        return "unix:"

    def process(self) -> ClientProcess | None:
        """Returns the client's process, to be watched; see `process_of` for the cases in which it returns None."""
        if self.transport is None:
            return None
        process = process_of(self.transport.get_extra_info("socket"))
        return ClientProcess(*process) if process is not None else None

    def invocation_metadata(self) -> calls.Metadata:
        """Returns the metadata of the call. The first call of this method adds those that `identify` returns."""
        if self.identify is not None:
            identify, self.identify = self.identify, None
            self.metadata += identify()
        return self.metadata

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Returns an empty mapping: a Unix socket has no certificates."""
        return {}

    def done(self) -> bool:
        """Returns True if the connection is lost."""
        return self._lost

    def cancelled(self) -> bool:
        """Returns True if the connection is lost, which also cancels the call's task."""
        return self._lost

    async def read(self) -> Any:
        """Returns the next message. After the last one, returns `EOF`, as often as it is called.

        Raises CancelledError if the client has disconnected, because the cancellation of the task can be lost in the
        operation that it waits for (`asyncio.wait_for` before Python 3.12). Raises the refusal of a message that was
        too long or too slow.
        """
        if self._delivered and self._is_unauthenticated:
            self._accept()
        while not self._inbox:
            if self._lost:
                raise asyncio.CancelledError
            self._message_waiter = asyncio.get_running_loop().create_future()
            await self._message_waiter
        message = self._inbox[0]
        if message is EOF:
            return EOF
        if isinstance(message, Refusal):
            raise message
        self._inbox.popleft()
        self._unread_bytes -= len(message)
        self._delivered = True
        if (
            self.transport is not None
            and not self._read_closed
            and self._unread_bytes <= self._max_unread
            and not self.transport.is_reading()
        ):
            self.transport.resume_reading()
        return message

    async def send_initial_metadata(self, _: calls.Metadata) -> None:
        """Does nothing; part of gRPC's interface. Framed calls have no initial metadata."""

    async def write(self, message: Any) -> None:
        """Sends a response. Returns when there is room for another."""
        self._send(Kind.MESSAGE, message if self.encode is None else self.encode(message))
        while self._paused and not self._lost:
            self._room_waiter = asyncio.get_running_loop().create_future()
            await self._room_waiter

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call with an error: raises `CallAborted`, and the server sends the status."""
        status = status_pb2.Status(message=details)
        for key, value in trailing_metadata:
            if key == STATUS_DETAILS_KEY:
                status = status_pb2.Status.FromString(value)
        status.code = int(code.value[0])
        raise CallAborted(status)

    # ---- end ----

    def end(self, status: status_pb2.Status | None = None) -> None:
        """Sends the end of the call, and closes the connection after it has been sent."""
        if self.transport is not None:
            self._send(Kind.END, b"" if status is None else status.SerializeToString())
            self.transport.close()

    def drop(self) -> None:
        """Closes the connection without sending anything."""
        if self.transport is not None:
            self.transport.abort()

    def _send(self, kind: int, payload: bytes) -> None:
        if self.transport is None:
            return
        if len(payload) <= _MAX_COPIED_BYTES:
            self.transport.write(frames.header(kind, len(payload)) + payload)
        else:
            self.transport.writelines((frames.header(kind, len(payload)), payload))
