"""One session on one device process: its Execute stream, its transfers, its end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, device_pb2, status_pb2
from hearthd.front.transfers import Download, Transfer, Upload
from hearthd.front.wire import Link

log = structlog.get_logger("hearthd.channel")

EVENT_TAG = 0x22
"""First byte of an ExecuteResponse that carries an event: field 4, length-delimited."""
_LOGGED_CHARACTERS = 16 << 10
_REMEMBERED_ABORTS = 256
"""Transfers that the device gave up before their stream came; a later stream of such a transfer ends at once."""


class ResponseSink(Protocol):
    """The Execute stream of a channel."""

    def on_response(self, payload: bytes) -> None: ...

    def on_ack(self, seq: int) -> None: ...

    def on_lost(self, refusal: Refusal, event: bytes) -> None:
        """The channel is over: `event` (may be empty) is the last message, then the stream ends with `refusal`."""


class Channel:
    """A session's place in a device process."""

    def __init__(self, link: Link, number: int, session_id: str) -> None:
        self.link = link
        self.number = number
        self.session_id = session_id
        self.sink: ResponseSink | None = None
        self.last_seq = 0
        """The last batch that the device process has been given; the next Execute stream goes on from there."""
        self._left_over = 0
        """The number of the last batch of an ended Execute stream, while that is not yet executed."""
        self.calls = 0
        self.loss: Refusal | None = None
        self.told = False
        """Whether a single call has been answered with the loss; the first one after it is, so that a launch that
        took the device with it cannot be followed by a Sync that knows nothing of it."""
        self._transfers: dict[int, Transfer] = {}
        self._aborted: OrderedDict[int, Refusal] = OrderedDict()
        self._settled: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        return self.loss is None and not self._closed.done()

    # ---- Execute ----

    def send_batch(self, payload: bytes) -> None:
        self.link.send(Kind.BATCH, payload, channel=self.number)

    def on_ack(self, seq: int) -> None:
        self.last_seq = max(self.last_seq, seq)
        if self._left_over:
            if seq >= self._left_over:
                self._left_over = 0
                self._wake()
        elif self.sink is not None:
            self.sink.on_ack(seq)

    def on_response(self, payload: bytes) -> None:
        if self.sink is not None:
            self.sink.on_response(payload)
        elif payload and payload[0] == EVENT_TAG:
            self._log_output(payload)

    def _log_output(self, payload: bytes) -> None:
        """What kernels of a session without an Execute stream print goes to the log; other responses go nowhere."""
        event = device_pb2.ExecuteResponse.FromString(payload).event
        if event.WhichOneof("kind") == "output":
            text = event.output.text
            log.info("kernel_output", session=self.session_id, text=text[:_LOGGED_CHARACTERS], characters=len(text))

    def detach(self, last_unacked: int) -> None:
        """The Execute stream has ended; `last_unacked` is its last batch if that is not yet executed, else 0."""
        self.sink = None
        self.last_seq = max(self.last_seq, last_unacked)
        self._left_over = last_unacked

    async def settled(self) -> None:
        """Returns when the batches of an earlier Execute stream have been executed, so that no ack is mistaken."""
        try:
            while self._left_over and self.loss is None:
                if self._settled is None or self._settled.done():
                    self._settled = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._settled)
        finally:
            self._left_over = 0
        if self.loss is not None:
            raise self.loss

    # ---- calls ----

    async def call(self, command: commands_pb2.Command) -> commands_pb2.Result:
        """The result of one command, error and all."""
        if self.loss is not None:
            raise self.loss
        self.calls += 1
        try:
            return await self.link.call(self.number, command)
        finally:
            self.calls -= 1

    # ---- transfers ----

    def upload(self, transfer: int) -> Upload:
        flow = Upload(self, transfer)
        self._register(transfer, flow)
        return flow

    def download(self, transfer: int) -> Download:
        flow = Download(self, transfer)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def _register(self, transfer: int, flow: Transfer) -> None:
        if self.loss is not None:
            raise self.loss
        refused = self._aborted.pop(transfer, None)
        if refused is not None:
            raise refused
        if transfer in self._transfers:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"Transfer {transfer} already has a stream.",
                fix="Use each transfer number once.",
                details={"transfer": transfer},
            )
        self._transfers[transfer] = flow

    def forget(self, transfer: int) -> None:
        self._transfers.pop(transfer, None)

    def on_credit(self, transfer: int, credits: int) -> None:
        flow = self._transfers.get(transfer)
        if isinstance(flow, Upload):
            flow.on_credit(credits)

    def on_chunk(self, transfer: int, payload: bytes, flags: int) -> None:
        flow = self._transfers.get(transfer)
        if isinstance(flow, Download):
            flow.on_chunk(payload, flags)

    def on_abort(self, transfer: int, payload: bytes) -> None:
        try:
            refusal = from_status(status_pb2.Status.FromString(payload))
        except DecodeError:
            refusal = Refusal(Reason.TRANSFER_ABORTED, f"The device process gave transfer {transfer} up.")
        flow = self._transfers.get(transfer)
        if flow is not None:
            flow.on_abort(refusal)
            return
        self._aborted[transfer] = refusal
        if len(self._aborted) > _REMEMBERED_ABORTS:
            self._aborted.popitem(last=False)

    # ---- the end ----

    def end(self, refusal: Refusal, event: bytes = b"") -> None:
        """Ends the Execute stream and the transfers with `refusal`; the channel itself stays until it is closed."""
        if self.sink is not None:
            self.sink.on_lost(refusal, event)
        for flow in list(self._transfers.values()):
            flow.on_abort(refusal)

    async def close(self, refusal: Refusal) -> None:
        """Gives back what the session holds; returns when the device process says that all of it is free."""
        self.end(refusal)
        if self.alive:
            self.link.send(Kind.CLOSE, channel=self.number)
            await asyncio.shield(self._closed)

    def on_closed(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self.loss = self.loss or Refusal(Reason.SESSION_EXPIRED, "The session has been closed on this device.")
        self._wake()

    def on_lost(self, loss: Refusal, event: bytes) -> None:
        self.loss = loss
        self.told = self.calls > 0
        self.end(loss, event)
        if not self._closed.done():
            self._closed.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
