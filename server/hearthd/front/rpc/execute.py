"""DeviceService.Execute: passes the work of a session on one device through without decoding it.

The data under way is bounded in both directions.
"""

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
"""First byte of an ExecuteRequest that acknowledges responses: field 3, length-delimited."""
_SETTLE_TIMEOUT = 5.0
"""Maximum time, in seconds, to wait for the batches of an earlier stream."""
_ACK_DELAY = 0.005
"""Delay of an acknowledgement, in seconds, so that it can cover further batches; an eighth of the window without
acknowledgement ends the delay. Each message costs both sides a wake-up, and clients wait for results rather than
acknowledgements."""
_CLOSE_TIMEOUT = 5.0
"""Time, in seconds, for a client to read queued responses when its stream must end."""


@dataclass(frozen=True)
class ExecuteView:
    """State of an `ExecuteAttachment`, for tests and diagnostics."""

    held: int
    """Number of batches that are held back by the front."""
    queued: int
    """Number of responses that wait to be written to the stream."""
    unread: int
    """Bytes of responses that the client has not read."""
    end: Refusal | None
    """The refusal that ends the stream. None: the stream is open."""


class ExecuteAttachment:
    """An Execute stream of a client, connected with the channel of its session."""

    kind = "lane"
    """The kind of connection that may be handed over to this object."""

    def __init__(
        self,
        context: Context,
        session: Session,
        channel: Channel,
        window: ExecuteWindow,
        on_traffic: Callable[[int, int, int], None] = lambda batches, received, sent: None,
        on_lane_unused: Callable[[str, str], None] = lambda session, reason: None,
    ) -> None:
        self._context = context
        self.session = session
        self._channel = channel
        self._window = window
        self._on_traffic = on_traffic
        self._on_lane_unused = on_lane_unused
        self._take_back_task: asyncio.Task[None] | None = None
        """The task that sends, over this stream, the responses of a lane that the client has stopped using."""
        self._ack_sent = 0
        self._ack_due = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._queued: deque[bytes] = deque()
        """Responses that wait to be written to the stream."""
        self._eager_write: tuple[EagerCoroutine, int] | None = None
        """A write that precedes those of `_queued`, with its size in bytes. None: no such write has begun."""
        self._intake = Intake(channel, session.queue, window, lambda size: on_traffic(1, size, 0))
        self._writer_waiter: asyncio.Future[None] | None = None
        self._idle_waiter: asyncio.Future[None] | None = None
        self._end: Refusal | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._close_timeout = _CLOSE_TIMEOUT
        self._half_closed = False
        self._message_taken = False
        self._has_batch = False
        """True once a batch has arrived over this stream. Its client then no longer waits for a lane."""
        self.void_ticket: Callable[[], None] = lambda: None
        """Invalidates the ticket of the lane that was offered."""

    def inspect(self) -> ExecuteView:
        """Returns how much is held back and waits to be read, and the refusal that ends the stream."""
        return ExecuteView(len(self._intake.held), len(self._queued), self._intake.unread, self._end)

    # ---- called by the channel ----

    def on_response(self, payload: bytes) -> None:
        """Writes the response immediately if nothing is queued or being written, otherwise queues it.

        Ends the stream if the client leaves too many responses unread or unacknowledged.
        """
        writer_waiter = self._writer_waiter
        if writer_waiter is not None and not writer_waiter.done():
            # Nothing is queued or being written. The write starts here, without waiting for the writer's task.
            self._eager_write = EagerCoroutine(self._context.write(payload)), len(payload)
            self._intake.unread += len(payload)
            writer_waiter.set_result(None)
        else:
            self._enqueue(payload)
        if self._intake.unread > self._window.max_queued_hard:
            self.on_lost(
                Refusal(
                    Reason.QUEUE_FULL,
                    f"{self._intake.unread} bytes of responses are waiting to be read; the maximum is "
                    f"{self._window.max_queued_hard}.",
                    fix="Read the stream while sending, or use transfers for large reads.",
                ),
                b"",
            )
        replies = self._channel.replies
        if replies is not None and replies.overrun is not None:
            self.on_lost(replies.overrun, b"")

    def on_ack(self, seq: int) -> None:
        """Notes that the batches up to number `seq` have been executed.

        The acknowledgement to the client may be delayed by `_ACK_DELAY`. Batches that were held back may be passed on
        now.
        """
        if seq - self._ack_sent >= self._window.max_batches // 8:
            self._make_ack_due()
        elif self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(_ACK_DELAY, self._make_ack_due)
        if self._intake.held:
            self._intake.advance()

    def _make_ack_due(self) -> None:
        self._stop_ack_timer()
        self._ack_due = True
        self._wake_writer()

    def _stop_ack_timer(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def count_lane_traffic(self, batches: int, sent: int) -> None:
        """Counts traffic of the lane in metrics only; it takes no place in this stream's window."""
        self._on_traffic(batches, 0, sent)

    def on_room(self) -> None:
        """Passes on batches that were held back, because a message of the client was no batch."""
        self._intake.advance()
        self._wake_writer()

    def on_lane_unused(self, reason: str) -> None:
        """Counts the unused lane, and begins to send the lane's responses over this stream. Does not block."""
        self._on_lane_unused(self.session.id, reason)
        if self._take_back_task is None and self._end is None:
            self._take_back_task = asyncio.create_task(self._run_take_back(), name="execute-lane")

    async def _run_take_back(self) -> None:
        try:
            await self._take_lane_back()
        except Refusal as refusal:
            self.on_lost(refusal, b"")
        finally:
            self._take_back_task = None

    def on_lost(self, refusal: Refusal, event: bytes) -> None:
        """Ends the stream with `refusal`, after the queued responses and `event`. Later calls have no effect."""
        if self._end is not None:
            return
        self._end = refusal
        if event:
            self._enqueue(event)
        if not self._ended.done():
            self._ended.set_result(None)
        self._intake.stop()
        self._wake_writer()

    def displace(self) -> None:
        """Ends the stream immediately with `HANDLE_IN_USE`. Queued responses are dropped."""
        self._queued.clear()
        self._close_timeout = 0.0
        self.on_lost(
            Refusal(
                Reason.HANDLE_IN_USE,
                f"Session {self.session.id} has opened another Execute stream.",
                fix="Use one Execute stream per session and device.",
                details={"session": self.session.id},
            ),
            b"",
        )

    # ---- called by the service ----

    @property
    def unused(self) -> bool:
        """True if no message of the stream was taken; see `ResponseSink`."""
        return not self._message_taken and self._channel.lane is None

    @property
    def idle(self) -> bool:
        """True if nothing is under way.

        All batches that passed through the front have then been executed, and all responses have been sent.
        """
        return not (self._channel.batches or self._intake.held or self._queued)

    @property
    def holds_batches(self) -> bool:
        """True if batches are held back; see `ResponseSink`."""
        return bool(self._intake.held)

    def announce(self, event: bytes) -> None:
        """Sends an event that the front itself produced."""
        if self._channel.sink is self:
            self._channel.send_response(event)

    async def prepare(self) -> None:
        """Waits for the batches of an earlier stream, at most `_SETTLE_TIMEOUT` seconds.

        Their acknowledgements then do not count for this stream.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_TIMEOUT):
                await self._channel.wait_until_executed()
        self._ack_sent = self._channel.batches.last
        self._ack_due = False
        self._stop_ack_timer()

    def resume(self, acked: int) -> None:
        """Continues after an earlier stream broke: sends the responses that did not arrive again.

        `acked` is the number of the last batch that the client knows to be acknowledged.
        """
        replies, batches = self._channel.replies, self._channel.batches
        assert replies is not None
        for payload in replies:
            self._enqueue(payload)
        self._ack_sent = min(acked, batches.acked)
        if batches.acked > self._ack_sent:
            self._make_ack_due()
        if self._channel.loss is not None:
            self.on_lost(self._channel.loss, b"")

    def detach(self) -> None:
        """Detaches the stream from its channel, so that another stream can take the channel.

        A lane is ended with its stream, because the stream shows that the client is still connected, and ends if the
        client loses its permission.
        """
        if self._channel.sink is self:
            self._channel.sink = None
            if self._channel.lane is not None:
                self._channel.lane.request_end()

    async def hand_over(self, connection: int) -> None:
        """Hands `connection` to the device process as the client's lane.

        Raises OSError if the client no longer uses this stream, has stopped waiting for the lane, or the device process
        accepts no lane.
        """
        await self._wait_idle()
        channel = self._channel
        if self._end is not None or channel.sink is not self or self._half_closed:
            raise ConnectionError("the stream is not idle")
        if self._has_batch:  # the answers would wait for a lane that the client does not have
            raise ConnectionError("the client has sent work on its stream")
        check_open(connection)
        channel.open_lane(self._window.lane_limits(), connection)

    async def _wait_idle(self) -> None:
        """Waits until the client has acknowledged all responses.

        A response still on its way over the stream would be counted after the responses of the lane. Pending
        acknowledgements are sent before this returns.
        """
        replies = self._channel.replies
        while self._end is None and replies is not None:
            if self._ack_timer is not None:
                self._make_ack_due()
            elif replies.all_acknowledged and self._writer_waiter is not None and not self._writer_waiter.done():
                return
            self._idle_waiter = asyncio.get_running_loop().create_future()
            await self._idle_waiter

    def _wake_idle_waiter(self) -> None:
        if self._idle_waiter is not None and not self._idle_waiter.done():
            self._idle_waiter.set_result(None)

    async def run(self) -> None:
        """Runs the stream until one side ends it. Raises the refusal that ended it."""
        reader = asyncio.create_task(self._receive_messages(), name="execute-in")
        writer = asyncio.create_task(self._send_responses(), name="execute-out")
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
                await asyncio.wait({writer}, timeout=self._close_timeout)
                raise self._end
            writer.result()
        finally:
            self.detach()
            self._stop_ack_timer()
            self._intake.stop()
            tasks = [task for task in (reader, writer, self._take_back_task) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._eager_write is not None:
                self._eager_write[0].close()

    # ---- from the client ----

    async def _receive_messages(self) -> None:
        read, intake = self._context.read, self._intake
        max_bytes, eof = self._window.max_batch_bytes, EOF
        while self._end is None:
            message: bytes = await read()
            if self._end is not None:
                return
            if message is eof:
                break
            self._message_taken = True
            if message[:1] == _RECEIVED_TAG and self._on_received(message):
                continue
            if not self._has_batch:
                self._has_batch = True
                self.void_ticket()
            if self._channel.lane is not None:
                await self._take_lane_back()
                if self._end is not None:
                    return
            if len(message) > max_bytes:
                raise errors.too_large("A message of Execute", len(message), max_bytes, "max_batch_bytes")
            if not intake.try_pass_on(message):
                await intake.enqueue(message)
        await intake.finish()

    def _on_received(self, message: bytes) -> bool:
        """Drops the responses that the message acknowledges.

        Returns False for a message of another kind, which is passed on so that the device process answers it as
        invalid. Raises for an impossible number.
        """
        try:
            request = device_pb2.ExecuteRequest.FromString(message)
        except DecodeError:
            return False
        if self._channel.replies is None or request.WhichOneof("kind") != "received":
            return False
        self._channel.acknowledge(request.received)
        self._intake.advance()
        self._wake_idle_waiter()
        return True

    async def _take_lane_back(self) -> None:
        """Continues on this stream for a client that stopped using its lane before the lane was live.

        Raises if the client has sent a batch over the lane.
        """
        for payload in await self._channel.take_lane_back():
            self._enqueue(payload)
        if self._channel.batches.acked > self._ack_sent:
            self._make_ack_due()

    # ---- to the client ----

    async def _send_responses(self) -> None:
        write = self._context.write
        queued = self._queued
        batches = self._channel.batches
        while True:
            if self._eager_write is not None:
                coroutine, size = self._eager_write
                await coroutine
                self._eager_write = None
                self._on_written(size)
            # Only the responses queued now precede the acknowledgement. With a steady flow of responses it would
            # otherwise never be sent.
            for _ in range(len(queued)):
                payload = queued.popleft()
                await write(payload)
                self._on_written(len(payload))
            if self._ack_due:
                self._ack_due = False
                self._ack_sent = batches.acked
                ack = device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=self._ack_sent))
                await write(ack.SerializeToString())
            if self._intake.held:
                self._intake.advance()
            if not queued and not self._ack_due:
                all_acknowledged = self._channel.lane is not None or (not batches and self._ack_sent >= batches.acked)
                if self._end is not None or (self._half_closed and all_acknowledged):
                    return
                self._writer_waiter = asyncio.get_running_loop().create_future()
                self._wake_idle_waiter()
                await self._writer_waiter

    def _on_written(self, size: int) -> None:
        self._intake.unread -= size
        self._on_traffic(0, 0, size)

    def _enqueue(self, payload: bytes) -> None:
        self._queued.append(payload)
        self._intake.unread += len(payload)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writer_waiter is not None and not self._writer_waiter.done():
            self._writer_waiter.set_result(None)
