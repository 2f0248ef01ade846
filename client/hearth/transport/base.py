"""The interface that a session needs of a connection; gRPC implements it, and lanes on sockets do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hearth.transport.lane import Lane
    from hearth_proto.v1 import device_pb2


Early = Callable[[bytes], bool]


class Responses(Protocol):
    """The daemon's side of an Execute stream. Iterating raises `HearthError` where the stream ends with an error."""

    def __iter__(self) -> Iterator[device_pb2.ExecuteResponse]: ...
    def cancel(self) -> None:
        """Ends the stream from this side; its iteration stops."""

    def leave(self) -> None:
        """Ends the stream like `cancel`, where its connection is sound and stays in use."""


class Chunks(Protocol):
    """A download: serialized `DownloadResponse` messages. Iterating raises `HearthError` where it is cut short."""

    def __iter__(self) -> Iterator[bytes]: ...
    def cancel(self) -> None:
        """Gives the download up."""


class Upload(Protocol):
    """An upload under way."""

    def result(self) -> int:
        """Waits; bytes that arrived. Raises `HearthError`."""

    def cancel(self) -> None:
        """Gives the upload up."""


class Answer(Protocol):
    """The answer to a call, which is on its way."""

    def result(self) -> Any:
        """Waits for it. Raises `HearthError`."""

    def cancel(self) -> None:
        """Cancels the call: its answer is no longer wanted."""


class Transport(Protocol):
    """A way to a daemon."""

    target: str
    metadata: tuple[tuple[str, str], ...]
    """Metadata that identifies the caller in each call."""
    session_id: str
    """The session that it is for, as in the daemon's logs; empty before there is one."""
    lanes: bool
    """True if lanes that the daemon offers are taken."""
    stripes: int | None
    """Over how many connections of their own bulk data may go, beside gRPC's and to the same host; 0: none. None: as
    many as are of use (`hearth.transfer.plan`)."""

    def call(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """A unary call of NodeService. Raises `HearthError`."""

    def ask(self, method: str, request: Any, response_type: Any, timeout: float) -> Answer:
        """Starts a call without waiting, unlike `call`; not repeated where the connection breaks. Raises
        `HearthError`."""

    def call_device(self, method: str, request: Any, response_type: Any, timeout: float) -> Any:
        """A unary call of DeviceService. Raises `HearthError`."""

    def open_bulk(self, request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        """Asks for connections for bulk data. Raises `HearthError`, `UnsupportedError` where there are none."""

    def execute(self, requests: Iterator[bytes], early: Early) -> Responses:
        """Opens an Execute stream that sends `requests`. A response that `early` takes, called with it as it came by
        whatever thread has it first, is not among those that are iterated."""

    def lane(self, offer: device_pb2.LaneOffer) -> Lane | None:
        """Opens a lane beside an Execute stream; None where that does not work. Waits for it, but not long."""

    def upload(self, requests: Iterator[bytes]) -> Upload:
        """Sends serialized `UploadRequest` messages."""

    def download(self, request: device_pb2.DownloadRequest, timeout: float | None = None) -> Chunks:
        """Opens a Download stream, cut short after `timeout` seconds."""

    def transfer_status(self, request: device_pb2.TransferStatusRequest) -> device_pb2.TransferStatusResponse:
        """Asks how much of an upload the daemon has. Raises `HearthError`."""

    def give_up(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Reports a transfer's abort to the daemon, and repeats it for up to `seconds` until the daemon answers. Does
        not wait, and never fails."""

    def absent(self) -> bool:
        """True if the daemon has certainly ended."""

    def close(self) -> None:
        """Ends everything that is open."""
