"""Frames over the socket to one device process.

Reading never pauses: every queue behind it is bounded by a window or by credits, so that a slow client never blocks a
device process. Writing has back-pressure through `drain`.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from typing import Any

from hearth_proto import frames
from hearth_proto.frames import Frame
from hearth_proto.reasons import Refusal

_SMALL = 64 << 10
"""Maximum size, in bytes, of a payload that is copied behind its header. Longer payloads are written without a copy."""
_HIGH_WATER = 4 << 20
_encode_json = json.JSONEncoder(separators=(",", ":")).encode


class FrameSocket(asyncio.Protocol, ABC):
    """The front's end of the socket pair to a device process."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed. Its result is the reason; empty for a plain end of file."""
        self.loss: Refusal | None = None
        """The error of all pending calls. None: the device process is running."""
        self._reader = frames.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._drained: asyncio.Future[None] | None = None

    @abstractmethod
    def _dispatch(self, frame: Frame) -> None:
        """Handles a received frame."""

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets `_HIGH_WATER` as the number of unsent bytes from which `paused` is True. Called by asyncio."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        """Passes each complete frame to `_dispatch`. Abandons the link after bytes that are not valid frames."""
        try:
            for frame in self._reader.feed(data):
                self._dispatch(frame)
        except frames.FrameError as error:
            self.abandon(f"it sent bytes that are not valid frames: {error}")

    def pause_writing(self) -> None:
        """Makes `drain` wait. Called by asyncio above `_HIGH_WATER` unsent bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        """Ends the wait of all callers of `drain`. Called by asyncio, and when the link ends."""
        self._paused = False
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def eof_received(self) -> bool:
        """Returns False, so that asyncio closes the socket."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Completes `closed`, with the reason if the socket failed with another error than a broken pipe."""
        # A process that ends while data is written to it breaks the pipe; the cause of its end is more informative.
        self._close("" if exc is None or isinstance(exc, ConnectionError) else str(exc))

    def abandon(self, reason: str) -> None:
        """Closes the link because of an error. The supervisor then ends the process."""
        self._close(reason)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        self.resume_writing()

    # ---- sending ----

    @property
    def paused(self) -> bool:
        """True while too many bytes wait to be written; see `drain`."""
        return self._paused

    async def drain(self) -> None:
        """Returns when there is room to write. Raises the loss if the device process is gone."""
        while self._paused and self.loss is None:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
        if self.loss is not None:
            raise self.loss

    def send(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None:
        """Writes one frame. Does nothing after the socket was closed, because pending calls fail with the loss."""
        transport = self._transport
        if transport is None or self.closed.done():
            return
        head = frames.header(kind, len(payload), channel=channel, id=id, flags=flags)
        if len(payload) <= _SMALL:
            transport.write(head + payload)
        else:
            transport.writelines((head, payload))

    def send_json(self, kind: int, body: dict[str, Any]) -> None:
        """Writes one frame with a JSON payload, on channel 0 and without an id."""
        self.send(kind, _encode_json(body).encode())
