"""A published buffer in one process, and the check of publishable buffers."""

from __future__ import annotations

from collections.abc import Callable

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2
from hearthd.device.memory.shared_ownership import SharedAllocation, is_lent
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer, ReadOnly
from hearthd.device.session.session import BatchEntry, DeviceSession

ATTACHED = ReadOnly("is attached, and an attached published buffer is read-only", "write to a copy of it")


class PublishedBuffer:
    """A published buffer, as this process has it."""

    __slots__ = ("buffer", "number", "place", "publisher", "size", "waiting")

    place: SharedAllocation
    """Allocation for the next attachment."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.publisher: DeviceSession | None = None
        """Session of the publisher; None: another process's, or it has ended."""
        self.buffer: Buffer | None = None
        """The publisher's buffer."""
        self.waiting: list[tuple[int, int]] = []
        """Call and file of those that wait until it can be mapped."""


class FrontReplies:
    """Reply sink of operations for the front: answers go to the front, not to the client."""

    def __init__(self, refuse: Callable[[int, Refusal], None] = lambda call, refusal: None) -> None:
        self._refuse = refuse

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        self._refuse(call, from_status(result.error))

    def done(self, session: DeviceSession, call: int, request: int) -> None: ...
    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None: ...
    def failed(self, origin: Origin, refusal: Refusal) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...


def check_publishable(buffer: Buffer) -> None:
    """Raises Refusal for what cannot be published, or not now."""
    buffer.range(0, 0, "publish")
    if buffer.read_only is ATTACHED:
        why, fix = ATTACHED.why, "publish a copy of it"
    elif buffer.read_only is not None:
        why, fix = buffer.read_only.why, "unpublish it first, or publish a copy"
    elif is_lent(buffer):
        why, fix = "is, or was, exported to another process, which may write to it", "publish a copy of it"
    elif buffer.module is not None:
        why, fix = "is a variable of a module", "copy it to an array, and publish that"
    elif buffer.holders:
        why = f"is used by {buffer.holders} graphs, prepared lists or tensor maps, which may write to it"
        fix = "publish it before they are made, or destroy them first"
    else:
        return
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        f"buffer {buffer.handle} cannot be published: it {why}",
        fix=fix,
        details={"buffer": buffer.handle, "holders": buffer.holders},
    )


def closed() -> Refusal:
    return Refusal(Reason.SESSION_EXPIRED, "the session was closed before", fix="open a new one")


def gone() -> Refusal:
    return Refusal(Reason.NOT_PUBLISHED, "it is not published any more", fix="have it published again")
