"""The link to one device process: frames over a socket, calls and their answers, and the frames of its channels.

Reading never pauses: every queue that it fills is bounded by a window or by credits, so that a slow client never blocks
a device process. Writing has back-pressure through `drain`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import structlog
from google.protobuf.message import DecodeError

from hearth_proto import frames
from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.reasons import Refusal, from_text
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2, status_pb2
from hearthd.front.links.chunk_memory import ChunkMemory
from hearthd.front.links.fd_passing import Descriptors
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.link")

_SMALL = 64 << 10
"""Maximum size, in bytes, of a payload that is copied to the buffer of its header. Longer payloads are written without
a copy."""
_HIGH_WATER = 4 << 20
_encode_json = json.JSONEncoder(separators=(",", ":")).encode
_ANSWERS = (Kind.PONG, Kind.HELD, Kind.RESTORED, Kind.EXPORTED, Kind.IMPORTED, Kind.LANE_ENDED)
"""Kinds of frames that answer an `ask`, identified by their id. With id 0 they are unsolicited, and go to the
listeners."""
_NOTIFICATIONS = (Kind.BUSY, Kind.METER, Kind.SNAPSHOT, Kind.DENIED, Kind.TRACED)
_LANED, _SLOT = int(Flag.LANED), int(Flag.SLOT)
"""Stored as integers, because access to a member of an enumeration would cost 3 us for each frame."""

CollectiveSink = Callable[[int, "DeviceLink", dict[str, Any]], None]


def _on_response(channel: Channel, frame: Frame) -> None:
    is_copy = bool(frame.flags & _LANED)
    if frame.id:
        channel.on_ack(frame.id, is_copy)
    channel.on_response(frame.payload, is_copy)


_CHANNEL_HANDLERS: Mapping[int, Callable[[Channel, Frame], None]] = {
    Kind.ACK: lambda channel, frame: channel.on_ack(frame.id, bool(frame.flags & _LANED)),
    Kind.RESPONSE: _on_response,
    Kind.RECEIVED: lambda channel, frame: channel.on_received(frame.payload),
    Kind.CREDIT: lambda channel, frame: channel.transfers.on_credit(frame.id, frame.flags),
    Kind.ABORT: lambda channel, frame: channel.transfers.on_abort(frame.id, frame.payload),
}
"""Handlers of frames that concern only their channel. Such a frame is ignored if its channel has been closed."""


class DeviceLink(asyncio.Protocol):
    """The front's end of the socket pair to one device process, which exists as long as the process."""

    def __init__(self, ordinal: int, generation: int, on_collective: CollectiveSink | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = loop.create_future()
        """Done when the socket is closed. Its result is the reason; empty for a plain end of file."""
        self.loss: Refusal | None = None
        """The error of all pending calls. None: the device process is running."""
        self.paused = False
        """True while too many bytes wait to be written; see `drain`."""
        self._reader = frames.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._resumed = asyncio.Event()
        """Set for a moment when `paused` becomes False."""
        self.ordinal = ordinal
        self.generation = generation
        self.ready: asyncio.Future[node_pb2.DeviceProperties] = loop.create_future()
        self.fault: asyncio.Future[status_pb2.Status] = loop.create_future()
        self.channels: dict[int, Channel] = {}
        self.on_stats: Callable[[dict[str, Any]], None] = lambda stats: None
        """Called with each report of counters from the device process."""
        self.on_open: Callable[[DeviceLink, int, str], None] = lambda link, channel, session: None
        """Called with the number and the session of each channel that is opened, after OPEN was sent."""
        self.on_last_channel_closed: Callable[[], None] = lambda: None
        """Called when the last channel has been closed."""
        self.on_channel_closing: Callable[[int], None] = lambda channel: None
        """Called for each channel that is being closed. Work of its session may still be running."""
        self.on_channel_closed: Callable[[int], None] = lambda channel: None
        """Called for each channel that was closed, after the process has freed everything of it."""
        self.serves: Callable[[Session], bool] = lambda session: True
        """Returns True if the process serves this session. A vacant process serves none."""
        self._on_collective = on_collective
        self._channel_numbers = itertools.count(1)
        self._request_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}  # answers to `ask`, by id
        self._calls: dict[int, asyncio.Future[commands_pb2.Result]] = {}
        self.device_memory = 0
        """Bytes of device memory that sessions may use, once the process is ready."""
        self.descriptors: Descriptors | None = None
        """The socket over which file descriptors are passed, in addition to the link."""
        self._chunks = ChunkMemory()
        self._listeners: dict[int, list[Callable[[Frame], None]]] = {Kind.LANE_ENDED: [self._on_lane_ended]}
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.RESULT: self._on_result,
            Kind.CHUNK: self._on_chunk,
            Kind.CLOSED: self._on_closed,
            Kind.STATS: self._on_stats,
            Kind.COLLECTIVE: self._on_collective_frame,
            Kind.READY: self._on_ready,
            Kind.FAULT: self._on_fault,
            **dict.fromkeys((*_ANSWERS, *_NOTIFICATIONS), self._on_answer_or_notification),
        }

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets `_HIGH_WATER` as the number of unsent bytes from which `paused` is True. Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Passes each complete frame to `_dispatch`. Abandons the link after bytes that are not valid frames."""
        try:
            for frame in self._reader.feed(data):
                self._dispatch(frame)
        except frames.FrameError as error:
            self.abandon(f"it sent bytes that are not valid frames: {error}")

    def pause_writing(self) -> None:
        """Makes `drain` wait. Called by asyncio above `_HIGH_WATER` unsent bytes."""
        self.paused = True

    def resume_writing(self) -> None:
        """Ends the wait of all callers of `drain`. Called by asyncio, and when the link ends."""
        self.paused = False
        self._resumed.set()
        self._resumed.clear()

    def eof_received(self) -> bool:
        """Returns False, so that asyncio closes the socket."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Completes `closed`, with the reason if the socket failed with another error than a broken pipe."""
        # A process that ends while data is written to it breaks the pipe; the cause of its end is more informative.
        self._close("" if exc is None or isinstance(exc, ConnectionError) else str(exc))

    # ---- sending ----

    async def drain(self) -> None:
        """Returns when there is room to write. Raises the loss if the device process is gone."""
        while self.paused and self.loss is None:
            await self._resumed.wait()
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

    # ---- requests ----

    def open_channel(self, session: Session) -> Channel:
        """Opens a channel for a session, which is the session's channel on this device from now on."""
        number = next(self._channel_numbers)
        channel = Channel(self, number, session.id, session.tenant.name, session.queue)
        self.channels[number] = channel
        self.send(Kind.OPEN, json.dumps(session.open_payload(self.device_memory)).encode(), channel=number)
        self.on_open(self, number, session.id)
        session.channels[self.ordinal] = channel
        return channel

    def close_channel(self, channel: int) -> None:
        """Closes the channel: the device process frees everything that its session holds there."""
        self.send(Kind.CLOSE, channel=channel)
        self.on_channel_closing(channel)

    def listen(self, kind: Kind, listener: Callable[[Frame], None]) -> None:
        """Registers `listener` for the frames of this kind that do not answer an `ask`."""
        self._listeners.setdefault(kind, []).append(listener)

    async def ask(self, kind: Kind, body: dict[str, Any], channel: int = 0) -> dict[str, Any]:
        """Sends one frame, and returns the JSON that the device process answers.

        Raises the loss if the process ends before.

        A refusal of the device process arrives as ``{"error": <base64 of a Status>}`` and is raised as `Refusal`.
        """
        payload: dict[str, Any] = json.loads(await self._ask(kind, json.dumps(body).encode(), channel))
        if "error" in payload:
            raise from_text(payload["error"])
        return payload

    async def call(self, channel: int, command: commands_pb2.Command) -> commands_pb2.Result:
        """Returns the device's answer to one command. Raises `Refusal` if the device process is lost before it answers.

        If the caller is cancelled (because its deadline has passed, or it has disconnected), a command that has not
        begun is dropped.
        """
        if self.loss is not None:
            raise self.loss
        request_id = next(self._request_ids)
        answer: asyncio.Future[commands_pb2.Result] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = answer
        command.request = request_id
        try:
            self.send(Kind.CALL, command.SerializeToString(), channel=channel, id=request_id)
            await self.drain()
            return await answer
        except asyncio.CancelledError:
            self.send(Kind.CANCEL, channel=channel, id=request_id)
            raise
        finally:
            self._calls.pop(request_id, None)

    @property
    def pending_calls(self) -> int:
        """Number of calls without an answer whose caller still waits."""
        return len(self._calls)

    async def ping(self) -> None:
        """Returns when the device process has answered a ping."""
        await self._ask(Kind.PING)

    async def stats(self) -> dict[str, Any]:
        """Returns the counters and gauges of the device process."""
        stats: dict[str, Any] = await self._ask(Kind.STATS)
        return stats

    async def _ask(self, kind: Kind, payload: bytes = b"", channel: int = 0) -> Any:
        if self.loss is not None:
            raise self.loss
        request_id = next(self._request_ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        try:
            self.send(kind, payload, channel=channel, id=request_id)
            return await answer
        finally:
            self._answers.pop(request_id, None)

    # ---- chunks of downloads ----

    def share_chunks(self, chunk_bytes: int) -> None:
        """Gives the process memory for chunks of up to `chunk_bytes`, so that they need not go through the socket."""
        self._chunks = ChunkMemory.of(chunk_bytes, self.descriptors, self.ordinal)

    # ---- descriptors ----

    @property
    def takes_lanes(self) -> bool:
        """True if a client's connection can be handed to the device process."""
        return self.loss is None and self.descriptors is not None

    def give(self, kind: str, body: dict[str, Any], descriptor: int) -> None:
        """Hands over a client's connection or an open file, with the data in `body`, for the purpose named by `kind`.

        Raises OSError if that is not possible at the moment.
        """
        if self.loss is not None or self.descriptors is None:
            raise ConnectionError("the device process has ended")
        self.descriptors.send(kind, body, [descriptor])

    # ---- received frames ----

    def _dispatch(self, frame: Frame) -> None:
        try:
            if (on_channel := _CHANNEL_HANDLERS.get(frame.kind)) is not None:
                channel = self.channels.get(frame.channel)
                if channel is not None:
                    on_channel(channel, frame)
            elif (handler := self._handlers.get(frame.kind)) is not None:
                handler(frame)
            else:
                log.warning("unknown_frame", device=self.ordinal, kind=frame.kind)
        except Refusal as refusal:  # it concerns one session; the others continue
            log.exception("frame_refused", device=self.ordinal, kind=frame.kind, channel=frame.channel)
            channel = self.channels.get(frame.channel)
            if channel is not None:
                channel.end(refusal)
        except (DecodeError, ValueError) as error:
            self.abandon(f"it sent a frame of kind {frame.kind} that cannot be read: {error}")

    def _on_lane_ended(self, frame: Frame) -> None:
        """Handles the end of a lane that was asked to end, or that ended before a batch arrived over it."""
        channel, body = self.channels.get(frame.channel), json.loads(frame.payload)
        if channel is not None and body.get("unused"):
            channel.on_lane_unused(str(body.get("why", "")))

    def _on_chunk(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        payload = frame.payload
        if frame.flags & _SLOT:
            payload = self._chunks.receive_chunk(payload, self._return_slot)
        if channel is not None:
            channel.transfers.on_chunk(frame.id, payload, frame.flags)

    def _return_slot(self, slot: int) -> None:
        self.send(Kind.SLOTS, id=1 << slot)

    def _on_closed(self, frame: Frame) -> None:
        channel = self.channels.pop(frame.channel, None)
        if channel is not None:
            channel.on_closed()
            if not self.channels:
                self._chunks.release_pages()
                self.on_last_channel_closed()
            self.on_channel_closed(frame.channel)

    def _on_answer_or_notification(self, frame: Frame) -> None:
        answer = self._answers.get(frame.id) if frame.kind in _ANSWERS else None
        if answer is not None:
            if not answer.done():
                answer.set_result(frame.payload)
            return
        for listener in self._listeners.get(frame.kind, ()):
            listener(frame)

    def _on_stats(self, frame: Frame) -> None:
        """Handles a report of counters.

        It is an answer or, with id 0, the last counts of a process that exits after a device fault.
        """
        body = json.loads(frame.payload)
        stats = body if isinstance(body, dict) else {}
        self.on_stats(stats)
        answer = self._answers.get(frame.id)
        if answer is not None and not answer.done():
            answer.set_result(stats)

    def _on_collective_frame(self, frame: Frame) -> None:
        if self._on_collective is not None:
            self._on_collective(self.ordinal, self, json.loads(frame.payload))

    def _on_ready(self, frame: Frame) -> None:
        if not self.ready.done():
            self.ready.set_result(node_pb2.DeviceProperties.FromString(frame.payload))

    def _on_fault(self, frame: Frame) -> None:
        if not self.fault.done():
            self.fault.set_result(status_pb2.Status.FromString(frame.payload))

    def _on_result(self, frame: Frame) -> None:
        answer = self._calls.get(frame.id)
        if answer is not None and not answer.done():  # otherwise the caller was cancelled
            answer.set_result(commands_pb2.Result.FromString(frame.payload))

    # ---- end ----

    def abandon(self, reason: str) -> None:
        """Closes the link because of an error. The supervisor then ends the process."""
        self._close(reason)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        self.resume_writing()
        self._chunks.close()

    def fail(self, loss: Refusal, in_flight: list[str]) -> None:
        """Fails all pending calls and channels of this device process with its loss."""
        if self.loss is not None:
            return
        self.loss = loss
        event = device_pb2.ExecuteResponse(
            event=device_pb2.Event(
                device_lost=device_pb2.DeviceLost(
                    device=self.ordinal, generation=self.generation, status=loss.to_status(), in_flight=in_flight
                )
            )
        ).SerializeToString()
        for future in (*self._calls.values(), *self._answers.values()):
            if not future.done():
                future.set_exception(loss)
                # Marks it as retrieved: a call that waits for room to write gets the loss from `drain`.
                future.exception()
        self._calls.clear()
        self._answers.clear()
        channels, self.channels = list(self.channels.values()), {}
        for channel in channels:
            channel.on_lost(loss, event)
        self.abandon("")
