"""Rank orders of collective operations, and the order in which a client presents the operations.

The daemon matches operations presented by the ranks of a `RankOrder` by number: each device numbers its own operations.
A thread that presents an operation for several devices locks all of them meanwhile, so that any two operations have the
same order on every device they share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth_proto.v1 import commands_pb2

WORTH = 16
"""Cost of one collective operation, in launches, for the batch threshold. An operation is in flight until all ranks
have reached it, so its batch is in flight for long too, and several batches are needed to keep all stages busy."""

Name = tuple[int, ...] | bytes
"""Name of a group of ranks: the devices of a session in rank order, or the id of a group over several daemons."""


class RankOrder(NamedTuple):
    """Ranks that take part in an operation, under the `name` by which the daemon knows them."""

    name: Name
    members: tuple[int, ...]
    """The group's members, in the daemon's rank order."""

    def rank(self, member: int) -> int:
        """Returns the daemon's rank of the group's member `member`.

        Args:
            member: Rank in the group.
        """
        return self.members.index(member)


def in_order(ordinals: Sequence[int]) -> RankOrder:
    """Returns a rank order of a session's devices for operations whose result depends on the order."""
    return RankOrder(tuple(ordinals), tuple(range(len(ordinals))))


def sorted_order(ordinals: Sequence[int], among: Iterable[int] | None = None) -> RankOrder:
    """Returns a rank order of the devices sorted by ordinal, or of the members `among` them.

    Groups that differ only in the order of their devices share it.

    Args:
        ordinals: Ordinals of the group's devices, by rank in the group.
        among: Ranks in the group that take part; None: all.
    """
    ranks = range(len(ordinals)) if among is None else among
    members = tuple(sorted(ranks, key=ordinals.__getitem__))
    return RankOrder(tuple(ordinals[rank] for rank in members), members)


_lock_positions = itertools.count()


class CollectiveSequence:
    """Numbering of one device's collective operations within a session.

    Holds the count under each name, and the lock that a thread holds while it presents an operation.
    """

    __slots__ = ("_counts", "lock", "lock_position")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock_position = next(_lock_positions)
        """Position of this lock in the global order in which several locks are acquired."""
        self._counts: dict[Name, int] = {}

    def count(self, name: Name) -> int:
        """Returns the number of operations under `name`, including those in which this device did not take part.

        The caller holds `lock`.

        Args:
            name: Name of a group of ranks.
        """
        return self._counts.get(name, 0)

    def record(self, name: Name, number: int) -> None:
        """Records `number` as the device's latest operation under `name`. The caller holds `lock`.

        Args:
            name: Name of a group of ranks.
            number: Number of the operation; the first is 1.
        """
        self._counts[name] = number

    def forget(self, name: Name) -> None:
        """Drops the count of `name`, under which nothing more is presented. Acquires `lock`.

        Args:
            name: Name of a group of ranks.
        """
        with self.lock:
            self._counts.pop(name, None)


@contextmanager
def hold_locks(sequences: Iterable[CollectiveSequence]) -> Iterator[None]:
    """Holds the locks of `sequences`. All sessions acquire them in the same order, so that no deadlock is possible."""
    locks: list[threading.Lock] = []
    try:
        for sequence in sorted(sequences, key=lambda sequence: sequence.lock_position):
            sequence.lock.acquire()
            locks.append(sequence.lock)
        yield
    finally:
        for lock in reversed(locks):
            lock.release()


def submit_in_order(
    commands: Sequence[tuple[CollectiveSequence, Attachment, commands_pb2.Command]], order: RankOrder
) -> None:
    """Submits each device's part of one operation of the ranks of `order`, all under the same number.

    All devices take their number before anything is submitted, so that a device whose submission fails has used its
    number as well. The number is one more than the largest count among the devices, so that the next operation matches
    even after a call that was interrupted while the devices took their number.

    Args:
        commands: Each device's numbering, attachment and command, whose `collective.sequence` is set here.
        order: Ranks that take part in the operation.
    """
    with hold_locks(sequence for sequence, _, _ in commands):
        number = 1 + max((sequence.count(order.name) for sequence, _, _ in commands), default=0)
        for sequence, _, command in commands:
            sequence.record(order.name, number)
            command.collective.sequence = number
        for _, attachment, command in commands:
            attachment.submit(command, WORTH * len(command.collective.operations))
