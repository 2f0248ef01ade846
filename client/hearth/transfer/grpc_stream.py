"""Uploads and downloads over gRPC streams, separate from the commands, and resumed after a broken connection."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hearth.errors import HearthError, TransferError
from hearth.transfer import plan
from hearth.transport.backoff import Backoff, may_replace_stream
from hearth_proto import chunks
from hearth_proto.v1 import device_pb2

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.transport.base import Chunks
    from hearth.transport.base import Upload as Sending

_REPORT_BYTES = 2 << 20
"""Number of bytes of a download after which a receipt is reported to the attachment, as it is at the end."""


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


_S = TypeVar("_S", bound=_Cancellable)


def cancel_transfer(connection: Connection, number: int) -> None:
    """Notifies the daemon that a transfer is aborted, even if it has not begun. Does not block.

    Args:
        connection: Connection to the device.
        number: Number of the transfer.
    """
    request = _status_request(connection, number)
    request.give_up = True
    connection.transport.report_abort(request, connection.lease)


def _status_request(connection: Connection, number: int) -> device_pb2.TransferStatusRequest:
    return device_pb2.TransferStatusRequest(session_token=connection.token, device=connection.ordinal, transfer=number)


class _Stream(ABC, Generic[_S]):
    """Consecutive streams of one transfer, until it has ended or is cancelled."""

    def __init__(self, connection: Connection, number: int, memory: memoryview, progress: Progress | None) -> None:
        self._connection = connection
        self._number = number
        self._memory = memory
        self._progress = progress
        self._lock = threading.Lock()
        self._stream: _S | None = None
        self._broken: HearthError | None = None
        """Error that ended the last stream, if another stream is to continue."""
        self._over = threading.Event()

    def cancel(self) -> None:
        """Cancels the transfer: the waiting thread gets an error, and the daemon is notified. Does not block."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            stream = self._stream
        if stream is not None:
            stream.cancel()
        cancel_transfer(self._connection, self._number)

    @abstractmethod
    def _open(self, offset: int) -> _S:
        """Opens a stream for the bytes from `offset` on. Raises `HearthError`."""

    def _begin(self) -> None:
        try:
            self._reopen(0)
        except HearthError as error:
            if not error.broken:
                raise
            self._broken = error

    def _reopen(self, offset: int) -> None:
        stream = self._open(offset)
        with self._lock:
            self._stream, self._broken = stream, None
            cancelled = self._over.is_set()
        if cancelled:
            stream.cancel()

    def _wait(self, backoff: Backoff, error: HearthError) -> None:
        """Waits before another stream is opened. Raises `error` if there is no further attempt."""
        if self._over.is_set():
            raise TransferError("the transfer was cancelled.", reason="CANCELLED", fix="start it again.")
        may_retry = may_replace_stream(error) and not self._connection.transport.absent()
        pause = backoff.pause(error.retry_after or 0.0) if may_retry else None
        if pause is None:
            raise error
        self._over.wait(pause)
        self._broken = error

    @contextlib.contextmanager
    def _cancel_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        self._over.set()


class GrpcUpload(_Stream["Sending"]):
    """An upload of `data`, which must not change until `result` has returned."""

    def __init__(
        self, connection: Connection, number: int, data: memoryview, chunk: int, progress: Progress | None = None
    ) -> None:
        super().__init__(connection, number, data, progress)
        self._chunk = chunk
        self._reported = -1
        self._reporting = threading.Lock()
        self._begin()

    def result(self) -> int:
        """Waits until the daemon has all bytes, and returns their number. Raises `HearthError`."""
        with self._cancel_on_error():
            backoff, furthest = Backoff(self._connection.lease), 0
            while True:
                try:
                    if self._broken is not None:
                        in_daemon = self._received_by_daemon()
                        if in_daemon > furthest:
                            furthest, backoff = in_daemon, Backoff(self._connection.lease)
                        if in_daemon == len(self._memory):
                            received = in_daemon
                            break
                        self._reopen(in_daemon)
                    assert self._stream is not None
                    received = self._stream.result()
                    break
                except HearthError as error:
                    self._wait(backoff, error)
        if received == len(self._memory):
            self._report(received, received)  # the sending thread may report the end only later
        return received

    def _received_by_daemon(self) -> int:
        """Returns the number of bytes that the daemon has."""
        answer = self._connection.transport.transfer_status(_status_request(self._connection, self._number))
        return len(self._memory) if answer.complete else answer.received

    def _open(self, offset: int) -> Sending:
        head = device_pb2.UploadRequest(
            session_token=self._connection.token,
            device=self._connection.ordinal,
            transfer=self._number,
            offset=offset,
            resumable=True,
            size=len(self._memory),
        ).SerializeToString()
        report = self._report if self._progress is not None else None
        return self._connection.transport.upload(plan.upload_messages(head, self._memory, self._chunk, report, offset))

    def _report(self, done: int, total: int) -> None:
        if self._progress is None:
            return
        with self._reporting:
            if done > self._reported:  # bytes that are sent again are not reported
                self._reported = done
                self._progress(done, total)


class GrpcDownload(_Stream["Chunks"]):
    """A download into `memory`, cut short `timeout` seconds after its creation (None: never)."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        memory: memoryview,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(connection, number, memory, progress)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._begin()

    def result(self) -> int:
        """Receives the whole download, and returns the number of bytes. Raises `HearthError`."""
        memory, size, received = self._memory, len(self._memory), 0
        with self._cancel_on_error():
            backoff, furthest, reported = Backoff(self._connection.lease), 0, 0
            while True:
                try:
                    if self._broken is not None:
                        self._reopen(received)
                    assert self._stream is not None
                    for message in self._stream:
                        offset, data = chunks.download_response(message)
                        memory[offset : offset + len(data)] = data
                        received = offset + len(data)
                        if received - reported >= _REPORT_BYTES:
                            self._connection.report_received(self._number, received)
                            reported = received
                        if self._progress is not None:
                            self._progress(received, size)
                    break
                except HearthError as error:
                    if received == size and error.broken:
                        break
                    if received > furthest:
                        furthest, backoff = received, Backoff(self._connection.lease)
                    self._wait(backoff, error)
        self._connection.report_received(self._number, received)
        return received

    def _open(self, offset: int) -> Chunks:
        remaining = None if self._deadline is None else max(0.001, self._deadline - time.monotonic())
        request = device_pb2.DownloadRequest(
            session_token=self._connection.token,
            device=self._connection.ordinal,
            transfer=self._number,
            offset=offset,
            resumable=True,
        )
        return self._connection.transport.download(request, remaining)
