"""DeviceService.Execute: a session's work on one device, passed through undecoded and bounded both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front import errors
from hearthd.front.errors import Context
from hearthd.front.lanes.tickets import check_open
from hearthd.front.rpc.eager_coroutine import EagerCoroutine
from hearthd.front.sessions.attach import EOF, ExecuteWindow
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.intake import Intake
from hearthd.front.sessions.session import Session

_RECEIVED_TAG = b"\x1a"
"""First byte of an ExecuteRequest that says what has come: field 3, length-delimited."""
_SETTLE = 5.0
_ACK_DELAY = 0.005
"""An ack waits this long for company, unless an eighth of the window is waiting: each message costs both ends a
wake-up, and what the client waits for is the result behind the ack."""
_LAST_WORDS = 5.0
"""Seconds that a client has to read queued responses when its stream has to end."""


@dataclass(frozen=True)
class ExecuteView:
    """State of an `ExecuteAttachment`, for tests and diagnostics."""

    held: int
    """Batches that are held back before the device process."""
    queued: int
    """Responses that wait to be written to the stream."""
    unread: int
    """Bytes of responses that the client has not read."""
    end: Refusal | None
    """The reason for which the stream ends; None while it does not."""


class ExecuteAttachment:
    """An Execute stream between its client and its channel."""

    def __init__(
        self,
        context: Context,
        session: Session,
        channel: Channel,
        window: ExecuteWindow,
        on_traffic: Callable[[int, int, int], None] = lambda batches, received, sent: None,
        on_lane_unused: Callable[[str, str], None] = lambda session, why: None,
    ) -> None:
        self._context = context
        self.session = session
        self._channel = channel
        self._window = window
        self._on_traffic = on_traffic
        self._count_unused = on_lane_unused
        self._taking_back: asyncio.Task[None] | None = None
        """Sends over this stream the responses that wait at a lane which its client has given up."""
        self._ack_sent = 0
        self._ack_due = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._out: deque[bytes] = deque()
        self._begun: tuple[EagerCoroutine, int] | None = None
        """A write that goes before those of `_out`, and of how many bytes; the writer is not at rest."""
        self._intake = Intake(channel, session.queue, window, lambda size: on_traffic(1, size, 0))
        self._wake_out: asyncio.Future[None] | None = None
        self._rested: asyncio.Future[None] | None = None
        self._end: Refusal | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_words = _LAST_WORDS
        self._half_closed = False
        self._took = False
        self._batched = False
        """A batch has come by this stream: its client waits for no lane any more."""
        self.void_ticket: Callable[[], None] = lambda: None
        """Makes the ticket of the lane that was offered worthless."""

    def inspect(self) -> ExecuteView:
        """Returns how much is held back and waits to be read, and why the stream ends."""
        return ExecuteView(len(self._intake.held), len(self._out), self._intake.unread, self._end)

    @property
    def kind(self) -> str:
        """The kind of a connection that is handed over to it."""
        return "lane"

    # ---- called by the channel ----

    def on_response(self, payload: bytes) -> None:
        wake = self._wake_out
        if wake is not None and not wake.done():
            # Nothing is queued or being written: it goes at once, and not when the writer's task has its turn.
            self._begun = EagerCoroutine(self._context.write(payload)), len(payload)
            self._intake.unread += len(payload)
            wake.set_result(None)
        else:
            self._queue(payload)
        if self._intake.unread > self._window.max_queued_hard:
            self.on_lost(
                Refusal(
                    Reason.QUEUE_FULL,
                    f"{self._intake.unread} bytes of responses wait to be read; the most is "
                    f"{self._window.max_queued_hard}.",
                    fix="Read the stream while sending, or use transfers for large reads.",
                ),
                b"",
            )
        replies = self._channel.replies
        if replies is not None and replies.overrun is not None:
            self.on_lost(replies.overrun, b"")

    def on_ack(self, seq: int) -> None:
        if seq - self._ack_sent >= self._window.max_batches // 8:
            self._make_ack_due()
        elif self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(_ACK_DELAY, self._make_ack_due)
        if self._intake.held:
            self._intake.advance()

    def _make_ack_due(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._ack_due = True
        self._wake_writer()

    def went_by(self, batches: int, sent: int) -> None:
        self._on_traffic(batches, 0, sent)

    def on_room(self) -> None:
        self._intake.advance()
        self._wake_writer()

    def on_lane_unused(self, why: str) -> None:
        self._count_unused(self.session.id, why)
        if self._taking_back is None and self._end is None:
            self._taking_back = asyncio.create_task(self._lane_unused(), name="execute-lane")

    async def _lane_unused(self) -> None:
        try:
            await self._take_lane_back()
        except Refusal as refusal:
            self.on_lost(refusal, b"")
        finally:
            self._taking_back = None

    def on_lost(self, refusal: Refusal, event: bytes) -> None:
        if self._end is not None:
            return
        self._end = refusal
        if event:
            self._queue(event)
        if not self._ended.done():
            self._ended.set_result(None)
        self._intake.stop()
        self._wake_writer()

    def displace(self) -> None:
        self._out.clear()
        self._last_words = 0.0
        self.on_lost(
            Refusal(
                Reason.HANDLE_IN_USE,
                f"Session {self.session.id} has another Execute stream now.",
                fix="Use one Execute stream a session and device.",
                details={"session": self.session.id},
            ),
            b"",
        )

    # ---- called by the service ----

    @property
    def untouched(self) -> bool:
        """See `ResponseSink`."""
        return not self._took and self._channel.lane is None

    @property
    def idle(self) -> bool:
        """True if nothing is under way: all batches that came by the front have been executed, and all responses
        sent."""
        return not (self._channel.batches or self._intake.held or self._out)

    @property
    def holds(self) -> bool:
        """See `ResponseSink`."""
        return bool(self._intake.held)

    def announce(self, event: bytes) -> None:
        """Sends an event of the front's own."""
        if self._channel.sink is self:
            self._channel.say(event)

    async def prepare(self) -> None:
        """Waits, within bounds, for the batches of an earlier stream: their acks must not count for this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE):
                await self._channel.settled()
        self._ack_sent = self._channel.batches.last
        self._ack_due = False
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def resume(self, acked: int) -> None:
        """Continues where an earlier stream broke: sends again what did not come. `acked`: the last batch that the
        client knows to be acknowledged."""
        replies, batches = self._channel.replies, self._channel.batches
        assert replies is not None
        for payload in replies:
            self._queue(payload)
        self._ack_sent = min(acked, batches.acked)
        if batches.acked > self._ack_sent:
            self._make_ack_due()
        if self._channel.loss is not None:
            self.on_lost(self._channel.loss, b"")

    def detach(self) -> None:
        """Lets another stream have the channel. A lane does not outlive its stream, which says that the client is there
        and is what ends where the client may do no more."""
        if self._channel.sink is self:
            self._channel.sink = None
            if self._channel.lane is not None:
                self._channel.lane.end()

    async def hand_over(self, connection: int) -> None:
        """Hands the client over to a lane, whose other end is `connection`. Raises OSError if the stream is not its
        client's any more, the client has given the lane up, or the device process takes none."""
        await self._rest()
        channel = self._channel
        if self._end is not None or channel.sink is not self or self._half_closed:
            raise ConnectionError("the stream is not at rest")
        if self._batched:  # answers to it would wait at a lane that the client does not have
            raise ConnectionError("the client has sent work by its stream")
        check_open(connection)
        channel.open_lane(self._window.of_a_lane(), connection)

    async def _rest(self) -> None:
        """Returns when the client has said that it has all responses: one on its way here would be counted behind those
        that come by the lane. Acks are on their way by then."""
        replies = self._channel.replies
        while self._end is None and replies is not None:
            if self._ack_timer is not None:
                self._make_ack_due()
            elif replies.all_came and self._wake_out is not None and not self._wake_out.done():
                return
            self._rested = asyncio.get_running_loop().create_future()
            await self._rested

    def _wake_rested(self) -> None:
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)

    async def run(self) -> None:
        """Carries the stream until either side ends it; raises the refusal that ended it."""
        reader = asyncio.create_task(self._pump_in(), name="execute-in")
        writer = asyncio.create_task(self._pump_out(), name="execute-out")
        try:
            await asyncio.wait({reader, writer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and self._end is None:
                writer.result()
            if reader.done():
                try:
                    reader.result()
                    self._half_closed = True
                except Refusal as refusal:
                    self._end = self._end or refusal
                self._wake_writer()
            if self._end is None:
                await asyncio.wait({writer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._end is not None:
                await asyncio.wait({writer}, timeout=self._last_words)
                raise self._end
            writer.result()
        finally:
            self.detach()
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._intake.stop()
            tasks = [task for task in (reader, writer, self._taking_back) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._begun is not None:
                self._begun[0].close()

    # ---- in ----

    async def _pump_in(self) -> None:
        read, intake = self._context.read, self._intake
        most, eof = self._window.max_batch_bytes, EOF
        while self._end is None:
            message: bytes = await read()
            if self._end is not None:
                return
            if message is eof:
                break
            self._took = True
            if message[:1] == _RECEIVED_TAG and self._on_received(message):
                continue
            if not self._batched:
                self._batched = True
                self.void_ticket()
            if self._channel.lane is not None:
                await self._take_lane_back()
                if self._end is not None:
                    return
            if len(message) > most:
                raise errors.too_large("A message of Execute", len(message), most, "max_batch_bytes")
            if not intake.passed(message):
                await intake.take(message)
        await intake.finish()

    def _on_received(self, message: bytes) -> bool:
        """Lets go of what has come, where the message says so; else the device process answers it as what is no batch.
        Raises for a number that cannot be."""
        try:
            request = device_pb2.ExecuteRequest.FromString(message)
        except DecodeError:
            return False
        if self._channel.replies is None or request.WhichOneof("kind") != "received":
            return False
        self._channel.came(request.received)
        self._intake.advance()
        self._wake_rested()
        return True

    async def _take_lane_back(self) -> None:
        """Continues here for a client that gave its lane up before it was live. Raises for one that has used it."""
        for payload in await self._channel.take_lane_back():
            self._queue(payload)
        if self._channel.batches.acked > self._ack_sent:
            self._make_ack_due()

    # ---- out ----

    async def _pump_out(self) -> None:
        write = self._context.write
        out = self._out
        batches = self._channel.batches
        while True:
            if self._begun is not None:
                begun, size = self._begun
                await begun
                self._begun = None
                self._written(size)
            # A snapshot, then the ack: under a steady flow of responses acks would otherwise never get their turn.
            for _ in range(len(out)):
                payload = out.popleft()
                await write(payload)
                self._written(len(payload))
            if self._ack_due:
                self._ack_due = False
                self._ack_sent = batches.acked
                ack = device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=self._ack_sent))
                await write(ack.SerializeToString())
            if self._intake.held:
                self._intake.advance()
            if not out and not self._ack_due:
                heard = self._channel.lane is not None or (not batches and self._ack_sent >= batches.acked)
                if self._end is not None or (self._half_closed and heard):
                    return
                self._wake_out = asyncio.get_running_loop().create_future()
                self._wake_rested()
                await self._wake_out

    def _written(self, size: int) -> None:
        self._intake.unread -= size
        self._on_traffic(0, 0, size)

    def _queue(self, payload: bytes) -> None:
        self._out.append(payload)
        self._intake.unread += len(payload)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake_out is not None and not self._wake_out.done():
            self._wake_out.set_result(None)
