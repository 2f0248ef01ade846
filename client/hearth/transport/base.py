"""The transport of a session: calls and streams to one daemon. Without gRPC.

Implemented over gRPC (`hearth.transport.grpc.GrpcTransport`) and over Unix sockets
(`hearth.transport.framed.FramedTransport`).
"""

from __future__ import annotations

import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hearth import telemetry
from hearth.errors import ClosedError, HearthError, TimeoutError, broken
from hearth.transport.cancellation import AbortReporter
from hearth.transport.lane import Lane, open_lane
from hearth_proto.later import device_pb2

if TYPE_CHECKING:
    from typing import Protocol

    from hearth_proto.calls import Metadata

    class Responses(Protocol):
        """Responses of an Execute stream. Iteration raises `HearthError` if the stream ends with an error."""

        def __iter__(self) -> Iterator[device_pb2.ExecuteResponse]: ...
        def cancel(self) -> None:
            """Ends the stream from the client's side; iteration stops."""

        def leave(self) -> None:
            """Ends the stream like `cancel`, but keeps its connection, which is intact and stays in use."""

    class Chunks(Protocol):
        """A download: serialized `DownloadResponse` messages.

        Iteration raises `HearthError` if the download is cut short.
        """

        def __iter__(self) -> Iterator[bytes]: ...
        def cancel(self) -> None:
            """Cancels the download."""

    class Upload(Protocol):
        """An upload in flight."""

        def result(self) -> int:
            """Waits for the end of the upload, and returns the number of bytes that arrived. Raises `HearthError`."""

        def cancel(self) -> None:
            """Cancels the upload."""

    class Answer(Protocol):
        """Pending answer to a call."""

        def result(self) -> Any:
            """Waits for the answer, and returns it. Raises `HearthError`."""

        def cancel(self) -> None:
            """Cancels the call, whose answer is no longer needed."""


Early = Callable[[bytes], bool]

NODE = "/hearth.v1.NodeService/"
DEVICE = "/hearth.v1.DeviceService/"
TRANSFER_STATUS = "TransferStatus"
UNIX = "unix:"
_REPEATABLE = frozenset({"Describe", "RenewSession", "CloseSession", "ListSessions", "ListPublished"})
"""Methods whose call may be repeated if the connection broke before the answer arrived."""
_TRIES = 3
_STATUS_S = 3.0
"""Timeout, in seconds, of the daemon's answer about a transfer."""
_OPEN_BULK_S = 5.0
_ABSENT = (errno.ECONNREFUSED, errno.ENOENT)


