"""Ranks as the daemon numbers them, and the order in which operations are presented.

The daemon matches what the ranks of a `RankOrder` present by number: each device counts its own. A thread that presents
for several devices holds them all meanwhile, so that any two operations have the same order on every device they share.
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
"""Cost of an operation in launches, for the batch threshold. An operation is under way until all ranks have reached it,
so that each batch is under way for long, and several are needed to keep all stages busy."""

Name = tuple[int, ...] | bytes
"""Devices of a session in rank order, or the id of a group over daemons."""


class RankOrder(NamedTuple):
    """The ranks that have to come to an operation, by the name under which the daemon knows them."""

    name: Name
    members: tuple[int, ...]
    """The group's ranks, in the daemon's rank order."""

    def rank(self, member: int) -> int:
        """The rank of the group's member `member` to the daemon."""
        return self.members.index(member)


def in_order(ordinals: Sequence[int]) -> RankOrder:
    """Devices of a session in the order given: for what depends on it."""
    return RankOrder(tuple(ordinals), tuple(range(len(ordinals))))


def sorted_order(ordinals: Sequence[int], among: Iterable[int] | None = None) -> RankOrder:
    """Returns the devices, or the ranks `among` them, in sorted order, which groups that differ only in order share."""
    ranks = range(len(ordinals)) if among is None else among
    members = tuple(sorted(ranks, key=ordinals.__getitem__))
    return RankOrder(tuple(ordinals[rank] for rank in members), members)


_places = itertools.count()


class CollectiveSequence:
    """Collective sequence of one device of a session: number of operations presented under each name, and the lock of
    the thread that presents now."""

    __slots__ = ("_counts", "lock", "place")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.place = next(_places)
        """Position in the order in which several locks are taken."""
        self._counts: dict[Name, int] = {}

    def count(self, name: Name) -> int:
        """Returns the number of operations under `name`, including those this device had no part in. `lock` is held."""
        return self._counts.get(name, 0)

    def take(self, name: Name, number: int) -> None:
        """Records that the device's next operation under `name` has this number. `lock` is held."""
        self._counts[name] = number

    def forget(self, name: Name) -> None:
        """Drops the count of `name`: nothing more is presented under it."""
        with self.lock:
            self._counts.pop(name, None)


@contextmanager
def taken(sequences: Iterable[CollectiveSequence]) -> Iterator[None]:
    """Holds these devices, all sessions' in one order, so that no threads wait in a circle."""
    held: list[threading.Lock] = []
    try:
        for each in sorted(sequences, key=lambda each: each.place):
            each.lock.acquire()
            held.append(each.lock)
        yield
    finally:
        for lock in reversed(held):
            lock.release()


def submit_in_order(
    commands: Sequence[tuple[CollectiveSequence, Attachment, commands_pb2.Command]], order: RankOrder
) -> None:
    """Submits each device's part of one operation of `order`'s ranks, under one number.

    All take their number first: a rank that fails to submit has had its turn as well. And all the same number: a send
    that no rank received leaves its rank ahead of the others, and what they do together later is to meet nonetheless.
    """
    with taken(sequence for sequence, _, _ in commands):
        number = 1 + max((sequence.count(order.name) for sequence, _, _ in commands), default=0)
        for sequence, _, command in commands:
            sequence.take(order.name, number)
            command.collective.sequence = number
        for _, attachment, command in commands:
            attachment.submit(command, WORTH * len(command.collective.operations))
