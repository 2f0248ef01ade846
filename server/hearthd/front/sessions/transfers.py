"""Bulk bytes of one transfer, paced by credits: no more chunks are under way than the receiver asked for.

A transfer is carried by a stream. A resumable one outlives its stream for as long as its `patience`, and the next
stream takes it up; chunks of a download are kept until the client says that they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hearth_proto.chunks import download_response
from hearth_proto.frames import UPLOAD_CREDITS, Flag, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.sessions.link_interface import Link

DOWNLOAD_CREDITS = 8
"""Chunks that the device may send before the client has taken any."""
KEPT_BYTES = 16 << 20
"""Bytes of a resumable download that are kept for a stream that breaks: beyond, the device waits for the client's
acknowledgement."""


class TransferChannel(Protocol):
    """The channel of a transfer, as far as the transfer uses it."""

    @property
    def link(self) -> Link: ...
    @property
    def number(self) -> int: ...

    def forget(self, transfer: int) -> None:
        """The transfer is over."""
        ...

    def completed(self, transfer: int, size: int) -> None:
        """Notes that all of a resumable upload is on its way; its client may not have been notified."""
        ...


@dataclass(frozen=True)
class TransferView:
    """State of a transfer, for tests and diagnostics."""

    parked: bool
    """True while it waits for another stream."""
    handed_out: bool = False
    """True if the streams of a download have been given a chunk."""
    kept_from: int | None = None
    """First byte of a resumable download that is kept because it may not have come to the client; None: nothing is."""


class Transfer:
    """The common part of uploads and downloads: one waiter, one stream at a time, one end."""

    def __init__(self, channel: TransferChannel, transfer: int, patience: float = 0.0) -> None:
        self._channel = channel
        self._transfer = transfer
        self._patience = patience
        self._waiter: asyncio.Future[None] | None = None
        self._refusal: Refusal | None = None
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done = False
        self._task: asyncio.Task[None] | None = None
        self._stream = 0
        self._parked: asyncio.TimerHandle | None = None

    @property
    def resumable(self) -> bool:
        """True if it outlives its stream."""
        return self._patience > 0

    @property
    def parked(self) -> bool:
        """True while it waits for another stream."""
        return self._parked is not None

    def inspect(self) -> TransferView:
        """Returns the state of the transfer."""
        return TransferView(self.parked)

    async def _wait(self) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else another stream's
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_abort(self, refusal: Refusal) -> None:
        """The other side gives the transfer up."""
        self._refusal = self._refusal or refusal
        if not self._refused.done():
            self._refused.set_result(None)
        self._wake()

    def take_up(self) -> int:
        """Passes the transfer to another stream; the earlier one cannot pass anything on any more. Returns the stream's
        number."""
        self._unpark()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._stream += 1
        return self._stream

    async def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work`, which waits for the client, until it is done, the device gives the transfer up or another stream
        takes it up; raises what ended it."""
        self._task = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._refused}, return_when=asyncio.FIRST_COMPLETED)
            if self._task is not task:
                raise Refusal(
                    Reason.HANDLE_IN_USE,
                    f"Transfer {self._transfer} is under way in another stream.",
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

    def leave(self, stream: int, why: Refusal) -> None:
        """The stream of this number has ended: the transfer waits for another, or is over."""
        if stream != self._stream:
            return
        if self.resumable and self._refusal is None and not self._complete:
            self._parked = asyncio.get_running_loop().call_later(self._patience, self.close, why)
        else:
            self.close(why)

    def bar_resume(self, stream: int) -> None:
        """The stream of this number broke the rules: no other can go on for it."""
        if stream == self._stream:
            self._patience = 0.0

    @property
    def _complete(self) -> bool:
        """True if the transfer needs no further stream."""
        return self._done

    def close(self, why: Refusal) -> None:
        """Ends the transfer; if it is not complete, the device process is notified, with `why`."""
        self._unpark()
        self._channel.forget(self._transfer)
        if not self._done and self._refusal is None:
            payload = why.to_status().SerializeToString()
            self._channel.link.send(Kind.ABORT, payload, channel=self._channel.number, id=self._transfer)
        self._done = True

    def _unpark(self) -> None:
        if self._parked is not None:
            self._parked.cancel()
            self._parked = None

    def _no_such_offset(self, offset: int, lowest: int, highest: int) -> Refusal:
        return Refusal(
            Reason.INVALID_ARGUMENT,
            f"Transfer {self._transfer} cannot go on from byte {offset}; it can from bytes {lowest} to {highest}.",
            fix="Go on from the byte behind the last one that arrived; TransferStatus says how much of an upload has.",
            details={"requested": offset, "allowed": f"{lowest} to {highest}"},
        )


class Upload(Transfer):
    """Chunks towards the device. `size`: of all of it, where it is resumable."""

    def __init__(self, channel: TransferChannel, transfer: int, patience: float = 0.0, size: int = 0) -> None:
        super().__init__(channel, transfer, patience)
        self.size = size
        self.passed = 0
        """Bytes that are on their way to the device."""
        self._credits = UPLOAD_CREDITS

    def skip(self, offset: int) -> int:
        """Returns the bytes of a stream from `offset` that were passed on before. Raises if bytes are missing."""
        if offset > self.passed:
            raise self._no_such_offset(offset, 0, self.passed)
        return self.passed - offset

    def on_credit(self, credits: int) -> None:
        self._credits += credits
        self._wake()

    async def send(self, payload: bytes, size: int) -> None:
        """Passes one UploadRequest with `size` bytes of data on, when the device has room for it. Raises what ended the
        transfer."""
        while not self._credits and self._refusal is None:
            await self._wait()
        if self._refusal is not None:
            raise self._refusal
        self._credits -= 1
        self.passed += size
        link = self._channel.link
        link.send(Kind.UPLOAD, payload, channel=self._channel.number, id=self._transfer)
        if link.paused:
            await link.drain()

    async def finish(self) -> None:
        """Says that no more follows."""
        if self._refusal is not None:
            raise self._refusal
        if not self._done:
            self._channel.link.send(Kind.UPLOAD, channel=self._channel.number, id=self._transfer, flags=Flag.LAST)
            self._done = True
            if self.resumable:  # at once: a stream that breaks here leaves a client that would send all of it again
                self._channel.completed(self._transfer, self.passed)
        await self._channel.link.drain()


class _Chunk(NamedTuple):
    """A DownloadResponse, the `number`th. Where and how long its data is: for resumable downloads only."""

    number: int
    payload: bytes
    last: bool
    start: int = 0
    end: int = 0


class Download(Transfer):
    """Chunks from the device."""

    def __init__(self, channel: TransferChannel, transfer: int, patience: float = 0.0) -> None:
        super().__init__(channel, transfer, patience)
        self._chunks: deque[_Chunk] = deque()  # to be written
        self._kept: deque[_Chunk] = deque()  # handed out, and perhaps not come to the client
        self._kept_bytes = 0
        self._arrived = 0  # chunks from the device
        self._written = 0  # chunks that some stream has written, or the client has
        self._granted = DOWNLOAD_CREDITS
        self._current: _Chunk | None = None
        self._end = 0  # of the last byte that was handed out

    def inspect(self) -> TransferView:
        return TransferView(self.parked, self._current is not None, self._kept[0].start if self._kept else None)

    def begin(self) -> None:
        self._channel.link.send(Kind.DOWNLOAD, channel=self._channel.number, id=self._transfer, flags=self._granted)

    def on_chunk(self, payload: bytes, flags: int) -> None:
        last = bool(flags & Flag.LAST)
        start, data = download_response(payload) if self.resumable else (0, b"")
        self._chunks.append(_Chunk(self._arrived, payload, last, start, start + len(data)))
        self._arrived += 1
        if last:
            self._done = True
        self._wake()

    async def receive(self) -> tuple[bytes, bool]:
        """The next DownloadResponse, and whether it is the last. Raises what ended the transfer."""
        while not self._chunks:
            if self._refusal is not None:
                raise self._refusal
            await self._wait()
        self._current = chunk = self._chunks.popleft()
        if self.resumable:
            self._kept.append(chunk)
            self._kept_bytes += len(chunk.payload)
            self._end = max(self._end, chunk.end)
        return chunk.payload, chunk.last

    def consumed(self) -> None:
        """The chunk that was received has been written to the client: another may come."""
        if self._current is not None:
            self._written = max(self._written, self._current.number + 1)
            self._grant()

    def go_on(self, offset: int) -> None:
        """A stream begins again, `offset` bytes have come. Raises where those behind them are not here."""
        lowest = self._kept[0].start if self._kept else self._end
        if not lowest <= offset <= self._end:
            raise self._no_such_offset(offset, lowest, self._end)
        self.came(offset)
        self._chunks.extendleft(reversed(self._kept))
        self._kept.clear()
        self._kept_bytes = 0
        self._grant()

    def came(self, size: int) -> None:
        """The client has the first `size` bytes."""
        while self._kept and self._kept[0].end <= size:
            chunk = self._kept.popleft()
            self._kept_bytes -= len(chunk.payload)
            self._written = max(self._written, chunk.number + 1)
        self._grant()
        if self.parked and self._complete:
            self.close(Refusal(Reason.TRANSFER_ABORTED, "The download is over."))

    def _grant(self) -> None:
        """Lets the device send as many chunks as the client has taken, while not too much is kept."""
        more = DOWNLOAD_CREDITS + self._written - self._granted
        if more > 0 and not self._done and self._kept_bytes < KEPT_BYTES:
            self._granted += more
            self._channel.link.send(Kind.CREDIT, channel=self._channel.number, id=self._transfer, flags=more)

    @property
    def _complete(self) -> bool:
        return self._done and (not self.resumable or not (self._kept or self._chunks))
