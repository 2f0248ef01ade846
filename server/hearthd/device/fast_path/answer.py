"""Answers of inline copies and reads, sent on completion and ahead of accounting."""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.operation import ReplySink
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.pending_outcomes import Callback
from hearthd.device.streams.stream_pool import NEVER, PooledStream


class InlineAnswer:
    """The pending answer of one inline command. The acknowledgement of its batch is sent with it, unless the answer is
    delayed."""

    __slots__ = ("_batch", "_device", "_replies", "_request", "_stream", "_then", "_told", "over", "refusal", "size")

    name = ""
    """What failures of it say that it is."""

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        batch: InlineBatch,
        stream: LogicalStream,
        request: bytes,
        size: int,
    ) -> None:
        """`request`: the number under which it is answered, as it is written."""
        self._device = device
        self._replies = replies
        self._batch = batch
        self._stream = stream
        self._request = request
        self._told = False
        """Whether the ack has gone before."""
        self._then: Callback | None = None
        """Told of its end: who waits for nothing behind it."""
        self.over = False
        self.size = size
        """Bytes that are copied."""
        self.refusal: Refusal | None = None
        """Why the driver has not taken all of it."""

    def _release(self) -> None:
        """The device is done with it."""
        raise NotImplementedError

    @property
    def track(self) -> PooledStream:
        return self._stream.track

    def follow(self, then: Callback) -> bool:
        """Has it called as soon as this is answered, so that both answers go in one message; False where somebody else
        follows, or it is over."""
        if self.over or self._then is not None:
            return False
        self._then = then
        return True

    def _send(self, answer: bytes) -> None:
        device, batch = self._device, self._batch
        channel = batch.session.channel
        if device.output.suspects:
            device.output.settle(channel)
        if self._told:
            device.outbox.now(channel, answer, self._then is None and not self._stream.track.pending)
        else:
            batch.answer(device.outbox, answer)
        if self._then is not None:
            self._then()

    def take_its_time(self) -> None:
        """Others may come between from here on: its batch has been executed, as far as these are concerned."""
        self._told = True
        self._batch.acknowledge(self._device.outbox)

    def fail(self, refusal: Refusal) -> None:
        """It has been refused, or some of it; what the driver took of it is under way."""
        self.over = True
        self._device.tracks.on_complete(self._stream.track, self._release)
        self._batch.origin(self._replies, self._stream, self.name, self._request).fail(refusal)
        self.take_its_time()


def latest(track: PooledStream, position: int) -> InlineAnswer | None:
    """The one at whose end all is done that the track has been given; `position`: that of the last command."""
    if not track.pending or track.pending[-1][0] != position:  # more has been given to it since
        return None
    found = getattr(track.pending[-1][2], "__self__", None)
    return found if isinstance(found, InlineAnswer) else None


def untroubled(device: DeviceContext, stream: LogicalStream, buffer: Buffer, offset: int, size: int) -> bool:
    """Whether nobody is told of a copy of these bytes of the buffer but who asked, and it need not wait for a turn."""
    return not (
        stream.starting
        or buffer.failure is not None
        or buffer.lost is not None
        or offset + size > buffer.size
        or stream.track.stop != NEVER
        or device.tracks.pending_outcomes.open
    )
