"""A batch on the inline path, and the channel over which its answer is sent."""

from __future__ import annotations

from typing import NamedTuple

from hearthd.device.fast_path import plain_batch
from hearthd.device.operation import Origin, ReplySink
from hearthd.device.outbox import ACK, LaneSink, Outbox
from hearthd.device.scheduler.backlog import Backlog
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream


class InlineBatch(NamedTuple):
    """A batch of a session that has no other work under way, on a device that no other session uses."""

    session: DeviceSession
    backlog: Backlog
    """The session's backlog."""
    lane: LaneSink | None
    """The lane that the batch came over; None if it came over the link from the front."""
    seq: int
    size: int
    """Size of the batch in bytes."""
    began: int
    """Time at which execution began, in nanoseconds (`time.perf_counter_ns`)."""

    def accept(self) -> None:
        """Accepts the batch: its number becomes the last one of the session."""
        self.session.last_seq = self.seq
        if self.lane is not None:
            self.lane.batch_received(self.seq, self.size)

    def answer(self, outbox: Outbox, answer: bytes) -> None:
        """Sends an answer together with the acknowledgement, over the channel that the batch came over."""
        if self.lane is not None:
            outbox.inline(self.lane, self.seq, answer)
        else:
            outbox.inline_linked(self.session.channel, self.seq, answer)

    def acknowledge(self, outbox: Outbox) -> None:
        """Queues the acknowledgement, so that other frames may be sent before the answer."""
        outbox.put(ACK, channel=self.session.channel, id=self.seq)

    def origin(self, replies: ReplySink, stream: LogicalStream, name: str, request: bytes, index: int = 0) -> Origin:
        """Returns the origin of the command with request number `request` (a varint), for the queued path."""
        return Origin(
            replies,
            self.session,
            stream,
            name,
            batch=BatchEntry(self.seq),
            index=index,
            request=plain_batch.number(request),
        )
