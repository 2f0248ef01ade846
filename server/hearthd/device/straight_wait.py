"""Who waits for a batch that went straight through, and is answered before the books are closed on it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hearthd.device.context import Device
from hearthd.device.lane import Lane
from hearthd.device.operation import Origin, Replies
from hearthd.device.outbox import ACK
from hearthd.device.policy import plain_batch
from hearthd.device.policy.plain_batch import PlainBatch
from hearthd.device.session import BatchEntry, Session
from hearthd.device.stream import LogicalStream
from hearthd.device.waits import answer_with


class Wait:
    """A Sync whose batch has run. Its ack is sent with its answer, unless that takes its time."""

    __slots__ = ("_answer", "_batch", "_began", "_device", "_index", "_lane", "_origin", "_replies", "_seq", "_session",
                 "_stream", "over")  # fmt: skip

    def __init__(
        self,
        device: Device,
        replies: Replies,
        lane: Lane | None,
        session: Session,
        stream: LogicalStream,
        batch: PlainBatch,
        seq: int,
        index: int,
    ) -> None:
        self._device = device
        self._replies = replies
        self._lane = lane
        self._session = session
        self._stream = stream
        self._batch = batch
        self._seq = seq
        self._index = index
        self._answer = plain_batch.done(batch.request)
        self._origin: Origin | None = None
        self._began = time.perf_counter_ns()
        self.over = False

    def end(self) -> None:
        """What it waited for is done."""
        self.over = True
        device, stream = self._device, self._stream
        failed: Iterable[LogicalStream] = ()
        if self._batch.all_streams:
            failed = self._session.streams.marked
        elif stream.errors:
            failed = (stream,)
        if failed or device.output.suspects:
            if self._origin is None:
                self.take_its_time()
            assert self._origin is not None
            answer_with(self._origin, failed)
        elif self._origin is not None:
            device.outbox.now(self._session.channel, self._answer, not stream.track.pending)
        elif self._lane is not None:
            device.outbox.straight(self._lane, self._seq, self._answer)
        else:
            device.outbox.straight_linked(self._session.channel, self._seq, self._answer)
        device.telemetry.sync_wait.observe(time.perf_counter_ns() - self._began)

    def take_its_time(self) -> None:
        """The long way from here on: others may come between."""
        session = self._session
        self._device.outbox.put(ACK, channel=session.channel, id=self._seq)
        self._origin = Origin(
            self._replies,
            session,
            self._stream,
            "sync",
            batch=BatchEntry(self._seq),
            index=self._index,
            request=plain_batch.number(self._batch.request),
        )
