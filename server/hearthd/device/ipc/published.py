"""Published buffer in one process, and the check whether a buffer can be published."""

from __future__ import annotations

from collections.abc import Callable

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2
from hearthd.device.memory.shared_ownership import SharedAllocation, is_lent
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import POINTERS, Buffer, ReadOnly
from hearthd.device.session.session import BatchEntry, DeviceSession

ATTACHED = ReadOnly("is attached, and an attached published buffer is read-only", "write to a copy of it")


class PublishedBuffer:
    """A published buffer, as seen by this process."""

    __slots__ = ("allocation", "buffer", "number", "publisher", "size", "waiting")

    allocation: SharedAllocation
    """Allocation that the next attachment uses."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.publisher: DeviceSession | None = None
        """Session of the publisher; None if the publisher is in another process, or has ended."""
        self.buffer: Buffer | None = None
        """The publisher's buffer; None if the publisher is in another process."""
        self.waiting: list[tuple[int, int]] = []
        """(call, file number) of the exports that wait until the memory can be mapped."""


class FrontReplies:
    """Reply sink for operations on behalf of the front: answers are sent to the front instead of the client."""

    def __init__(self, refuse: Callable[[int, Refusal], None] = lambda call, refusal: None) -> None:
        self._refuse = refuse

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        """Passes the refusal in `result` to `refuse`, with the number of the front's request."""
        self._refuse(call, from_status(result.error))

    def done(self, session: DeviceSession, call: int, request: int) -> None:
        """Has no effect: an operation that succeeds answers the front itself."""
        ...

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None:
        """Has no effect: the operation belongs to no batch."""
        ...

    def failed(self, origin: Origin, refusal: Refusal) -> None:
        """Has no effect: the operation is not counted among the failed commands of clients."""
        ...

    def waited(self, nanoseconds: int) -> None:
        """Has no effect: the operation is not counted among the commands of clients."""
        ...


def check_publishable(buffer: Buffer) -> None:
    """Raises Refusal if the buffer cannot be published, or not at present."""
    buffer.range(0, 0, "publish")
    if buffer.read_only is ATTACHED:
        problem, fix = ATTACHED.why, "publish a copy of it"
    elif buffer.read_only is POINTERS:
        problem, fix = "contains addresses, which other sessions cannot use", "publish the arrays that it points to"
    elif buffer.read_only is not None:
        problem, fix = buffer.read_only.why, "unpublish it first, or publish a copy"
    elif is_lent(buffer):
        problem, fix = "is, or was, exported to another process, which may write to it", "publish a copy of it"
    elif buffer.module is not None:
        problem, fix = "is a variable of a module", "copy it to an array, and publish that"
    elif buffer.holders:
        users = "graphs, prepared lists, tensor maps or arrays of pointers"
        problem = f"is used by {buffer.holders} {users}, which may write to it"
        fix = "publish it before they are made, or destroy them first"
    else:
        return
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        f"buffer {buffer.handle} cannot be published: it {problem}",
        fix=fix,
        details={"buffer": buffer.handle, "holders": buffer.holders},
    )


def closed() -> Refusal:
    """Returns the refusal of a request of the front for a session that has been closed."""
    return Refusal(Reason.SESSION_EXPIRED, "the session was closed before", fix="open a new one")


def ended_refusal() -> Refusal:
    """Returns the refusal of a request for a publication that has ended."""
    return Refusal(Reason.NOT_PUBLISHED, "it is no longer published", fix="have it published again")
