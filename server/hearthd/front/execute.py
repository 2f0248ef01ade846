"""DeviceService.Execute: a session's work on one device, passed through undecoded and bounded both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio
from google.protobuf.message import DecodeError

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front import refusals
from hearthd.front.channel import EVENT_TAG, Channel
from hearthd.front.refusals import Context
from hearthd.front.sessions import Session

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]
_SETTLE = 5.0
_ACK_DELAY = 0.002
"""An ack waits this long for company, unless an eighth of the window is waiting: each message costs both ends a
wake-up, and what the client waits for is the result behind the ack."""
_LAST_WORDS = 5.0
"""How long a client has to read what is queued for it when its stream has to end."""


@dataclass(frozen=True)
class Window:
    """What one Execute stream may have under way."""

    max_batch_bytes: int = 8 << 20
    max_batches: int = 64
    max_unacked_bytes: int = 32 << 20
    max_queued_bytes: int = 32 << 20
    """Responses that wait for the client to read them: beyond, no more of its batches are taken."""
    max_queued_hard: int = 256 << 20
    """Beyond, the stream is ended: its client sends but does not read."""


def parse_attach(message: object) -> device_pb2.Attach:
    """The first message of a stream."""
    if message is EOF or not isinstance(message, bytes):
        raise refusals.malformed("The stream ended before its Attach.", "Send ExecuteRequest.attach first.")
    try:
        request = device_pb2.ExecuteRequest.FromString(message)
    except DecodeError as error:
        raise refusals.malformed(
            f"The first message of Execute is no ExecuteRequest: {error}.", "Send ExecuteRequest.attach first."
        ) from None
    if request.WhichOneof("kind") != "attach":
        raise refusals.malformed(
            f"The first message of Execute is {request.WhichOneof('kind') or 'empty'}, not attach.",
            "Send ExecuteRequest.attach first.",
        )
    return request.attach


class Attachment:
    """One Execute stream between its client and its channel."""

    def __init__(
        self,
        context: Context,
        session: Session,
        channel: Channel,
        window: Window,
        on_traffic: Callable[[int, int, int], None] = lambda batches, received, sent: None,
    ) -> None:
        self._context = context
        self.session = session
        self._channel = channel
        self._window = window
        self._on_traffic = on_traffic
        self._sizes: deque[int] = deque()  # of the batches that are not acknowledged, oldest first
        self._unacked_bytes = 0
        self._sent = 0
        self._acked = 0
        self._ack_sent = 0
        self._ack_due = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._out: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake_out: asyncio.Future[None] | None = None
        self._wake_in: asyncio.Future[None] | None = None
        self._end: Refusal | None = None
        self._half_closed = False

    # ---- called by the channel ----

    def on_response(self, payload: bytes) -> None:
        if payload and payload[0] == EVENT_TAG:
            self._on_event(payload)
        self._queue(payload)
        if self._queued_bytes > self._window.max_queued_hard:
            self.on_lost(
                Refusal(
                    Reason.QUEUE_FULL,
                    f"{self._queued_bytes} bytes of responses wait to be read; the most is "
                    f"{self._window.max_queued_hard}.",
                    fix="Read the stream while sending, or use transfers for large reads.",
                ),
                b"",
            )

    def on_ack(self, seq: int) -> None:
        for _ in range(min(seq - self._acked, len(self._sizes))):
            self._unacked_bytes -= self._sizes.popleft()
        if seq > self._acked:
            self._acked = seq
            if seq - self._ack_sent >= self._window.max_batches // 8:
                self._make_ack_due()
            elif self._ack_timer is None:
                self._ack_timer = asyncio.get_running_loop().call_later(_ACK_DELAY, self._make_ack_due)
            self._wake_reader()

    def _make_ack_due(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._ack_due = True
        self._wake_writer()

    def on_lost(self, refusal: Refusal, event: bytes) -> None:
        if self._end is not None:
            return
        self._end = refusal
        if event:
            self._queue(event)
        self._wake_writer()
        self._wake_reader()

    def _on_event(self, payload: bytes) -> None:
        event = device_pb2.ExecuteResponse.FromString(payload).event
        if event.WhichOneof("kind") == "protocol_error" and self._sizes:
            # That message was no batch and gets no ack: it must not hold a place in the window for ever.
            self._unacked_bytes -= self._sizes.popleft()
            self._sent -= 1
            self._wake_reader()

    # ---- called by the service ----

    def announce(self, event: bytes) -> None:
        """Sends an event of the front's own."""
        self._queue(event)

    async def prepare(self) -> None:
        """Waits, within bounds, for the batches of an earlier stream: their acks must not count for this one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._channel.settled(), _SETTLE)
        self._sent = self._acked = self._ack_sent = self._channel.last_seq

    def detach(self) -> None:
        """Lets another stream have the channel."""
        if self._channel.sink is self:
            self._channel.detach(self._sent if self._sizes else 0)

    async def run(self) -> None:
        """Carries the stream until either side ends it; raises the refusal that ended it."""
        reader = asyncio.create_task(self._pump_in(), name="execute-in")
        writer = asyncio.create_task(self._pump_out(), name="execute-out")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and self._end is None:
                writer.result()
            if reader.done():
                try:
                    reader.result()
                    self._half_closed = True
                except Refusal as refusal:
                    self._end = self._end or refusal
                self._wake_writer()
            await asyncio.wait({writer}, timeout=_LAST_WORDS if self._end else None)
            if self._end is not None:
                raise self._end
            writer.result()
        finally:
            self.detach()
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _pump_in(self) -> None:
        read = self._context.read
        channel, window, sizes = self._channel, self._window, self._sizes
        link = channel.link
        eof = EOF
        while self._end is None:
            message: bytes = await read()
            if message is eof or self._end is not None:
                return
            size = len(message)
            if size > window.max_batch_bytes:
                raise refusals.too_large("A message of Execute", size, window.max_batch_bytes, "max_batch_bytes")
            sizes.append(size)
            self._unacked_bytes += size
            self._sent += 1
            channel.send_batch(message)
            self._on_traffic(1, size, 0)
            if link.paused:
                await link.drain()
            while self._full() and self._end is None:
                self._wake_in = asyncio.get_running_loop().create_future()
                await self._wake_in

    def _full(self) -> bool:
        return (
            len(self._sizes) >= self._window.max_batches
            or self._unacked_bytes >= self._window.max_unacked_bytes
            or self._queued_bytes >= self._window.max_queued_bytes
        )

    async def _pump_out(self) -> None:
        write = self._context.write
        out = self._out
        while True:
            # A snapshot, then the ack: under a steady flow of responses acks would otherwise never get their turn.
            for _ in range(len(out)):
                payload = out.popleft()
                await write(payload)
                self._queued_bytes -= len(payload)
                self._on_traffic(0, 0, len(payload))
            if self._ack_due:
                self._ack_due = False
                self._ack_sent = self._acked
                await write(device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=self._acked)).SerializeToString())
                self._wake_reader()
            if not out and not self._ack_due:
                if self._end is not None or (self._half_closed and not self._sizes and self._ack_sent == self._acked):
                    return
                self._wake_reader()
                self._wake_out = asyncio.get_running_loop().create_future()
                await self._wake_out

    def _queue(self, payload: bytes) -> None:
        self._out.append(payload)
        self._queued_bytes += len(payload)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake_out is not None and not self._wake_out.done():
            self._wake_out.set_result(None)

    def _wake_reader(self) -> None:
        if self._wake_in is not None and not self._wake_in.done():
            self._wake_in.set_result(None)
