"""The gRPC transport: unary calls, Execute streams, transfer streams.

Bulk data has a separate channel, so that it does not delay commands within one TCP connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from hearth import errors
from hearth.transport.base import DEVICE, NODE, TRANSFER_STATUS, UNIX, Transport, closed, unanswered, unreached
from hearth.transport.grpc_channel import ReopenedChannel
from hearth_proto.v1 import device_pb2, status_pb2

if TYPE_CHECKING:
    from hearth.errors import HearthError
    from hearth.transport.base import Early

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", 32 << 20),
    ("grpc.max_receive_message_length", 32 << 20),
    # A dead connection that was not closed is detected and replaced well within a session's lease.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # timeout of gRPC's other pings: no keepalive is sent while one is pending
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # one TCP connection per channel
    ("grpc.min_reconnect_backoff_ms", 5_000),  # also the timeout of an attempt to connect
)
_BREAKS = ("Stream removed", "RST_STREAM", "GOAWAY")
"""Texts of gRPC for a connection or stream that was cut. The status codes of these errors have other meanings too."""
_RESULT = b"\x1a"
"""First byte of an ExecuteResponse that carries a result: field 3, length-delimited."""
_ACCEPTED_EARLY = object()
T = TypeVar("T")
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


def _identity(message: bytes) -> bytes:
    return message


def _read_early(early: Early, message: bytes) -> device_pb2.ExecuteResponse | object:
    """Deserializes a response in gRPC's thread, before that thread wakes the iterating thread.

    A result that `early` accepts here reaches its waiting thread without a switch to the iterating thread.
    """
    if message[:1] == _RESULT and early(message):
        return _ACCEPTED_EARLY
    return device_pb2.ExecuteResponse.FromString(message)


class GrpcTransport(Transport):
    """Channels to one daemon, opened at their first use. Thread-safe."""

    def __init__(self, target: str, *, loopback: bool, credentials: grpc.ChannelCredentials | None = None) -> None:
        same_host = target.startswith(UNIX)
        super().__init__(target, lanes=same_host, stripes=0 if same_host else None)
        self._credentials = credentials
        self._options = _OPTIONS + (_NO_PROXY if loopback else ())
        self.call_channel = ReopenedChannel(self._open, target)
        """gRPC channel of unary calls and Execute streams."""
        self._bulk_channel = ReopenedChannel(self._open, target)

    def start_call(self, method: str, request: Any, response_type: Any, timeout: float) -> _Answer:
        """Starts a unary call of NodeService without waiting. The call is not repeated if the connection breaks.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Seconds after which the call fails.
        """
        channel = self.call_channel.channel()
        stub: Any = channel.unary_unary(
            NODE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        return _Answer(
            self._start(stub.future, request, timeout, self._call_metadata()),
            self.target,
            partial(self.call_channel.mark_stale, channel),
        )

    def _call_once(self, path: str, request: Any, response_type: Any, timeout: float) -> Any:
        of_transfer = path == DEVICE + TRANSFER_STATUS
        reopened_channel = self._bulk_channel if of_transfer else self.call_channel
        channel = reopened_channel.channel()
        stub: Callable[..., Any] = channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            return stub(request, timeout=timeout, metadata=self._call_metadata())
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error, self.target)
        except ValueError:  # gRPC's answer to a closed channel
            error = self._closed_or_broken()
        if error.broken or (of_transfer and isinstance(error, errors.TimeoutError)):
            reopened_channel.mark_stale(channel)
        raise error

    def execute(self, requests: Iterator[bytes], early: Early) -> _Stream[device_pb2.ExecuteResponse]:
        """Opens an Execute stream.

        Args:
            requests: Serialized requests, taken by a thread of gRPC.
            early: Receives each serialized result in gRPC's receiving thread. If it returns True, the result is not
                among those iterated.
        """
        channel = self.call_channel.channel()
        stub: Callable[..., Any] = channel.stream_stream(
            DEVICE + "Execute",
            request_serializer=_identity,
            response_deserializer=partial(_read_early, early),
        )
        return _Stream(
            self._start(stub, requests, metadata=self.metadata),
            self.target,
            partial(self.call_channel.mark_stale, channel),
        )

    def upload(self, requests: Iterator[bytes]) -> _Upload:
        """Opens an Upload stream on the channel for bulk data.

        Args:
            requests: Serialized `UploadRequest` messages, taken by a thread of gRPC.
        """
        channel = self._bulk_channel.channel()
        stub: Any = channel.stream_unary(
            DEVICE + "Upload",
            request_serializer=_identity,
            response_deserializer=device_pb2.UploadResponse.FromString,
        )
        return _Upload(
            self._start(stub.future, requests, metadata=self._call_metadata()),
            self.target,
            partial(self._bulk_channel.mark_stale, channel),
        )

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> _Stream[bytes]:
        """Opens a Download stream on the channel for bulk data. Its messages stay serialized.

        Args:
            request: Names the transfer and the offset of the first byte.
            timeout: Seconds after which the stream is cut short; None: never.
        """
        channel = self._bulk_channel.channel()
        stub: Callable[..., Any] = channel.unary_stream(
            DEVICE + "Download",
            request_serializer=device_pb2.DownloadRequest.SerializeToString,
            response_deserializer=_identity,
        )
        return _Stream(
            self._start(stub, request, timeout, self._call_metadata()),
            self.target,
            partial(self._bulk_channel.mark_stale, channel),
        )

    def close(self) -> None:
        """Closes the channels, which ends open streams."""
        self.call_channel.close()
        self._bulk_channel.close()

    def _open(self) -> grpc.Channel:
        if self._credentials is not None:
            return grpc.secure_channel(self.target, self._credentials, options=self._options)
        return grpc.insecure_channel(self.target, options=self._options)

    def _start(self, stub: Callable[..., Any], request: Any, timeout: float | None = None, metadata: Any = None) -> Any:
        try:
            return stub(request, timeout=timeout, metadata=metadata)
        except ValueError:  # gRPC's answer to a closed channel
            raise self._closed_or_broken() from None

    def _closed_or_broken(self) -> HearthError:
        return closed(self.target) if self.call_channel.closed else unreached(self.target, "the channel was closed")


class _Call:
    """A call in flight. `mark_stale` reports that its connection broke."""

    def __init__(self, call: Any, target: str, mark_stale: Callable[[], None]) -> None:
        self._call = call
        self._target = target
        self._mark_stale = mark_stale

    def cancel(self) -> None:
        self._call.cancel()


class _Stream(_Call, Generic[T]):
    """Responses of a call. Iteration converts gRPC's errors to `HearthError`."""

    _is_left = False

    def __iter__(self) -> Iterator[T]:
        try:
            for message in self._call:
                if message is not _ACCEPTED_EARLY:
                    yield message
            return
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error, self._target)
        # Raised outside of the handler: an error with gRPC's exception as its context could not be sent to another
        # process.
        if error.broken and not self._is_left:
            self._mark_stale()
        raise error

    def leave(self) -> None:
        self._is_left = True  # the channel stays, because other calls use it
        self._call.cancel()


