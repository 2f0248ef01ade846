"""The transport interface that a session uses.

Implemented over gRPC (`GrpcTransport`) and over Unix sockets (`FramedTransport`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hearth.transport.lane import Lane
    from hearth_proto.v1 import device_pb2


Early = Callable[[bytes], bool]


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


class Transport(Protocol):
    """Transport to one daemon."""

    target: str
    metadata: tuple[tuple[str, str], ...]
    """Metadata that identifies the caller in each call."""
    session_id: str
    """Identifier of the session that uses this transport, as in the daemon's logs; empty until the session is open."""
    lanes: bool
    """True if the client accepts lanes that the daemon offers."""
    stripes: int | None
    """Maximum number of separate TCP connections for bulk data, to the same host; 0: none; None: as many as are useful
    (`hearth.transfer.plan`)."""

    def call(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of NodeService, and waits for the answer.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds.

        Raises:
            HearthError: The call failed, or was not answered in time.
        """

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

    def call_device(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """Makes a unary call of DeviceService, like `call`.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds.
        """

    def open_bulk(self, request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        """Requests connections for bulk data, and waits for the answer.

        Args:
            request: Device, its generation, and the number of stripes; 0 stripes: a connection for segments.

        Raises:
            HearthError: The call failed; `UnsupportedError` if the daemon has no such connections.
        """

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

    def upload(self, requests: Iterator[bytes]) -> Upload:
        """Opens an Upload stream. Another thread sends its messages.

        Args:
            requests: Serialized `UploadRequest` messages.
        """

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> Chunks:
        """Opens a Download stream.

        Args:
            request: Names the transfer and the offset of the first byte.
            timeout: Seconds after which the stream is cut short; None: never.
        """

    def transfer_status(self, request: device_pb2.TransferStatusRequest) -> device_pb2.TransferStatusResponse:
        """Asks how many bytes of an upload the daemon has, and waits for the answer. Raises `HearthError`.

        Args:
            request: Names the transfer.
        """

    def report_abort(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Reports the abort of a transfer to the daemon, and repeats that until the daemon answers.

        Does not block, and never fails.

        Args:
            request: Names the transfer.
            seconds: Seconds after which the report is not repeated any more.
        """

    def absent(self) -> bool:
        """True if the daemon has certainly ended."""

    def close(self) -> None:
        """Closes all open calls and connections."""
