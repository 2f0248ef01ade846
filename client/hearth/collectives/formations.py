"""The groups that the daemons have formed for one `Group` whose devices belong to several sessions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth import telemetry
from hearth.collectives.rendezvous import Formed, form
from hearth.session.collective_order import RankOrder, sorted_order

if TYPE_CHECKING:
    from hearth.session.lease import NodeSession


class Formations:
    """The group of all ranks, and groups of two ranks for sends between them. Thread-safe."""

    def __init__(self, sessions: Sequence[NodeSession], ordinals: Sequence[int], timeout: float) -> None:
        """Forms nothing.

        `sessions` and `ordinals` describe the device of each rank; `timeout`: seconds for forming one group.
        """
        self.formed: list[Formed] = []
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
        if not any(each.id == id and each.coordinator is coordinator for each in self.formed):
            return None
        return next((order.members for order in self._orders.values() if order.name == id), None)

    def leave(self) -> list[bytes]:
        """Leaves all groups, also one that another thread is forming. Blocks. Returns the ids of the groups."""
        self._closed = True
        left = list(self.formed)
        for each in left:
            each.leave()
        return [each.id for each in left]


def _pair(rank: int, peer: int) -> tuple[int, ...]:
    """Returns the key of the group of two ranks, which are all its ranks."""
    return (min(rank, peer), max(rank, peer))


def abandon(formed: list[Formed]) -> None:
    """Leaves groups whose `Group` object was garbage-collected: see `NodeSession.abandon`."""
    for each in formed:
        each.coordinator.run_in_keeper(each.leave)
