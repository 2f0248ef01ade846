"""Frame transport over a Unix socket: replaces `GrpcTransport`, without gRPC.

Importing gRPC takes longer than everything else that a first result needs. Each call has a separate connection, so that
calls do not wait for each other; closing a connection cancels its call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hearth import errors, telemetry
from hearth.codec import decode
from hearth.errors import HearthError
from hearth.transport import errors as transport_errors
from hearth.transport.cancellation import AbortReporter
from hearth.transport.framed_call import FramedExchange, send_in_thread
from hearth.transport.lane import Lane, open_lane
from hearth_proto.calls import KEEPALIVE, Metadata, socket_path
from hearth_proto.later import device_pb2

if TYPE_CHECKING:
    from hearth.transport.base import Early

_DEVICE = "/hearth.v1.DeviceService/"
_NODE = "/hearth.v1.NodeService/"
_OPEN_BULK_S = 5.0


class FramedTransport:
    """Framed calls to one daemon. Thread-safe."""

    def __init__(self, target: str) -> None:
        """Creates a transport; `target` is ``unix:`` and the path of gRPC's socket."""
        self.target = target
        self.metadata: Metadata = ()
        """Metadata that identifies the caller in each call."""
        self.session_id = ""
        self.lanes = True
        self.stripes: int | None = 0
        """Number of TCP connections for bulk data: none on the same host."""
        self.keepalive = KEEPALIVE
        """Keepalive times with which calls that begin from now on detect that the daemon has ended."""
        self._path = socket_path(target.removeprefix(transport_errors.UNIX))
        self._lock = threading.Lock()
        self._calls: set[FramedExchange] = set()
        self._closed = False
        self._abort_reporter = AbortReporter(self.transfer_status)

    # ---- calls with one answer ----

    def call(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of NodeService, and waits for the answer. Raises `HearthError`.

        Args:
            method: Name of the method; the methods of `errors.SAFE` are repeated if the connection breaks.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds for each attempt.
        """
        return self._unary(_NODE, method, request, response_type, timeout)

    def call_device(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of DeviceService, and waits for the answer. Raises `HearthError`.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds.
        """
        return self._unary(_DEVICE, method, request, response_type, timeout)

    def start_call(self, method: str, request: Any, response_type: Any, timeout: float) -> _Answer:
        """Starts a unary call of NodeService without waiting. The call is not repeated if the connection breaks.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Seconds after which the call fails.
        """
        call = self._start(_NODE + method, request.SerializeToString(), timeout, self.metadata + telemetry.context())
        return _Answer(self, call, response_type)

    def _unary(self, service: str, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        attempts_left = transport_errors.TRIES if method in transport_errors.SAFE else 1
        while True:
            attempts_left -= 1
            try:
                metadata = self.metadata + telemetry.context()
                call = self._start(service + method, request.SerializeToString(), timeout, metadata)
                return _Answer(self, call, response_type).result()
            except HearthError as error:
                if not error.broken or not attempts_left:
                    raise

    def transfer_status(self, request: device_pb2.TransferStatusRequest) -> device_pb2.TransferStatusResponse:
        """Asks how many bytes of an upload the daemon has.

        Args:
            request: Names the transfer.

        Raises:
            HearthError: The call failed; a timeout is treated as a broken connection.
        """
        try:
            answer: device_pb2.TransferStatusResponse = self._unary(
                _DEVICE, "TransferStatus", request, device_pb2.TransferStatusResponse, transport_errors.STATUS_S
            )
        except errors.TimeoutError as error:
            raise transport_errors.unreached(self.target, error.message) from None
        return answer

    def report_abort(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Reports the abort of a transfer to the daemon, repeatedly. Does not block, and never fails.

        Args:
            request: Names the transfer.
            seconds: Seconds after which the report is not repeated any more.
        """
        self._abort_reporter.add(request, seconds)

    # ---- streams ----

    def execute(self, requests: Iterator[bytes], early: Early) -> _Responses:
        """Opens an Execute stream, and sends its requests in a separate thread.

        Args:
            requests: Serialized requests; the first one is taken by the calling thread.
            early: Not called, because the iterating thread receives each response first.
        """
        call = self._start(_DEVICE + "Execute", next(requests), None, self.metadata, more=True)
        send_in_thread(call, requests, "hearth-send")
        return _Responses(self, call)

    def lane(self, offer: device_pb2.LaneOffer) -> Lane | None:
        """Opens a lane in addition to an Execute stream; returns None if that fails.

        Args:
            offer: Path of the daemon's socket, and the ticket.
        """
        return open_lane(offer.path, offer.ticket)

    def open_bulk(self, request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        """Requests connections for bulk data. Raises `HearthError`; `UnsupportedError` if the daemon has none.

        Args:
            request: Device, its generation, and the number of stripes.
        """
        answer: device_pb2.OpenBulkResponse = self.call_device(
            "OpenBulk", request, device_pb2.OpenBulkResponse, _OPEN_BULK_S
        )
        return answer

    def upload(self, requests: Iterator[bytes]) -> _Upload:
        """Opens an Upload stream, and sends its messages in a separate thread.

        Args:
            requests: Serialized `UploadRequest` messages; the first one is taken by the calling thread.
        """
        call = self._start(_DEVICE + "Upload", next(requests), None, self.metadata + telemetry.context(), more=True)
        send_in_thread(call, requests, "hearth-upload")
        return _Upload(self, call, device_pb2.UploadResponse)

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> _Chunks:
        """Opens a Download stream, whose messages stay serialized.

        Args:
            request: Names the transfer and the offset of the first byte.
            timeout: Seconds after which the stream is cut short; None: never.
        """
        call = self._start(
            _DEVICE + "Download", request.SerializeToString(), timeout, self.metadata + telemetry.context()
        )
        return _Chunks(self, call)

    # ---- lifecycle ----

    def absent(self) -> bool:
        """True if no process listens at the daemon's address."""
        return transport_errors.absent(self.target)

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
        self, method: str, message: bytes, timeout: float | None, metadata: Metadata = (), *, more: bool = False
    ) -> FramedExchange:
        if self._closed:
            raise transport_errors.closed(self.target)
        try:
            call = FramedExchange(self.target, self._path, timeout, self.keepalive)
        except (OSError, ValueError) as error:
            raise transport_errors.unreached(self.target, getattr(error, "strerror", None) or str(error)) from None
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
            raise transport_errors.unreached(self._transport.target, "the call ended without a response")
        try:
            return self._type.FromString(answer)
        except Exception as error:
            from google.protobuf.message import DecodeError  # imported only after a failure

            if not isinstance(error, DecodeError):
                raise
            decode_error = error
        raise HearthError(
            f"the daemon's answer cannot be decoded: {decode_error}.",
            reason="INTERNAL",
            fix="install the same version on both sides.",
        )

    def cancel(self) -> None:
        self._call.cancel()


class _Upload(_Answer):
    def result(self) -> int:
        try:
            return int(super().result().received)
        except HearthError as error:
            if self._call.cancelled and error.broken and self._cancelled:
                raise errors.TransferError(
                    "the upload was cancelled.", reason="CANCELLED", fix="start it again."
                ) from None
            raise

    _cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        super().cancel()


class _Chunks:
    """Serialized responses of a Download or Execute call."""

    def __init__(self, transport: FramedTransport, call: FramedExchange) -> None:
        self._transport = transport
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call.messages()
        finally:
            self._transport.remove_call(self._call)

    def cancel(self) -> None:
        self._call.cancel()


class _Responses:
    """Responses of an Execute stream, decoded."""

    def __init__(self, transport: FramedTransport, call: FramedExchange) -> None:
        self._call = call
        self._chunks = _Chunks(transport, call)

    def __iter__(self) -> Iterator[device_pb2.ExecuteResponse]:
        for message in self._chunks:
            yield decode.response(message)

    def cancel(self) -> None:
        self._call.cancel()

    def leave(self) -> None:
        self._call.cancel()  # the connection carries only this call
