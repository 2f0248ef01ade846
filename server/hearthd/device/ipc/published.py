"""Published buffer in one process, and the check whether a buffer can be published."""

from __future__ import annotations

from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.memory.shared_ownership import SharedAllocation, is_lent
from hearthd.device.session.buffer import POINTERS, Buffer, ReadOnly
from hearthd.device.session.session import DeviceSession

ATTACHED = ReadOnly("is attached, and an attached published buffer is read-only", "write to a copy of it")


@dataclass(eq=False, slots=True)
class PublishedBuffer:
    """A published buffer, as seen by this process."""

    allocation: SharedAllocation
    """Allocation that the next attachment uses."""
    publisher: DeviceSession | None = None
    """Session of the publisher; None if the publisher is in another process, or the publication has ended."""
    buffer: Buffer | None = None
    """The publisher's buffer; None if the publisher is in another process."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """(call, file number) of the exports that wait until the memory can be mapped."""


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
