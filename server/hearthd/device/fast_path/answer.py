"""Answers of inline copies and reads. Each answer is sent on completion, before the accounting."""

from __future__ import annotations

from abc import abstractmethod

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.operation import ReplySink
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.pending_outcomes import Callback
from hearthd.device.streams.stream_pool import NEVER, PooledStream


class InlineAnswer:
    """The pending answer of one inline command.

    The acknowledgement of the batch is sent together with the answer, unless the answer is delayed.
    """

    __slots__ = (
        "_acknowledged",
        "_batch",
        "_device",
        "_follower",
        "_replies",
        "_request",
        "_stream",
        "is_done",
        "refusal",
        "size",
    )

    name = ""
    """Name of the command in failures."""

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        batch: InlineBatch,
        stream: LogicalStream,
        request: bytes,
        size: int,
    ) -> None:
        """`request` is the command's request number, as an encoded varint.

        `size` is the number of bytes that are copied.
        """
        self._device = device
        self._replies = replies
        self._batch = batch
        self._stream = stream
        self._request = request
        self._acknowledged = False
        """True once the acknowledgement has been sent."""
        self._follower: Callback | None = None
        """Callback that is called after the answer; used by a Sync that waits for nothing else."""
        self.is_done = False
        self.size = size
        """Number of bytes that are copied."""
        self.refusal: Refusal | None = None
        """The error because of which the driver did not accept the whole copy; None if it did."""

    @abstractmethod  # Checked by mypy only: `isinstance` with an ABC would cost more in every inline sync.
    def _release(self) -> None:
        """Releases the host memory of the command. The device must have finished with it."""

    @property
    def track(self) -> PooledStream:
        """The track that the copy runs on."""
        return self._stream.track

    def follow(self, callback: Callback) -> bool:
        """Calls `callback` as soon as this command is answered, so that one message carries both answers.

        Returns False if the command already has a follower, or is over.
        """
        if self.is_done or self._follower is not None:
            return False
        self._follower = callback
        return True

    def _send(self, answer: bytes) -> None:
        device, batch = self._device, self._batch
        channel = batch.session.channel
        if device.output.suspects:
            device.output.settle(channel)
        if self._acknowledged:
            device.outbox.now(channel, answer, self._follower is None and not self._stream.track.pending)
        else:
            batch.answer(device.outbox, answer)
        if self._follower is not None:
            self._follower()

    def delay_answer(self) -> None:
        """Acknowledges the executed batch ahead of the answer, so that other frames may be sent in between."""
        self._acknowledged = True
        self._batch.acknowledge(self._device.outbox)

    def fail(self, refusal: Refusal) -> None:
        """Answers with a refusal. The part of the copy that the driver accepted may still be under way."""
        self.is_done = True
        self._device.tracks.on_complete(self._stream.track, self._release)
        self._batch.origin(self._replies, self._stream, self.name, self._request).fail(refusal)
        self.delay_answer()


def latest(track: PooledStream, position: int) -> InlineAnswer | None:
    """Returns the inline command that ends together with all work on the track, or None.

    `position` is the track's last position.
    """
    if not track.pending or track.pending[-1][0] != position:  # the track has later work
        return None
    command = getattr(track.pending[-1][2], "__self__", None)
    return command if isinstance(command, InlineAnswer) else None


def is_unobstructed(device: DeviceContext, stream: LogicalStream, buffer: Buffer, offset: int, size: int) -> bool:
    """True if a copy of these bytes of the buffer involves no error of an earlier command, and needs no time slice."""
    return not (
        stream.starting
        or buffer.failure is not None
        or buffer.lost is not None
        or offset + size > buffer.size
        or stream.track.slice_limit != NEVER
        or device.tracks.pending_outcomes.open
    )
