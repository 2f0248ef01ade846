"""Frame transport over a Unix socket: replaces `GrpcTransport`, without gRPC.

Importing gRPC takes longer than everything else that a first result needs. Each call has a separate connection, so that
calls do not wait for each other; closing a connection cancels its call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hearth import errors
from hearth.codec import decode
from hearth.errors import HearthError
from hearth.transport.base import DEVICE, NODE, UNIX, Transport, closed, unreached
from hearth.transport.framed_call import FramedExchange, send_in_thread
from hearth_proto.calls import KEEPALIVE, Metadata, socket_path
from hearth_proto.later import device_pb2

if TYPE_CHECKING:
    from hearth.transport.base import Early

T = TypeVar("T")


class FramedTransport(Transport):
    """Framed calls to one daemon. Thread-safe."""

    def __init__(self, target: str) -> None:
        """Creates a transport; `target` is ``unix:`` and the path of gRPC's socket."""
        super().__init__(target, lanes=True, stripes=0)
        self.keepalive = KEEPALIVE
        """Keepalive times with which calls that begin from now on detect that the daemon has ended."""
        self._path = socket_path(target.removeprefix(UNIX))
        self._lock = threading.Lock()
        self._calls: set[FramedExchange] = set()
        self._closed = False

    # ---- calls and streams ----

    def start_call(self, method: str, request: Any, response_type: Any, timeout: float) -> _Answer:
        """Starts a unary call of NodeService without waiting. The call is not repeated if the connection breaks.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Seconds after which the call fails.
        """
        return self._start_unary(NODE + method, request, response_type, timeout)

    def _call_once(self, path: str, request: Any, response_type: Any, timeout: float) -> Any:
        return self._start_unary(path, request, response_type, timeout).result()

    def _start_unary(self, path: str, request: Any, response_type: Any, timeout: float) -> _Answer:
        call = self._start(path, request.SerializeToString(), timeout, self._call_metadata())
        return _Answer(self, call, response_type)

    def execute(self, requests: Iterator[bytes], early: Early) -> _Stream[device_pb2.ExecuteResponse]:
        """Opens an Execute stream, and sends its requests in a separate thread.

        Args:
            requests: Serialized requests; the first one is taken by the calling thread.
            early: Not called, because the iterating thread receives each response first.
        """
        call = self._start(DEVICE + "Execute", next(requests), None, self.metadata, more=True)
        send_in_thread(call, requests, "hearth-send")
        return _Stream(self, call, decode.response)

    def upload(self, requests: Iterator[bytes]) -> _Upload:
        """Opens an Upload stream, and sends its messages in a separate thread.

        Args:
            requests: Serialized `UploadRequest` messages; the first one is taken by the calling thread.
        """
        call = self._start(DEVICE + "Upload", next(requests), None, self._call_metadata(), more=True)
        send_in_thread(call, requests, "hearth-upload")
        return _Upload(self, call, device_pb2.UploadResponse)

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> _Stream[bytes]:
        """Opens a Download stream, whose messages stay serialized.

        Args:
            request: Names the transfer and the offset of the first byte.
            timeout: Seconds after which the stream is cut short; None: never.
        """
        call = self._start(DEVICE + "Download", request.SerializeToString(), timeout, self._call_metadata())
        return _Stream(self, call, None)

    # ---- lifecycle ----

    @property
    def open_calls(self) -> int:
        """Number of calls and streams that have not ended."""
        return len(self._calls)

    def close(self) -> None:
        """Cancels all open calls, and refuses further ones."""
        with self._lock:
            self._closed = True
            open_calls = list(self._calls)
        for call in open_calls:
            call.cancel()

    def _start(
        self, method: str, message: bytes, timeout: float | None, metadata: Metadata, *, more: bool = False
    ) -> FramedExchange:
        if self._closed:
            raise closed(self.target)
        try:
            call = FramedExchange(self.target, self._path, timeout, self.keepalive)
        except (OSError, ValueError) as error:
            raise unreached(self.target, getattr(error, "strerror", None) or str(error)) from None
        with self._lock:
            self._calls.add(call)
            cancelled = self._closed
        if cancelled:
            call.cancel()
        try:
            call.start(method, metadata, message, more=more)
        except BaseException:
            call.close()
            self.remove_call(call)
            raise
        return call

    def remove_call(self, call: FramedExchange) -> None:
        """Removes a call that has ended.

        Args:
            call: Call of this transport.
        """
        with self._lock:
            self._calls.discard(call)


class _Answer:
    """Pending response of a unary call."""

    def __init__(self, transport: FramedTransport, call: FramedExchange, response_type: Any) -> None:
        self._transport = transport
        self._call = call
        self._type = response_type

    def result(self) -> Any:
        try:
            answer = None
            for message in self._call.messages():
                answer = message
        finally:
            self._transport.remove_call(self._call)
        if answer is None:
            raise unreached(self._transport.target, "the call ended without a response")
        try:
            return self._type.FromString(answer)
        except Exception as error:
            from google.protobuf.message import DecodeError  # imported only after a failure

            if not isinstance(error, DecodeError):
                raise
            decode_error = error
        raise HearthError(
            f"the daemon's answer cannot be decoded: {decode_error}.",
            fix="install the same version on both sides.",
        )

    def cancel(self) -> None:
        self._call.cancel()


class _Upload(_Answer):
    def result(self) -> int:
        try:
            return int(super().result().received)
        except HearthError as error:
            if self._cancelled and error.broken:
                raise errors.TransferError(
                    "the upload was cancelled.", reason="CANCELLED", fix="start it again."
                ) from None
            raise

    _cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        super().cancel()


class _Stream(Generic[T]):
    """Responses of a Download or Execute call."""

    def __init__(self, transport: FramedTransport, call: FramedExchange, read: Callable[[bytes], T] | None) -> None:
        """`read` decodes a message; None: the messages stay serialized."""
        self._transport = transport
        self._call = call
        self._read = read

    def __iter__(self) -> Iterator[T]:
        messages: Iterator[Any] = self._call.messages()
        try:
            yield from messages if self._read is None else map(self._read, messages)
        finally:
            self._transport.remove_call(self._call)

    def cancel(self) -> None:
        self._call.cancel()

    def leave(self) -> None:
        self._call.cancel()  # the connection carries only this call
