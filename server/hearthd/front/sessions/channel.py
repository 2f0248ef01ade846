"""The channel of one session on one device process: its Execute stream, its lane and its transfers."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.errors import malformed
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.in_flight import InFlightBatches
from hearthd.front.sessions.lane import LaneMirror
from hearthd.front.sessions.link_interface import Link
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from hearthd.front.sessions.transfers import TransferTable

log = structlog.get_logger("hearthd.channel")

EVENT_TAG = 0x22
"""First byte of an ExecuteResponse that carries an event: field 4, length-delimited."""
_LOGGED_CHARACTERS = 16 << 10
_LANE_FIX = (
    "While a lane is open, send batches only on it: ExecuteRequest.batch in BATCH frames whose id is its seq, "
    "ExecuteRequest.received in those with id 0."
)


class ResponseSink(Protocol):
    """The Execute stream of a channel, as the receiver of its responses."""

    @property
    def unused(self) -> bool:
        """True if no message of this stream has been taken.

        Its client may then not know that it was attached, and may attach again.
        """
        ...

    @property
    def holds_batches(self) -> bool:
        """True if the stream holds batches that have not been passed on to the device process."""
        ...

    def on_response(self, payload: bytes) -> None:
        """Sends a response to the client, after those that were passed before. Must not block."""
        ...

    def on_ack(self, seq: int) -> None:
        """Notes that the batches up to number `seq` have been executed."""

    def count_lane_traffic(self, batches: int, sent: int) -> None:
        """Counts batches that were executed and bytes that were sent over the client's lane."""

    def on_room(self) -> None:
        """Notes that the window has room for another message, because a message of the client was no batch."""

    def on_lane_unused(self, reason: str) -> None:
        """Notes that the lane ended before the client sent anything over it.

        The client continues on the stream, or attaches again. `reason` is empty if the client closed the connection.
        """

    def on_lost(self, refusal: Refusal, event: bytes) -> None:
        """Ends the stream with `refusal` because the channel has ended.

        `event`, if not empty, is sent as the last message.
        """

    def displace(self) -> None:
        """Notes that another stream has taken the channel. No further messages may be taken from this stream."""


