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
"""An operation takes the daemon about as long as so many launches, and is under way until all ranks have come to it:
each batch is under way for long, so that several have to be for one stage to work while others do."""

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
    """The same devices, or the ranks `among` them, sorted: groups that differ only in their order share it."""
    ranks = range(len(ordinals)) if among is None else among
    members = tuple(sorted(ranks, key=ordinals.__getitem__))
    return RankOrder(tuple(ordinals[rank] for rank in members), members)


_places = itertools.count()


class CollectiveSequence:
    """One device of a session: how many operations it has presented under each name, and who presents now."""

    __slots__ = ("_counts", "lock", "place")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.place = next(_places)
        """Where it stands in the order in which several are taken."""
        self._counts: dict[Name, int] = {}

    def count(self, name: Name) -> int:
        """How many that were, or would have been had it taken part in all. `lock` is held."""
        return self._counts.get(name, 0)

    def take(self, name: Name, number: int) -> None:
        """Its next operation under `name` has this number. `lock` is held."""
        self._counts[name] = number

    def forget(self, name: Name) -> None:
        """Nothing more is presented under `name`."""
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