class Transport(ABC):
    """Abstract transport to one daemon. Thread-safe."""

    def __init__(self, target: str, *, lanes: bool, stripes: int | None) -> None:
        self.target = target
        self.metadata: Metadata = ()
        """Metadata that identifies the caller in each call."""
        self.session_id = ""
        """Identifier of the session that uses this transport, as in the daemon's logs; empty until the session is
        open."""
        self.lanes = lanes
        """True if the client accepts lanes that the daemon offers."""
        self.stripes = stripes
        """Maximum number of separate TCP connections for bulk data, to the same host; 0: none; None: as many as are
        useful (`hearth.transfer.plan`)."""
        self._abort_reporter = AbortReporter(self.transfer_status)

    # ---- calls with one answer ----

    def call(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of NodeService, and waits for the answer.

        A call that may run twice is repeated if the connection breaks.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds for each attempt.

        Raises:
            HearthError: The call failed, or was not answered in time.
        """
        return self._unary(NODE, method, request, response_type, timeout)

    def call_device(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of DeviceService, like `call`.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds for each attempt.
        """
        return self._unary(DEVICE, method, request, response_type, timeout)

    @abstractmethod
    def start_call(self, method: str, request: Any, response_type: Any, timeout: float) -> Answer:
        """Starts a unary call of NodeService without waiting.

        The call is not repeated if the connection breaks.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Seconds after which the call fails.

        Raises:
            HearthError: The call could not be started.
        """

    def open_bulk(self, request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        """Requests connections for bulk data, and waits for the answer.

        Args:
            request: Device, its generation, and the number of stripes; 0 stripes: a connection for segments.

        Raises:
            HearthError: The call failed; `UnsupportedError` if the daemon has no such connections.
        """
        answer: device_pb2.OpenBulkResponse = self.call_device(
            "OpenBulk", request, device_pb2.OpenBulkResponse, _OPEN_BULK_S
        )
        return answer

    def transfer_status(self, request: device_pb2.TransferStatusRequest) -> device_pb2.TransferStatusResponse:
        """Asks how many bytes of an upload the daemon has, and waits for the answer.

        Args:
            request: Names the transfer.

        Raises:
            HearthError: The call failed; a timeout is treated as a broken connection.
        """
        try:
            answer: device_pb2.TransferStatusResponse = self.call_device(
                TRANSFER_STATUS, request, device_pb2.TransferStatusResponse, _STATUS_S
            )
        except TimeoutError as error:
            raise unreached(self.target, error.message) from None
        return answer

    def report_abort(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Reports the abort of a transfer to the daemon, and repeats that until the daemon answers.

        Does not block, and never fails.

        Args:
            request: Names the transfer.
            seconds: Seconds after which the report is not repeated any more.
        """
        self._abort_reporter.add(request, seconds)

    def _unary(self, service: str, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        attempts_left = _TRIES if method in _REPEATABLE else 1
        while True:
            attempts_left -= 1
            try:
                return self._call_once(service + method, request, response_type, timeout)
            except HearthError as error:
                if not error.broken or not attempts_left:
                    raise

    @abstractmethod
    def _call_once(self, path: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes one attempt of a unary call, and waits for the answer. Raises `HearthError`."""

    def _call_metadata(self) -> Metadata:
        """Returns the metadata of a call: the caller's identity and the current span."""
        return self.metadata + telemetry.context()

    # ---- streams ----

    @abstractmethod
    def execute(self, requests: Iterator[bytes], early: Early) -> Responses:
        """Opens an Execute stream that sends `requests`.

        Args:
            requests: Serialized requests. Another thread takes them until the stream ends; the calling thread may take
                the first.
            early: Receives a serialized response, in the thread in which it arrives first, if the transport supports
                that. If it returns True, the response is not among those iterated.
        """

    def lane(self, offer: device_pb2.LaneOffer) -> Lane | None:
        """Opens a lane in addition to an Execute stream; returns None if that fails. Blocks for a short time.

        Args:
            offer: Path of the daemon's socket, and the ticket.
        """
        return open_lane(offer.path, offer.ticket)

    @abstractmethod
    def upload(self, requests: Iterator[bytes]) -> Upload:
        """Opens an Upload stream. Another thread sends its messages.

        Args:
            requests: Serialized `UploadRequest` messages; the calling thread may take the first.
        """

    @abstractmethod
    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> Chunks:
        """Opens a Download stream, whose messages stay serialized.

        Args:
            request: Names the transfer and the offset of the first byte.
            timeout: Seconds after which the stream is cut short; None: never.
        """

    # ---- lifecycle ----

    def absent(self) -> bool:
        """True if no process listens at the daemon's address, so that the daemon and its sessions have ended.

        Known only for Unix sockets, which are local to this host.
        """
        path = self.target.removeprefix(UNIX)
        if path == self.target:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            return probe.connect_ex(path) in _ABSENT

    @abstractmethod
    def close(self) -> None:
        """Closes all open calls and connections, and refuses further ones."""


# ---- errors ----


def unreached(target: str, reason: str) -> HearthError:
    """Returns the error for a connection that broke or could not be made.

    Args:
        target: Address of the daemon.
        reason: Reason, for the message.
    """
    return broken(
        f"the daemon at {target} does not answer ({reason}).",
        fix="start a daemon with `hearthd serve`, or check the address.",
    )


def unanswered(target: str) -> TimeoutError:
    """Returns the error for a call that was not answered in time."""
    return TimeoutError(
        f"the daemon at {target} did not answer in time.",
        fix="check the daemon with `hearth status`, or use a longer timeout.",
    )


def closed(target: str) -> ClosedError:
    """Returns the error that every use of a closed connection raises."""
    return ClosedError(f"the connection to {target} is closed.", fix="connect again.")