class Channel:
    """The state of one session on one device process."""

    def __init__(self, link: Link, number: int, session_id: str, tenant: str, queue: CommandQueue) -> None:
        self.link = link
        self.number = number
        self.session_id = session_id
        self.tenant = tenant
        self.sink: ResponseSink | None = None
        self.batches = InFlightBatches(queue)
        self.replies: ResumeBuffer | None = None
        """Responses kept for a client that attached resumably, also while it has no stream. None: the attachment is not
        resumable."""
        self.lane: LaneMirror | None = None
        """The front's mirror of the client's lane. While the client has a lane, responses do not go to the sink; only
        the end of the channel does."""
        self.durable: list[int] = []
        """Handles of buffers from lost generations that have been restored."""
        self.transfers = TransferTable(link, number)
        self._sent_cancel = False
        """True once a Cancel command was sent ahead of its batch since the attachment began."""
        self.calls = 0
        self.loss: Refusal | None = None
        self.loss_reported = False
        """True once a single call has been answered with the loss. The first call after the loss is answered with it,
        because a Sync that follows a launch that ended the device process must not succeed."""
        self._unsent_output: list[str] = []
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        """True until the channel is closed or its device process is lost."""
        return self.loss is None and not self._closed.done()

    @property
    def refusal(self) -> Refusal | None:
        """The reason why the device process answers no more: the loss, or the end of the channel. None: it answers."""
        return self.loss or self.transfers.loss

    # ---- Execute ----

    def send_batch(self, payload: bytes) -> None:
        """Sends a batch of the client to the device process. The caller has checked the window; see `batches`."""
        self.batches.add(len(payload))
        self.link.send(Kind.BATCH, payload, channel=self.number)

    def cancel(self, command: commands_pb2.Command) -> None:
        """Makes a Cancel command take effect in the device process before its batch is executed."""
        self._sent_cancel = True
        self.link.send(Kind.DROP, command.SerializeToString(), channel=self.number)

    def end_cancels(self) -> None:
        """Ends the effect of Cancel commands whose batches will not arrive, because another attachment begins."""
        if self._sent_cancel:
            self._sent_cancel = False
            self.link.send(Kind.DROP, channel=self.number)

    def on_ack(self, seq: int, over_lane: bool = False) -> None:
        """Notes that the batches up to `seq` have been executed.

        With `over_lane` the client received the acknowledgement over its lane.
        """
        acked_before = self.batches.acked
        if not seq:  # acknowledges a batch that was sent again
            self._on_non_batch(over_lane)
        elif self.batches.acknowledge(seq):
            if self.lane is not None:
                self.lane.on_ack(over_lane)
                if self.sink is not None:
                    self.sink.count_lane_traffic(seq - acked_before, 0)
            elif self.sink is not None:
                self.sink.on_ack(seq)

    def on_response(self, payload: bytes, over_lane: bool = False) -> None:
        """Passes a response of the device process on. With `over_lane` the client received it over its lane."""
        if payload and payload[0] == EVENT_TAG:
            self._on_event(payload, over_lane)
        self.send_response(payload, over_lane)

    def send_response(self, payload: bytes, over_lane: bool = False) -> None:
        """Sends a response to the client. A resumable client gets the response again if it did not arrive."""
        if self.lane is not None:
            self.lane.on_response(payload, over_lane)
            if self.sink is not None:
                self.sink.count_lane_traffic(0, len(payload))
                if self.replies is not None and self.replies.overrun is not None:
                    self.sink.on_lost(self.replies.overrun, b"")
            return
        if self.replies is not None:
            self.replies.add(payload)
        if self.sink is not None:
            self.sink.on_response(payload)

    def acknowledge(self, received: device_pb2.Received) -> None:
        """Notes the client's acknowledgement of responses and transfer bytes. Raises for impossible numbers."""
        if self.lane is not None:
            self.lane.acknowledge(received.responses)
        elif self.replies is not None:
            self.replies.release(received.responses)
        for progress in received.transfers:
            self.transfers.acknowledge(progress.transfer, progress.bytes)

    def on_received(self, payload: bytes) -> None:
        """Handles an acknowledgement that the client sent over its lane."""
        try:
            request = device_pb2.ExecuteRequest.FromString(payload)
            if request.WhichOneof("kind") != "received":
                raise malformed("A message on a lane is neither `batch` nor `received`.", _LANE_FIX)
            self.acknowledge(request.received)
        except DecodeError as error:
            self._end_sink(malformed(f"A message on a lane is not a valid ExecuteRequest: {error}.", _LANE_FIX))
        except Refusal as refusal:
            self._end_sink(refusal)

    def _end_sink(self, refusal: Refusal) -> None:
        if self.sink is not None:
            self.sink.on_lost(refusal, b"")

    def _on_non_batch(self, over_lane: bool) -> None:
        """Removes a message that was no batch from the window, and notifies the sink."""
        if not over_lane:  # messages over the lane do not count in this window
            self.batches.drop_non_batch()
            if self.sink is not None:
                self.sink.on_room()

    def _on_event(self, payload: bytes, over_lane: bool) -> None:
        event = device_pb2.ExecuteResponse.FromString(payload).event
        kind = event.WhichOneof("kind")
        if kind == "protocol_error":
            self._on_non_batch(over_lane)
        elif kind == "output" and self.sink is None:
            self._unsent_output.append(event.output.text)
            if self.replies is None:
                self.log_unsent_output()

    def log_unsent_output(self) -> None:
        """Logs the kernel output that could not be sent because the session has no Execute stream."""
        for text in self._unsent_output:
            log.info("kernel_output", session=self.session_id, text=text[:_LOGGED_CHARACTERS], characters=len(text))
        self._unsent_output.clear()

    def attach_sink(self, sink: ResponseSink) -> None:
        """Attaches the client's Execute stream as the sink.

        Kernel output that was kept for the log is dropped, because a resuming client receives it with the kept
        responses.
        """
        self.sink = sink
        self._unsent_output.clear()

    def status(self) -> device_pb2.AttachmentStatusResponse:
        """Returns the state of the attachment, for a client that asks because it waits for an answer."""
        sink, replies = self.sink, self.replies
        if sink is None or replies is None or self.loss is not None:
            return device_pb2.AttachmentStatusResponse()
        is_exact = self.lane is None and not sink.holds_batches
        return device_pb2.AttachmentStatusResponse(
            known=True,
            lane=self.lane is not None,
            last_seq=self.batches.last if is_exact else None,
            responses=replies.total,
        )

    async def wait_until_executed(self) -> None:
        """Returns when all batches have been executed. Raises the loss if the device process is lost."""
        if self.loss is None:
            await self.batches.wait_until_empty()
        if self.loss is not None:
            raise self.loss

    # ---- lane ----

    @property
    def has_lane(self) -> bool:
        """True if the client is attached and uses a lane."""
        return self.lane is not None and self.sink is not None

    def open_lane(self, bounds: dict[str, int], connection: int) -> None:
        """Hands a client's connection to the device process as its lane.

        Raises OSError if the connection cannot be handed over.
        """
        assert self.replies is not None
        lane = LaneMirror(self.link, self.number, self.batches, self.replies)
        self.link.give("lane", {"channel": self.number, **bounds}, connection)
        self.lane = lane

    def on_lane_unused(self, reason: str) -> None:
        """Notes that the device process has dropped the lane before any batch arrived over it."""
        if self.lane is not None and self.sink is not None:
            self.sink.on_lane_unused(reason)

    async def end_lane(self) -> bool:
        """Has the device process close the lane, if the channel has one.

        Returns after all copies of responses have arrived or the device process is lost; True if a batch was sent over
        the lane. Until `leave_lane` is called, nothing else of the channel changes.
        """
        used = False
        lane: LaneMirror | None = None
        while self.lane is not None and self.lane is not lane and self.loss is None:
            lane = self.lane
            used = await lane.end()
        return used

    async def take_lane_back(self) -> list[bytes]:
        """Takes the lane back from a client that stopped using it before it was live.

        Returns the responses that the client has not received. Raises if the client has sent a batch over the lane, and
        raises the loss.
        """
        lane = self.lane
        used = await self.end_lane()
        if self.loss is not None:
            raise self.loss
        if used:
            raise malformed("A batch arrived on the Execute stream of a client that has a lane.", _LANE_FIX)
        if lane is None or self.lane is not lane:  # another stream has the channel
            return []
        self.leave_lane()
        return lane.unsent()

    def leave_lane(self) -> None:
        """Returns to the Execute stream. Responses that the client has not received are then among `replies`."""
        if self.lane is not None:
            self.lane = None
            if self.replies is not None:
                self.replies.assign_numbers()

    # ---- calls ----

    async def call(self, command: commands_pb2.Command) -> commands_pb2.Result:
        """Executes one command and returns its result, which may be an error.

        Raises the loss, or the refusal with which the channel was ended: a device process does not answer a call that
        arrives after CLOSE.
        """
        if self.refusal is not None:
            raise self.refusal
        self.calls += 1
        try:
            return await self.link.call(self.number, command)
        finally:
            self.calls -= 1

    # ---- end ----

    def end(self, refusal: Refusal, event: bytes = b"") -> None:
        """Ends the Execute stream and the transfers with `refusal`; the channel itself stays until it is closed."""
        if self.lane is not None and event:
            self.lane.add_unnumbered(event)
            event = b""
        elif event and self.replies is not None:
            self.replies.add(event)
        if self.sink is not None:
            self.sink.on_lost(refusal, event)
        self.transfers.end(refusal)

    async def close(self, refusal: Refusal) -> None:
        """Frees everything that the session holds on the device. Returns when the device process has confirmed that."""
        self.end(refusal)
        if self.alive:
            self.link.close_channel(self.number)
            await asyncio.shield(self._closed)

    def on_closed(self) -> None:
        """Called by the link when the device process has confirmed `Link.close_channel`. Ends the wait of `close`."""
        self._finish()
        self.log_unsent_output()
        self.loss = self.loss or Refusal(Reason.SESSION_EXPIRED, "The session has been closed on this device.")

    def on_lost(self, loss: Refusal, event: bytes) -> None:
        """Called by the link when the device process is lost: every later call raises `loss`.

        `event`: the serialized response that the client gets last, or empty.
        """
        self.loss = loss
        self.loss_reported = self.calls > 0
        self.end(loss, event)
        self._finish()

    def _finish(self) -> None:
        self.batches.clear()
        if not self._closed.done():
            self._closed.set_result(None)
