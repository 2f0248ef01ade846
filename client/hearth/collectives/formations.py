"""The groups that the daemons have formed for one `Group` whose devices belong to several sessions."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hearth import telemetry
from hearth.collectives.completion import LastOperation, LastOperations, wait_until_done
from hearth.collectives.rendezvous import LEAVE_S, FormedGroup, form, join_within, start_thread
from hearth.session.collective_order import RankOrder, sorted_order

if TYPE_CHECKING:
    from hearth.session.lease import NodeSession

_COMPLETION_S = 600.0
"""Seconds for which the end of a group waits for the group's operations."""


class Formations:
    """The group of all ranks, and groups of two ranks for sends between them. Thread-safe."""

    def __init__(self, sessions: Sequence[NodeSession], ordinals: Sequence[int], timeout: float) -> None:
        """Forms nothing.

        `sessions` and `ordinals` describe the device of each rank; `timeout`: seconds for forming one group.
        """
        self.formed: list[FormedGroup] = []
        self.last_operations = LastOperations()
        """The last operations of the ranks in each of these groups."""
        self._sessions = sessions
        self._ordinals = ordinals
        self._timeout = timeout
        self._orders: dict[tuple[int, ...], RankOrder] = {}
        """Rank orders of the groups in `formed`, by the ranks in each."""
        self._forming = threading.Lock()
        self._closed = False

    @telemetry.traced("hearth.group", telemetry.of_group)
    def form(self, ranks: tuple[int, ...]) -> RankOrder:
        """Forms a group of several ranks over their daemons. Blocks.

        Args:
            ranks: The ranks, in the order that the group is to have.

        Returns:
            The group's rank order.

        Raises:
            HearthError: An error that `hearth.collectives.rendezvous.form` raises.
        """
        formed = form([(self._sessions[rank], self._ordinals[rank]) for rank in ranks], self._timeout)
        self.formed.append(formed)
        self._orders[ranks] = order = RankOrder(formed.id, ranks)
        if self._closed:  # another thread closed the group meanwhile
            formed.leave()
        return order

    def pair(self, rank: int, peer: int) -> RankOrder:
        """Returns the rank order of a send between two ranks.

        Blocks while it forms a group of the two, if `paired` is False.

        Args:
            rank: One of the ranks.
            peer: The other rank.

        Raises:
            HearthError: An error that `form` raises.
        """
        if self._sessions[rank] is self._sessions[peer]:
            return sorted_order(self._ordinals, (rank, peer))
        pair = _pair(rank, peer)
        with self._forming:
            return self._orders.get(pair) or self.form(pair)

    def paired(self, rank: int, peer: int) -> bool:
        """Returns True if two ranks can send to each other without forming a group first.

        Args:
            rank: One of the ranks.
            peer: The other rank.
        """
        return self._sessions[rank] is self._sessions[peer] or _pair(rank, peer) in self._orders

    def members(self, id: bytes, coordinator: NodeSession) -> tuple[int, ...] | None:
        """Returns the ranks of one of these groups; None if there is no such group.

        Args:
            id: The group's id, which the coordinator's daemon chose.
            coordinator: The session of the group's first rank.
        """
        if not any(formed.id == id and formed.coordinator is coordinator for formed in self.formed):
            return None
        return next((order.members for order in self._orders.values() if order.name == id), None)

    def leave(self, lost: Collection[int] = ()) -> list[bytes]:
        """Leaves all groups, also one that another thread is forming. Returns the ids of the groups.

        A group whose operations are in progress is left when they are done. Blocks for `LEAVE_S` seconds at most; then
        the rest happens in the background.

        Args:
            lost: Ranks that may be unreachable, whose operations and daemons are not waited for.
        """
        self._closed = True
        groups = list(self.formed)
        join_within(LEAVE_S, [self.start_leaving(group, lost) for group in groups])
        return [group.id for group in groups]

    def start_leaving(self, formed: FormedGroup, lost: Collection[int] = ()) -> threading.Thread:
        """Leaves a group in the background, after its operations are done. Does not block.

        Args:
            formed: One of the groups.
            lost: Ranks that may be unreachable.

        Returns:
            The thread that leaves the group.
        """
        operations = self.last_operations.take(formed.id, lost)
        kept = {session for rank, session in enumerate(self._sessions) if rank not in lost}
        return start_thread(partial(_leave_when_done, formed, operations, set(formed.sessions) - kept))


def _leave_when_done(formed: FormedGroup, operations: Sequence[LastOperation], lost: Collection[NodeSession]) -> None:
    wait_until_done(operations, _COMPLETION_S)
    formed.leave(lost)


def _pair(rank: int, peer: int) -> tuple[int, ...]:
    """Returns the key of the group of two ranks, which are all its ranks."""
    return (min(rank, peer), max(rank, peer))


def abandon(formations: Formations) -> None:
    """Leaves groups whose `Group` object was garbage-collected: see `NodeSession.abandon`."""
    for formed in formations.formed:
        formed.coordinator.run_in_keeper(partial(formations.start_leaving, formed))
