"""Bulk data of a channel's transfers, paced by credits: the sender sends no more chunks than the receiver has granted.

A transfer is carried by an RPC stream. A resumable transfer outlives its stream by up to `resume_s` seconds, within
which the next stream can continue it. The chunks of a resumable download are kept until the client acknowledges them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from hearth_proto.chunks import download_response
from hearth_proto.frames import UPLOAD_CREDITS, Flag, Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import status_pb2
from hearthd.front.sessions.link_interface import Link

DOWNLOAD_CREDITS = 8
"""Number of chunks that the device may send before the client has taken any."""
MAX_KEPT_BYTES = 16 << 20
"""Bytes of a resumable download that are kept in case its stream breaks. Above this limit the device waits for the
client's acknowledgement."""
_REMEMBERED = 1024
"""Number of remembered transfers that were aborted before their stream arrived; such a stream is ended immediately. As
many complete resumable uploads are remembered, because their answer may have been lost."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class TransferView:
    """State of a transfer, for tests and diagnostics."""

    parked: bool
    """True while the transfer waits for another stream."""
    handed_out: bool = False
    """True if a chunk of the download has been passed to a stream."""
    kept_from: int | None = None
    """Offset of the first byte of a resumable download that is kept because it may not have reached the client. None:
    no byte is kept."""


class Transfer:
    """The common part of uploads and downloads: one waiting coroutine, one stream at a time, one end."""

    def __init__(self, table: TransferTable, transfer: int, resume_s: float = 0.0) -> None:
        self._table = table
        self._transfer = transfer
        self._send = partial(table.link.send, channel=table.number, id=transfer)
        self._resume_s = resume_s
        self._change = asyncio.Event()
        """Set for a moment after each change for which a stream may wait."""
        self._refusal: Refusal | None = None
        self._aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done = False
        self._task: asyncio.Task[None] | None = None
        self._stream = 0
        self._parked: asyncio.TimerHandle | None = None

    @property
    def resumable(self) -> bool:
        """True if the transfer outlives its stream."""
        return self._resume_s > 0

    @property
    def parked(self) -> bool:
        """True while the transfer waits for another stream."""
        return self._parked is not None

    def inspect(self) -> TransferView:
        """Returns the state of the transfer."""
        return TransferView(self.parked)

    def _wake(self) -> None:
        self._change.set()
        self._change.clear()

    def on_abort(self, refusal: Refusal) -> None:
        """Notes that the device process aborts the transfer."""
        self._refusal = self._refusal or refusal
        if not self._aborted.done():
            self._aborted.set_result(None)
        self._wake()

    def assign_stream(self) -> int:
        """Assigns the transfer to a new stream and returns that stream's number.

        The earlier stream can no longer pass anything on.
        """
        self._unpark()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._stream += 1
        return self._stream

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which exchanges data with the client, until it is done or cannot continue.

        It cannot continue if the device aborts the transfer, or another stream takes the transfer over. Raises the
        cause if the work was not completed.
        """
        self._task = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._aborted}, return_when=asyncio.FIRST_COMPLETED)
            if self._task is not task:
                raise Refusal(
                    Reason.HANDLE_IN_USE,
                    f"Transfer {self._transfer} is in progress on another stream.",
                    fix="Use one stream at a time for a transfer.",
                    details={"transfer": self._transfer},
                )
            if task.done():
                task.result()
            elif self._refusal is not None:
                raise self._refusal
        finally:
            if self._task is task:
                self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def stream_ended(self, stream: int, refusal: Refusal) -> None:
        """Notes that the stream with this number has ended.

        The transfer then waits for another stream, or ends with `refusal`.
        """
        if stream != self._stream:
            return
        if self.resumable and self._refusal is None and not self._complete:
            self._parked = asyncio.get_running_loop().call_later(self._resume_s, self.close, refusal)
        else:
            self.close(refusal)

    def forbid_resume(self, stream: int) -> None:
        """Makes the transfer not resumable, because the stream with this number violated the protocol."""
        if stream == self._stream:
            self._resume_s = 0.0

    @property
    def _complete(self) -> bool:
        """True if the transfer needs no further stream."""
        return self._done

    def close(self, refusal: Refusal) -> None:
        """Ends the transfer. If it is not complete, sends `refusal` to the device process."""
        self._unpark()
        self._table.forget(self._transfer)
        if not self._done and self._refusal is None:
            self._send(Kind.ABORT, refusal.to_status().SerializeToString())
        self._done = True

    def _unpark(self) -> None:
        if self._parked is not None:
            self._parked.cancel()
            self._parked = None

    def _invalid_offset(self, offset: int, lowest: int, highest: int) -> Refusal:
        return Refusal(
            Reason.INVALID_ARGUMENT,
            f"Transfer {self._transfer} cannot be resumed at byte {offset}; it can be resumed at bytes {lowest} to "
            f"{highest}.",
            fix="Continue after the last byte that arrived; TransferStatus returns how much of an upload has arrived.",
            details={"requested": offset, "allowed": f"{lowest} to {highest}"},
        )


