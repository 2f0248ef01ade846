"""Operations of this rank that have not been launched: their keys, state, order and messages to the front. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hearth_proto.collectives import PEERED, operation_name
from hearth_proto.reasons import Refusal
from hearthd.device.collectives.parts import CollectivePart
from hearthd.device.session.session import DeviceSession

COPY_PIECE = 16 << 20
"""Number of bytes of a send or receive that weigh as much as one operation: a copy between devices is submitted to the
driver in pieces of about this size."""

MAX_LAUNCHED = 256
"""Limit of operations, each part of a batch counted, that are launched on a track and not known to be done. The driver
blocks a thread that has submitted about a thousand to a few tracks until some are done, and the device-handle thread
must not wait for peers. Further operations are queued here. All ranks launch in the same order, so the first operation
can always complete."""


class OperationKey(NamedTuple):
    """Name of an operation on this device; `group` is empty for a group of this daemon's devices."""

    channel: int
    group: str
    devices: tuple[int, ...]
    sequence: int

    def __str__(self) -> str:
        return f"{operation_name(self.sequence)} of group {self.group or list(self.devices)}"

    def address(self) -> dict[str, Any]:
        """Returns the key as fields of a frame."""
        return {
            "channel": self.channel, "group": self.group, "devices": list(self.devices), "sequence": self.sequence
        }  # fmt: skip


@dataclass(eq=False, slots=True)
class PendingCollective:
    """An operation of this rank that has not been launched; the `Announcement` of its command."""

    present_early: Callable[[PendingCollective, list[PendingCollective]], None]
    """Presents the operation before its turn, ordered after the listed ones. Raises Refusal."""
    session: DeviceSession
    key: OperationKey
    parts: list[CollectivePart]
    seconds: float
    """Time limit from presentation to completion, in seconds."""
    deadline: float = math.inf
    presented: bool = False
    """True if the operation has been presented."""
    scheduled: bool = False
    """True if the operation has been presented, or will be as soon as there is room."""
    predecessors: list[OperationKey] = field(default_factory=list)
    """Earlier operations that this one waits for, and that had not been released when this one was presented."""
    comm: str | None = None
    """The communicator on which the operation may be launched."""
    lane: LaunchOrder | None = None
    index: int = 0
    """Number on that communicator; 0: the front has not given it a number."""
    error: Refusal | None = None

    @property
    def weight(self) -> int:
        """Number of operations, in which a single send or receive counts once for each of its pieces."""
        parts = self.parts
        if len(parts) == 1 and parts[0].kind in PEERED:
            return 1 + parts[0].size // COPY_PIECE
        return len(parts) or 1

    def announce(self, predecessors: Iterable[object]) -> None:
        """Presents the operation before its turn, after other collectives that have been presented.

        A series of collectives then does not cost a round trip to the front for each operation. After any other
        command, an early presentation would not be safe: the front could then prescribe a launch order that one of the
        ranks cannot follow.
        """
        earlier = [predecessor for predecessor in predecessors if isinstance(predecessor, PendingCollective)]
        with suppress(Refusal):  # the error occurs again, and is answered, when the operation's turn comes
            self.present_early(self, earlier)


class LaunchOrder:
    """Launch order of the collectives of one track: the order in which the front releases them.

    A track runs its operations one after the other. If a rank launched an operation before another that its peers have
    launched first, each side would wait for the other. So all devices launch in the order in which the front releases
    the operations, regardless of their communicators.
    """

    __slots__ = ("_queue", "_weight")

    def __init__(self) -> None:
        self._queue: deque[PendingCollective] = deque()
        self._weight = 0

    def enqueue(self, operation: PendingCollective) -> None:
        """Queues an operation that the front has released, after earlier ones."""
        self._queue.append(operation)

    @property
    def head(self) -> PendingCollective | None:
        """The next operation to be launched; None if the queue is empty or the limit leaves no room for it."""
        queue = self._queue
        if not queue or (self._weight and self._weight + queue[0].weight > MAX_LAUNCHED):
            return None
        return queue[0]

    def launched(self, operation: PendingCollective) -> None:
        """Records that the first operation of the queue has been launched."""
        assert self._queue[0] is operation
        self._queue.popleft()
        self._weight += operation.weight

    def done(self, operation: PendingCollective) -> None:
        """Records that a launched operation has ended, successfully or not."""
        self._weight -= operation.weight

    def drop(self, operation: PendingCollective) -> None:
        """Removes an operation that will not be launched."""
        if operation in self._queue:
            self._queue.remove(operation)


class OperationRun:
    """Consecutive equal operations of one group, presented in one message."""

    __slots__ = ("_first", "_signature", "count", "last")

    def __init__(self, first: PendingCollective, signature: list[dict[str, Any]]) -> None:
        self._first = first
        self._signature = signature
        self.last = first.key
        self.count = 1

    def extends(self, pending: PendingCollective, signature: list[dict[str, Any]]) -> bool:
        """True if the operation continues the run.

        Operations of groups over several daemons are each sent as a separate message.
        """
        key, last = pending.key, self.last
        return (
            key.sequence == last.sequence + 1
            and not key.group
            and key.devices == last.devices
            and key.channel == last.channel
            and pending.seconds == self._first.seconds
            and signature == self._signature
            and (not pending.predecessors or pending.predecessors == [last])
        )

    def message(self) -> dict[str, Any]:
        """Returns the message to the front that presents the run.

        `count` is left out for a single operation, and `behind` if the run waits for no other operation.
        """
        first = self._first
        message = {
            "op": "present", **first.key.address(), "signature": self._signature, "timeout": first.seconds
        }  # fmt: skip
        if first.predecessors:
            message["behind"] = [[key.devices, key.sequence] for key in first.predecessors]
        if self.count > 1:
            message["count"] = self.count
        return message
