"""The connection over gRPC: unary calls, Execute streams, transfer streams.

Bulk data has a channel of its own, so that it does not stand before commands in one TCP connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from hearth import errors
from hearth_proto import reasons
from hearth_proto.v1 import device_pb2, status_pb2

if TYPE_CHECKING:
    from hearth.errors import HearthError

_DEVICE = "/hearth.v1.DeviceService/"
_NODE = "/hearth.v1.NodeService/"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", 32 << 20),
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # one TCP connection a channel
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
T = TypeVar("T")
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


def _identity(message: bytes) -> bytes:
    return message


class GrpcTransport:
    """Channels to one daemon; opened on first use, safe from any thread."""

    def __init__(self, target: str, *, loopback: bool) -> None:
        self.target = target
        self._options = _OPTIONS + (_NO_PROXY if loopback else ())
        self._lock = threading.Lock()
        self._closed = False
        self._bulk: grpc.Channel | None = None
        self._channel = self._open()

    def call(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """A unary call of NodeService, waiting up to `timeout` seconds for the daemon to be there."""
        stub: Callable[..., Any] = self._channel.unary_unary(
            _NODE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            return stub(request, timeout=timeout, wait_for_ready=False)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        except ValueError as error:
            raise _closed(self.target) from error

    def execute(self, requests: Iterator[bytes]) -> _Stream[device_pb2.ExecuteResponse]:
        """Opens an Execute stream."""
        stub: Callable[..., Any] = self._channel.stream_stream(
            _DEVICE + "Execute",
            request_serializer=_identity,
            response_deserializer=device_pb2.ExecuteResponse.FromString,
        )
        return _Stream(self._start(stub, requests), self.target)

    def upload(self, requests: Iterator[bytes]) -> _Upload:
        """Sends serialized `UploadRequest` messages."""
        stub: Any = self._bulk_channel().stream_unary(
            _DEVICE + "Upload",
            request_serializer=_identity,
            response_deserializer=device_pb2.UploadResponse.FromString,
        )
        return _Upload(self._start(stub.future, requests), self.target)

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> _Stream[bytes]:
        """Opens a Download stream, cut short after `timeout` seconds; its messages stay serialized."""
        stub: Callable[..., Any] = self._bulk_channel().unary_stream(
            _DEVICE + "Download",
            request_serializer=device_pb2.DownloadRequest.SerializeToString,
            response_deserializer=_identity,
        )
        return _Stream(self._start(stub, request, timeout), self.target)

    def close(self) -> None:
        """Closes the channels; streams that are open end."""
        with self._lock:
            self._closed = True
            bulk = self._bulk
        self._channel.close()
        if bulk is not None:
            bulk.close()

    def _open(self) -> grpc.Channel:
        return grpc.insecure_channel(self.target, options=self._options)

    def _bulk_channel(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise _closed(self.target)
            if self._bulk is None:
                self._bulk = self._open()
            return self._bulk

    def _start(self, stub: Callable[..., Any], request: Any, timeout: float | None = None) -> Any:
        try:
            return stub(request, timeout=timeout)
        except ValueError as error:  # gRPC's answer to a closed channel
            raise _closed(self.target) from error


class _Stream(Generic[T]):
    """Responses of a call, with gRPC's errors turned into ours."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target) from None

    def cancel(self) -> None:
        self._call.cancel()


class _Upload:
    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target

    def result(self) -> int:
        try:
            return int(self._call.result().received)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target) from None
        except grpc.FutureCancelledError:
            raise errors.TransferError("the upload was cancelled.", reason="CANCELLED") from None

    def cancel(self) -> None:
        self._call.cancel()


def from_rpc_error(error: Any, target: str) -> HearthError:
    """The error behind a failed call: the daemon's own status where it sent one, else gRPC's code."""
    code: grpc.StatusCode = error.code()
    for key, value in error.trailing_metadata() or ():
        if key == reasons.STATUS_DETAILS_KEY:
            try:
                return errors.from_status(status_pb2.Status.FromString(value))
            except Exception:  # not ours to read: fall back on the code
                break
    text = error.details() or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.ConnectError(
            f"the daemon at {target} does not answer ({text}).",
            reason="DEVICE_UNAVAILABLE",
            fix="start one with `hearthd serve`, or check the address.",
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.TimeoutError(f"the daemon at {target} did not answer in time.", reason="DEADLINE_EXCEEDED")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.UnsupportedError(
            f"the server at {target} does not speak hearth.v1 ({text}).",
            reason="UNSUPPORTED",
            fix="check the address: gRPC is on port 7421 by default.",
        )
    return errors.from_status(status_pb2.Status(code=int(code.value[0]), message=f"{text} ({code.name})"))


def _closed(target: str) -> HearthError:
    return errors.ClosedError(f"the connection to {target} is closed.", reason="CANCELLED", fix="connect again.")
