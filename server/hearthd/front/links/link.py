"""The link to one device process: pending calls and their answers, and the frames of its channels."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.reasons import Refusal, from_text
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2, status_pb2
from hearthd.front.links.chunk_memory import ChunkMemory
from hearthd.front.links.fd_passing import Descriptors
from hearthd.front.links.frame_socket import FrameSocket
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.link")

_ANSWERS = (Kind.HELD, Kind.RESTORED, Kind.EXPORTED, Kind.IMPORTED, Kind.LANE_ENDED)
"""Frames that answer an `ask` by their id, or come by themselves, with id 0, and go to the listener."""
_NEWS = (Kind.BUSY, Kind.METER, Kind.SNAPSHOT, Kind.DENIED, Kind.TRACED)
_LANED, _SLOT = int(Flag.LANED), int(Flag.SLOT)
"""Looked up once: with a member of an enumeration each frame would take 3 us longer."""

CollectiveSink = Callable[[int, "DeviceLink", dict[str, Any]], None]


class DeviceLink(FrameSocket):
    """The link to one device process, for as long as that lives."""

    def __init__(self, ordinal: int, generation: int, on_collective: CollectiveSink | None = None) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.ordinal = ordinal
        self.generation = generation
        self.ready: asyncio.Future[node_pb2.DeviceProperties] = loop.create_future()
        self.fault: asyncio.Future[status_pb2.Status] = loop.create_future()
        self.channels: dict[int, Channel] = {}
        self.on_stats: Callable[[dict[str, Any]], None] = lambda stats: None
        """Called with each report of the device process's counts."""
        self.on_open: Callable[[DeviceLink, int, str], None] = lambda link, channel, session: None
        """Called for each channel that is opened, after OPEN was sent: its number, its session."""
        self.emptied: Callable[[], None] = lambda: None
        """Called when its last channel has been closed."""
        self.on_leave: Callable[[int], None] = lambda channel: None
        """Called for each channel that is closed; work of its session may still be running."""
        self.on_gone: Callable[[int], None] = lambda channel: None
        """Called for each closed channel when nothing of it is left."""
        self.serves: Callable[[Session], bool] = lambda session: True
        """Returns True if the process serves this session; it serves none while it is vacant."""
        self._on_collective = on_collective
        self._numbers = itertools.count(1)
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}  # to what was asked, by id
        self._calls: dict[int, asyncio.Future[commands_pb2.Result]] = {}
        self.device_memory = 0
        """Bytes that sessions may have of the device, once its process is ready."""
        self.descriptors: Descriptors | None = None
        """The socket beside the link, where open files are handed over."""
        self._chunks = ChunkMemory()
        self._listeners: dict[int, list[Callable[[Frame], None]]] = {Kind.LANE_ENDED: [self._on_lane_ended]}
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.ACK: self._on_ack,
            Kind.RESPONSE: self._on_response,
            Kind.RECEIVED: self._on_received,
            Kind.RESULT: self._on_result,
            Kind.CHUNK: self._on_chunk,
            Kind.CREDIT: self._on_credit,
            Kind.ABORT: self._on_abort,
            Kind.CLOSED: self._on_closed,
            Kind.PONG: self._on_answer,
            Kind.STATS: self._on_stats,
            Kind.COLLECTIVE: self._on_collective_frame,
            Kind.READY: self._on_ready,
            Kind.FAULT: self._on_fault,
            **dict.fromkeys((*_ANSWERS, *_NEWS), self._on_asked),
        }

    # ---- asking ----

    def open_channel(self, opening: dict[str, Any]) -> Channel:
        """Opens a channel for a session; `opening`: the payload of OPEN."""
        number = next(self._numbers)
        channel = Channel(self, number, opening["session"], opening.get("tenant", ""))
        self.channels[number] = channel
        self.send(Kind.OPEN, json.dumps(opening).encode(), channel=number)
        self.on_open(self, number, channel.session_id)
        return channel

    def leave(self, channel: int) -> None:
        """The channel is closed: all that its session has here is to be given back."""
        self.send(Kind.CLOSE, channel=channel)
        self.on_leave(channel)

    def listen(self, kind: Kind, listener: Callable[[Frame], None]) -> None:
        """`listener` takes the frames of this kind that answer no `ask`."""
        self._listeners.setdefault(kind, []).append(listener)

    async def ask(self, kind: Kind, body: dict[str, Any], channel: int = 0) -> dict[str, Any]:
        """The JSON that the device process answers to one frame; raises the loss when it is gone meanwhile.

        What the device process refuses comes as ``{"error": <base64 of a Status>}`` and is raised as `Refusal`.
        """
        payload: dict[str, Any] = json.loads(await self._ask(kind, json.dumps(body).encode(), channel))
        if "error" in payload:
            raise from_text(payload["error"])
        return payload

    async def call(self, channel: int, command: commands_pb2.Command) -> commands_pb2.Result:
        """Returns the device's answer to one command; raises `Refusal` if the device process is lost meanwhile.

        If the caller no longer waits (its deadline has passed, or it has gone), a command that has not begun is
        dropped.
        """
        if self.loss is not None:
            raise self.loss
        ident = next(self._ids)
        answer: asyncio.Future[commands_pb2.Result] = asyncio.get_running_loop().create_future()
        self._calls[ident] = answer
        command.request = ident
        try:
            self.send(Kind.CALL, command.SerializeToString(), channel=channel, id=ident)
            await self.drain()
            return await answer
        except asyncio.CancelledError:
            self.send(Kind.CANCEL, channel=channel, id=ident)
            raise
        finally:
            self._calls.pop(ident, None)

    @property
    def pending_calls(self) -> int:
        """Number of calls whose answer has not come and whose caller still waits."""
        return len(self._calls)

    async def ping(self) -> None:
        """Returns when the device process has answered."""
        await self._ask(Kind.PING)

    async def stats(self) -> dict[str, Any]:
        """The counters and gauges of the device process."""
        stats: dict[str, Any] = await self._ask(Kind.STATS)
        return stats

    async def _ask(self, kind: Kind, payload: bytes = b"", channel: int = 0) -> Any:
        if self.loss is not None:
            raise self.loss
        ident = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[ident] = answer
        try:
            self.send(kind, payload, channel=channel, id=ident)
            return await answer
        finally:
            self._answers.pop(ident, None)

    # ---- chunks of downloads ----

    def share_chunks(self, chunk_bytes: int) -> None:
        """Gives the process memory for chunks of up to `chunk_bytes`, so that they need not go through the socket."""
        self._chunks = ChunkMemory.of(chunk_bytes, self.descriptors, self.ordinal)

    # ---- lanes ----

    @property
    def takes_lanes(self) -> bool:
        """True if a client's connection can be handed to the device process."""
        return self.loss is None and self.descriptors is not None

    def give_lane(self, channel: int, bounds: dict[str, int], connection: int) -> None:
        """Hands a client's connection over. Raises OSError where that cannot be done just now."""
        self.give("lane", {"channel": channel, **bounds}, connection)

    def give(self, kind: str, body: dict[str, Any], connection: int) -> None:
        """Hands a client's connection over, and what the process has to know of it. Raises OSError where that cannot be
        done just now."""
        if self.loss is not None or self.descriptors is None:
            raise ConnectionError("the device process is gone")
        self.descriptors.send(kind, body, [connection])

    async def end_lane(self, channel: int) -> int:
        """The last batch that it has of the channel, its lane being closed and all copies before; raises the loss."""
        return int((await self.ask(Kind.LANE_END, {}, channel))["last"])

    # ---- receiving ----

    def _dispatch(self, frame: Frame) -> None:
        handler = self._handlers.get(frame.kind)
        if handler is None:
            log.warning("unknown_frame", device=self.ordinal, kind=frame.kind)
            return
        try:
            handler(frame)
        except (DecodeError, ValueError) as error:
            self.abandon(f"it sent a frame of kind {frame.kind} that cannot be read: {error}")

    def _on_ack(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is not None:
            channel.on_ack(frame.id, bool(frame.flags & _LANED))

    def _on_response(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is not None:
            if frame.id:
                channel.on_ack(frame.id)
            channel.on_response(frame.payload, bool(frame.flags & _LANED))

    def _on_received(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is not None:
            channel.on_received(frame.payload)

    def _on_lane_ended(self, frame: Frame) -> None:
        """Handles the end of a lane that was asked to end, or that ended before a batch came over it."""
        channel, body = self.channels.get(frame.channel), json.loads(frame.payload)
        if channel is not None and body.get("unused"):
            channel.on_lane_unused(str(body.get("why", "")))

    def _on_chunk(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        payload = frame.payload
        if frame.flags & _SLOT:
            payload = self._chunks.take(payload, self._return_slot)
        if channel is not None:
            channel.on_chunk(frame.id, payload, frame.flags)

    def _return_slot(self, slot: int) -> None:
        self.send(Kind.SLOTS, id=1 << slot)

    def _on_credit(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is not None:
            channel.on_credit(frame.id, frame.flags)

    def _on_abort(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is not None:
            channel.on_abort(frame.id, frame.payload)

    def _on_closed(self, frame: Frame) -> None:
        channel = self.channels.pop(frame.channel, None)
        if channel is not None:
            channel.on_closed()
            if not self.channels:
                self._chunks.rest()
                self.emptied()
            self.on_gone(frame.channel)

    def _on_answer(self, frame: Frame) -> None:
        answer = self._answers.get(frame.id)
        if answer is not None and not answer.done():
            answer.set_result(frame.payload)

    def _on_asked(self, frame: Frame) -> None:
        answer = self._answers.get(frame.id) if frame.kind in _ANSWERS else None
        if answer is not None:
            if not answer.done():
                answer.set_result(frame.payload)
            return
        for listener in self._listeners.get(frame.kind, ()):
            listener(frame)

    def _on_stats(self, frame: Frame) -> None:
        """An answer, or, with id 0, what a process that gives up its device has counted."""
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
        if answer is not None and not answer.done():  # else the caller has gone
            answer.set_result(commands_pb2.Result.FromString(frame.payload))

    # ---- the end ----

    def _close(self, why: str) -> None:
        super()._close(why)
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
                future.exception()  # retrieved: a call that waits for room to write gets it from `drain`
        self._calls.clear()
        self._answers.clear()
        channels, self.channels = list(self.channels.values()), {}
        for channel in channels:
            channel.on_lost(loss, event)
        if self._transport is not None:
            self._transport.abort()
        self._close("")
