"""Bulk bytes of one transfer, paced by credits: no more chunks are under way than the receiver asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from hearth_proto.frames import UPLOAD_CREDITS, Flag, Kind
from hearth_proto.reasons import Refusal
from hearthd.front.wire import Link

DOWNLOAD_CREDITS = 8
"""Chunks that the device may send before the client has taken any."""


class Carrier(Protocol):
    """What a transfer needs of its channel."""

    @property
    def link(self) -> Link: ...
    @property
    def number(self) -> int: ...

    def forget(self, transfer: int) -> None:
        """The transfer is over."""
        ...


class Transfer:
    """What uploads and downloads share: one waiter, one end."""

    def __init__(self, channel: Carrier, transfer: int) -> None:
        self._channel = channel
        self._transfer = transfer
        self._waiter: asyncio.Future[None] | None = None
        self._refusal: Refusal | None = None
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done = False

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
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

    async def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work`, which waits for the client, until it is done or the device gives the transfer up; raises what
        ended it."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._refused}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            elif self._refusal is not None:
                raise self._refusal
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self, why: Refusal) -> None:
        """Ends the transfer; where it is not complete the device is told, with `why`."""
        self._channel.forget(self._transfer)
        if not self._done and self._refusal is None:
            payload = why.to_status().SerializeToString()
            self._channel.link.send(Kind.ABORT, payload, channel=self._channel.number, id=self._transfer)
        self._done = True


class Upload(Transfer):
    """Chunks towards the device."""

    def __init__(self, channel: Carrier, transfer: int) -> None:
        super().__init__(channel, transfer)
        self._credits = UPLOAD_CREDITS

    def on_credit(self, credits: int) -> None:
        self._credits += credits
        self._wake()

    async def send(self, payload: bytes) -> None:
        """Passes one UploadRequest on, when the device has room for it. Raises what ended the transfer."""
        while not self._credits and self._refusal is None:
            await self._wait()
        if self._refusal is not None:
            raise self._refusal
        self._credits -= 1
        link = self._channel.link
        link.send(Kind.UPLOAD, payload, channel=self._channel.number, id=self._transfer)
        if link.paused:
            await link.drain()

    async def finish(self) -> None:
        """Says that no more follows."""
        if self._refusal is not None:
            raise self._refusal
        self._channel.link.send(Kind.UPLOAD, channel=self._channel.number, id=self._transfer, flags=Flag.LAST)
        self._done = True
        await self._channel.link.drain()


class Download(Transfer):
    """Chunks from the device."""

    def __init__(self, channel: Carrier, transfer: int) -> None:
        super().__init__(channel, transfer)
        self._chunks: deque[tuple[bytes, bool]] = deque()

    def begin(self) -> None:
        self._channel.link.send(Kind.DOWNLOAD, channel=self._channel.number, id=self._transfer, flags=DOWNLOAD_CREDITS)

    def on_chunk(self, payload: bytes, flags: int) -> None:
        last = bool(flags & Flag.LAST)
        self._chunks.append((payload, last))
        if last:
            self._done = True
        self._wake()

    async def receive(self) -> tuple[bytes, bool]:
        """The next DownloadResponse, and whether it is the last. Raises what ended the transfer."""
        while not self._chunks:
            if self._refusal is not None:
                raise self._refusal
            await self._wait()
        return self._chunks.popleft()

    def consumed(self) -> None:
        """One chunk has been written to the client: another may come."""
        if not self._done:
            self._channel.link.send(Kind.CREDIT, channel=self._channel.number, id=self._transfer, flags=1)
