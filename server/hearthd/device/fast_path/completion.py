"""Sync commands on the inline path. Each is answered on completion, before the accounting."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.fast_path.plain_batch import PlainBatch
from hearthd.device.flows.segment import Segment
from hearthd.device.launch.stream_commands import answer_with
from hearthd.device.operation import Origin, ReplySink
from hearthd.device.session.stream import LogicalStream


class InlineSync:
    """A Sync whose batch has run.

    The acknowledgement is sent together with the answer, unless the answer is delayed.
    """

    __slots__ = ("_answer", "_batch", "_began", "_device", "_index", "_origin", "_plain", "_replies", "_stream",
                 "is_done", "signalled")  # fmt: skip

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        batch: InlineBatch,
        stream: LogicalStream,
        plain: PlainBatch,
        index: int,
    ) -> None:
        """`index` is the index of the Sync in the batch."""
        self._device = device
        self._replies = replies
        self._batch = batch
        self._stream = stream
        self._plain = plain
        self._index = index
        self._answer = plain_batch.done(plain.request)
        self._origin: Origin | None = None
        self._began = time.perf_counter_ns()
        self.is_done = False
        self.signalled: Segment | None = None
        """The segment in which the device signals the end of the work; None without a signal."""

    @property
    def stream(self) -> LogicalStream:
        """The stream that the Sync waits for; if it waits for all streams, any of them."""
        return self._stream

    @property
    def request(self) -> bytes:
        """Request number of the Sync, as an encoded varint."""
        return self._plain.request

    def end(self) -> None:
        """Answers the command, because the work that it waited for is done."""
        self.is_done = True
        device, stream, session = self._device, self._stream, self._batch.session
        failed: Iterable[LogicalStream] = ()
        if self._plain.all_streams:
            failed = session.streams.marked
        elif stream.errors:
            failed = (stream,)
        if failed or device.output.suspects:
            if self._origin is None:
                self.delay_answer()
            assert self._origin is not None
            answer_with(self._origin, failed)
        elif self._origin is not None:
            device.outbox.now(session.channel, self._answer, not stream.track.pending)
        else:
            self._batch.answer(device.outbox, self._answer)
        device.telemetry.sync_wait.observe(time.perf_counter_ns() - self._began)
        if self.signalled is not None:
            self.signalled.drop()

    def delay_answer(self) -> None:
        """Switches to a delayed answer: acknowledges the batch now; other frames may precede the answer."""
        self._batch.acknowledge(self._device.outbox)
        self._origin = self._batch.origin(self._replies, self._stream, "sync", self._plain.request, self._index)