class Upload(Transfer):
    """A transfer of chunks to the device. `size`: total bytes, for resumable uploads."""

    def __init__(self, table: TransferTable, transfer: int, resume_s: float = 0.0, size: int = 0) -> None:
        super().__init__(table, transfer, resume_s)
        self.size = size
        self.passed = 0
        """Number of bytes that were passed on to the device."""
        self._credits = UPLOAD_CREDITS

    def skip(self, offset: int) -> int:
        """Returns how many bytes of a stream that starts at `offset` were passed on before.

        Raises if bytes are missing.
        """
        if offset > self.passed:
            raise self._invalid_offset(offset, 0, self.passed)
        return self.passed - offset

    def on_credit(self, credits: int) -> None:
        """Allows `send` to pass on `credits` more chunks."""
        self._credits += credits
        self._wake()

    async def send(self, payload: bytes, size: int) -> None:
        """Passes one UploadRequest with `size` bytes of data on, after the device has granted a credit.

        Raises the refusal that ended the transfer.
        """
        while not self._credits and self._refusal is None:
            await self._change.wait()
        if self._refusal is not None:
            raise self._refusal
        self._credits -= 1
        self.passed += size
        self._send(Kind.UPLOAD, payload)
        link = self._table.link
        if link.paused:
            await link.drain()

    async def finish(self) -> None:
        """Notifies the device process that the upload is complete, and waits until the link has room."""
        if self._refusal is not None:
            raise self._refusal
        if not self._done:
            self._send(Kind.UPLOAD, flags=Flag.LAST)
            self._done = True
            # Noted before waiting: if the stream breaks here, the client must not send everything again.
            if self.resumable:
                self._table.completed(self._transfer, self.passed)
        await self._table.link.drain()


class _Chunk(NamedTuple):
    """The DownloadResponse with index `number`.

    `start` and `end`, the offsets of its data, are set for resumable downloads only.
    """

    number: int
    payload: bytes
    last: bool
    start: int = 0
    end: int = 0


