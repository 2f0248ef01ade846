"""Durable buffer: the state of a buffer with copies in host memory, and the refusals for buffers without copies."""

from __future__ import annotations

import json
from collections import deque

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.durable.snapshot_policy import SnapshotAreas
from hearthd.device.outbox import Outbox
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession


class DurableBuffer:
    """A buffer that has copies in host memory. `areas` is None until the front has granted them."""

    __slots__ = ("_outbox", "areas", "buffer", "ended", "key", "queue", "refusal", "session", "writes")

    def __init__(self, outbox: Outbox, key: int, session: DeviceSession, buffer: Buffer) -> None:
        self._outbox = outbox
        self.key = key
        self.session = session
        self.buffer = buffer
        self.areas: SnapshotAreas | None = None
        self.refusal: Refusal | None = None
        """Reason why the front refused the areas; None if it did not."""
        self.queue: deque[object] = deque()
        """Snapshots (`hearthd.device.durable.snapshot.Snapshot`) of the buffer, in the order of the stream; the first
        is under way."""
        self.writes = 0
        """Number of writes to the file, under way, of the buffer's copies."""
        self.ended = False
        buffer.durable = self
        session.durable[buffer.handle] = buffer

    def grant(self, areas: SnapshotAreas) -> None:
        """Sets the areas of the copies."""
        self.areas = areas
        if not self.ended:
            self.session.bytes_durable += 2 * areas.span

    def end(self) -> None:
        """Ends the durability of the buffer, because it is freed or should no longer be durable.

        A second call has no effect.
        """
        if self.ended:
            return
        self.ended = True
        session, handle = self.session, self.buffer.handle
        if session.durable.get(handle) is self.buffer:
            del session.durable[handle]
        if self.areas is not None:
            session.bytes_durable -= 2 * self.areas.span
        self._forget_unused()

    def write_ended(self) -> None:
        """Records that a write of one of the copies has ended."""
        self.writes -= 1
        self._forget_unused()

    def _forget_unused(self) -> None:
        """Makes the front forget the copies, once the durability has ended and no write is under way."""
        if self.ended and not self.writes and self.refusal is None:
            payload = json.dumps({"forget": [self.key]}).encode()
            self._outbox.put(Kind.SNAPSHOT, payload, channel=self.session.channel)


def never_granted(durable: DurableBuffer, refusal: Refusal) -> Refusal:
    """Returns the refusal of a snapshot of a buffer whose SetDurable failed with `refusal`."""
    return Refusal(
        Reason.DEPENDENCY_FAILED,
        f"buffer {durable.buffer.handle} was never made durable: {refusal.message}",
        fix=refusal.fix,
        details={**refusal.details, "buffer": durable.buffer.handle, "cause": refusal.reason},
    )


def not_written(error: OSError) -> Refusal:
    """Returns the refusal of a snapshot whose write to the session's file failed."""
    return Refusal(
        Reason.OUT_OF_MEMORY,
        f"a durable buffer could not be copied to host memory: {error.strerror or error}; the previous copy "
        f"remains valid",
        fix="free host memory, or lower sessions.durable_bytes",
        details={"error": str(error)},
    )


def not_restored(cause: Refusal) -> Refusal:
    """Returns the reason why a durable buffer of a lost process has no memory."""
    return Refusal(
        Reason.BUFFER_LOST,
        f"its device process was lost, and it could not be restored: {cause.message}",
        fix="upload or compute it again",
        details={**cause.details, "cause": cause.reason},
    )