class _Answer(_Call):
    """Pending response of a unary call."""

    def result(self) -> Any:
        try:
            return self._call.result()
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error, self._target)
            if error.broken:
                self._mark_stale()
        except grpc.FutureCancelledError:
            error = self._cancelled()
        raise error

    def _cancelled(self) -> HearthError:
        # cancelled because its channel was closed
        return unreached(self._target, "the call was cancelled")


class _Upload(_Answer):
    def result(self) -> int:
        return int(super().result().received)

    def _cancelled(self) -> HearthError:
        return errors.TransferError("the upload was cancelled.", reason="CANCELLED", fix="start it again.")


def from_rpc_error(error: Any, target: str) -> HearthError:
    """Returns the error for a failed call: from the daemon's own status if it sent one, otherwise from gRPC's code.

    Args:
        error: The `grpc.RpcError` of the call.
        target: Address of the daemon, for messages.
    """
    from hearth_proto import reasons  # imported only after a failure

    code: grpc.StatusCode = error.code()
    for key, value in error.trailing_metadata() or ():
        if key == reasons.STATUS_DETAILS_KEY:
            try:
                return errors.from_status(status_pb2.Status.FromString(value))
            except Exception:  # unreadable details: use gRPC's code
                break
    text = error.details() or code.name
    if (
        code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        or (code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and any(phrase in text for phrase in _BREAKS))
    ):  # fmt: skip
        return unreached(target, text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return unanswered(target)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.UnsupportedError(
            f"the server at {target} does not speak hearth.v1 ({text}).",
            fix="check the address: the default gRPC port is 7421.",
        )
    return errors.from_status(status_pb2.Status(code=int(code.value[0]), message=f"{text} ({code.name})"))