class Download(Transfer):
    """A transfer of chunks from the device."""

    def __init__(self, table: TransferTable, transfer: int, resume_s: float = 0.0) -> None:
        super().__init__(table, transfer, resume_s)
        self._chunks: deque[_Chunk] = deque()  # chunks to be written to the stream
        self._kept: deque[_Chunk] = deque()  # chunks passed to a stream that may not have reached the client
        self._kept_bytes = 0
        self._chunks_received = 0  # number of chunks received from the device
        self._chunks_written = 0  # number of chunks that a stream has written or the client has acknowledged
        self._chunks_granted = DOWNLOAD_CREDITS
        self._current: _Chunk | None = None
        self._end_offset = 0  # offset after the last byte that was passed to a stream

    def inspect(self) -> TransferView:
        """Returns the state of the download, including the first byte that is kept for resuming."""
        return TransferView(self.parked, self._current is not None, self._kept[0].start if self._kept else None)

    def begin(self) -> None:
        """Asks the device process to send, with `DOWNLOAD_CREDITS` chunks granted. Called once."""
        self._send(Kind.DOWNLOAD, flags=self._chunks_granted)

    def on_chunk(self, payload: bytes, flags: int) -> None:
        """Queues a chunk for `receive`. `Flag.LAST` in `flags` ends the download."""
        last = bool(flags & Flag.LAST)
        start, data = download_response(payload) if self.resumable else (0, b"")
        self._chunks.append(_Chunk(self._chunks_received, payload, last, start, start + len(data)))
        self._chunks_received += 1
        if last:
            self._done = True
        self._wake()

    async def receive(self) -> tuple[bytes, bool]:
        """Returns the next DownloadResponse, and True if it is the last one.

        Raises the refusal that ended the transfer.
        """
        while not self._chunks:
            if self._refusal is not None:
                raise self._refusal
            await self._change.wait()
        self._current = chunk = self._chunks.popleft()
        if self.resumable:
            self._kept.append(chunk)
            self._kept_bytes += len(chunk.payload)
            self._end_offset = max(self._end_offset, chunk.end)
        return chunk.payload, chunk.last

    def on_written(self) -> None:
        """Notes that the chunk that was received last has been written to the client.

        The device may then send another.
        """
        if self._current is not None:
            self._chunks_written = max(self._chunks_written, self._current.number + 1)
            self._grant()

    def resume_at(self, offset: int) -> None:
        """Continues the download on a new stream from byte `offset`.

        Raises if the bytes from `offset` on are not kept here.
        """
        lowest = self._kept[0].start if self._kept else self._end_offset
        if not lowest <= offset <= self._end_offset:
            raise self._invalid_offset(offset, lowest, self._end_offset)
        self.acknowledge(offset)
        self._chunks.extendleft(reversed(self._kept))
        self._kept.clear()
        self._kept_bytes = 0
        self._grant()

    def acknowledge(self, size: int) -> None:
        """Notes that the client has received the first `size` bytes."""
        while self._kept and self._kept[0].end <= size:
            chunk = self._kept.popleft()
            self._kept_bytes -= len(chunk.payload)
            self._chunks_written = max(self._chunks_written, chunk.number + 1)
        self._grant()
        if self.parked and self._complete:
            self.close(Refusal(Reason.TRANSFER_ABORTED, "The download has ended."))

    def _grant(self) -> None:
        """Grants the device as many chunks as the client has taken, unless too many bytes are kept."""
        chunks = DOWNLOAD_CREDITS + self._chunks_written - self._chunks_granted
        if chunks > 0 and not self._done and self._kept_bytes < MAX_KEPT_BYTES:
            self._chunks_granted += chunks
            self._send(Kind.CREDIT, flags=chunks)

    @property
    def _complete(self) -> bool:
        return self._done and (not self.resumable or not (self._kept or self._chunks))


