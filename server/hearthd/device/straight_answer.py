"""What a copy that went straight to the device is answered, as soon as it is done, before the books are closed on
it."""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.buffer import Buffer
from hearthd.device.context import Device
from hearthd.device.lane import Lane
from hearthd.device.operation import Origin, Replies
from hearthd.device.outbox import ACK
from hearthd.device.policy import plain_batch
from hearthd.device.session import BatchEntry, Session
from hearthd.device.stream import LogicalStream
from hearthd.device.tracks import NEVER, Track


class StraightAnswer:
    """Its batch's ack is sent with it, unless that takes its time."""

    __slots__ = (
        "_device",
        "_lane",
        "_replies",
        "_request",
        "_seq",
        "_session",
        "_stream",
        "_told",
        "over",
        "refusal",
        "size",
    )

    name = ""
    """What failures of it say that it is."""

    def __init__(
        self,
        device: Device,
        replies: Replies,
        session: Session,
        lane: Lane | None,
        seq: int,
        stream: LogicalStream,
        request: bytes,
        size: int,
    ) -> None:
        """`request`: the number under which it is answered, as it is written."""
        self._device = device
        self._replies = replies
        self._session = session
        self._lane = lane
        self._seq = seq
        self._stream = stream
        self._request = request
        self._told = False
        """Whether the ack has gone before."""
        self.over = False
        self.size = size
        """Bytes that are copied."""
        self.refusal: Refusal | None = None
        """Why the driver has not taken all of it."""

    def _let_go(self) -> None:
        """The device is done with it."""
        raise NotImplementedError

    @property
    def track(self) -> Track:
        return self._stream.track

    def _send(self, answer: bytes) -> None:
        device, outbox = self._device, self._device.outbox
        channel = self._session.channel
        if device.output.suspects:
            device.output.settle(channel)
        if self._told:
            outbox.now(channel, answer, not self._stream.track.pending)
        elif self._lane is not None:
            outbox.straight(self._lane, self._seq, answer)
        else:
            outbox.straight_linked(channel, self._seq, answer)

    def take_its_time(self) -> None:
        """Others may come between from here on: its batch has been executed, as far as these are concerned."""
        self._told = True
        self._device.outbox.put(ACK, channel=self._session.channel, id=self._seq)

    def fail(self, refusal: Refusal) -> None:
        """It has been refused, or some of it; what the driver took of it is under way."""
        self.over = True
        self._device.tracks.on_complete(self._stream.track, self._let_go)
        origin = Origin(
            self._replies,
            self._session,
            self._stream,
            self.name,
            batch=BatchEntry(self._seq),
            request=plain_batch.number(self._request),
        )
        origin.fail(refusal)
        self.take_its_time()


def untroubled(device: Device, stream: LogicalStream, buffer: Buffer, offset: int, size: int) -> bool:
    """Whether nobody is told of a copy of these bytes of the buffer but who asked, and it need not wait for a turn."""
    return not (
        stream.starting
        or buffer.failure is not None
        or buffer.lost is not None
        or offset + size > buffer.size
        or stream.track.stop != NEVER
        or device.tracks.doubts.open
    )