class TransferTable:
    """The transfers of one channel, by number.

    They are those under way, those that were aborted before their stream arrived, and complete ones.

    The RPC streams that carry transfers call `upload` and `download`; the link calls the `on_...` methods.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.loss: Refusal | None = None
        self._flows: dict[int, Transfer] = {}
        self._aborted: OrderedDict[int, Refusal] = OrderedDict()
        self._complete: OrderedDict[int, int] = OrderedDict()  # size in bytes

    def inspect(self) -> dict[int, TransferView]:
        """Returns the state of each transfer under way, by its number."""
        return {transfer: flow.inspect() for transfer, flow in self._flows.items()}

    # ---- for the RPC streams ----

    def upload(self, transfer: int, resume_s: float = 0.0, size: int = 0) -> Upload:
        """Registers a new upload and returns it.

        Raises if its number is in use, it was aborted or the channel is lost.
        """
        flow = Upload(self, transfer, resume_s, size)
        self._register(transfer, flow)
        return flow

    def resumable_upload(self, transfer: int, resume_s: float, size: int, offset: int) -> Upload | None:
        """Returns the upload with this number for a stream that carries it, and registers it if it is new.

        None: it is complete.
        """
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload) and flow.resumable:
            return flow
        if transfer in self._complete:
            return None
        self._check_beginning(transfer, offset)
        return self.upload(transfer, resume_s, size)

    def download(self, transfer: int, resume_s: float = 0.0, offset: int = 0) -> Download:
        """Returns the download with this number for a stream that carries it, and registers it if it is new.

        It may have begun on an earlier stream if it is resumable. Raises if its number is in use, it was aborted or the
        channel is lost.
        """
        if resume_s:
            flow = self._flows.get(transfer)
            if isinstance(flow, Download) and flow.resumable:
                return flow
            self._check_beginning(transfer, offset)
        flow = Download(self, transfer, resume_s)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def _check_beginning(self, transfer: int, offset: int) -> None:
        if offset and transfer not in self._aborted and self.loss is None:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                f"Transfer {transfer} cannot be resumed at byte {offset}: it has ended or was never started.",
                fix="Start it again under a new transfer number.",
                details={"transfer": transfer, "requested": offset},
            )

    def _register(self, transfer: int, flow: Transfer) -> None:
        if self.loss is not None:
            raise self.loss
        refusal = self._aborted.pop(transfer, None)
        if refusal is not None:
            raise refusal
        if transfer in self._flows:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"Transfer {transfer} already has a stream.",
                fix="Use each transfer number once.",
                details={"transfer": transfer},
            )
        self._flows[transfer] = flow

    def forget(self, transfer: int) -> None:
        """Removes a transfer that has ended."""
        self._flows.pop(transfer, None)

    def completed(self, transfer: int, size: int) -> None:
        """Notes that all of a resumable upload was passed on. Its client may not have received the answer."""
        _remember(self._complete, transfer, size)

    def status(self, transfer: int) -> tuple[bool, int, bool]:
        """Returns the state of an upload: whether it is known, its bytes passed on, and whether it is complete."""
        if transfer in self._complete:
            return True, self._complete[transfer], True
        flow = self._flows.get(transfer)
        return (True, flow.passed, False) if isinstance(flow, Upload) else (False, 0, False)

    def cancel(self, transfer: int) -> None:
        """Ends a transfer that its client does not continue."""
        refusal = Refusal(Reason.TRANSFER_ABORTED, "The client cancelled the transfer.", fix="Start it again.")
        flow = self._flows.get(transfer)
        if flow is not None:
            flow.assign_stream()
            flow.close(refusal)
        # The command that waits for the transfer must not wait forever.
        elif transfer not in self._complete and self.loss is None:
            self.link.send(Kind.ABORT, refusal.to_status().SerializeToString(), channel=self.number, id=transfer)

    def acknowledge(self, transfer: int, size: int) -> None:
        """Notes that the first `size` bytes of a resumable download have reached the client."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.acknowledge(size)

    # ---- for the link ----

    def on_credit(self, transfer: int, credits: int) -> None:
        """Grants an upload `credits` more chunks. Ignored if the upload has ended."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload):
            flow.on_credit(credits)

    def on_chunk(self, transfer: int, payload: bytes, flags: int) -> None:
        """Adds a chunk to a download. Ignored if the download has ended."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.on_chunk(payload, flags)

    def on_abort(self, transfer: int, payload: bytes) -> None:
        """Ends a transfer with the status in `payload`, or refuses the stream that will arrive for it."""
        try:
            refusal = from_status(status_pb2.Status.FromString(payload))
        except DecodeError:
            refusal = Refusal(Reason.TRANSFER_ABORTED, f"The device process aborted transfer {transfer}.")
        self._abort(transfer, refusal)

    def _abort(self, transfer: int, refusal: Refusal) -> None:
        flow = self._flows.get(transfer)
        if flow is not None:
            flow.on_abort(refusal)
            if not flow.parked:
                return
            flow.close(refusal)
        _remember(self._aborted, transfer, refusal)

    def end(self, refusal: Refusal) -> None:
        """Ends all transfers with `refusal`, and refuses new ones with it."""
        self.loss = self.loss or refusal
        for transfer in list(self._flows):
            self._abort(transfer, refusal)


def _remember(table: OrderedDict[int, _T], transfer: int, value: _T) -> None:
    table[transfer] = value
    if len(table) > _REMEMBERED:
        table.popitem(last=False)
