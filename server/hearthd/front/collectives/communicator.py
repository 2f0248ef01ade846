"""A communicator: its ranks, its waiting operations, and the progress of each rank."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, RankLocation

REMEMBERED = 1024
"""Operations under way of which one communicator knows more than their number."""

Identity = tuple[str, tuple[RankLocation, ...]]
"""The owner (empty: all sessions that share its processes), and the locations of its ranks."""


@dataclass
class Communicator:
    id: str
    """Unique over daemons."""
    key: MatchKey
    """The key of the operation that it was made for."""
    places: tuple[RankLocation, ...]
    deadline: float
    """Time by which it has to be made."""
    unique_id: str = ""
    joined: set[int] = field(default_factory=set)
    """Ranks."""
    queue: deque[Match] = field(default_factory=deque)
    """Complete operations, until it is made."""
    launched: int = 0
    """Number of operations that all ranks were released to run."""
    done: list[int] = field(default_factory=list)
    """The number of them that each rank has finished."""
    flying: deque[tuple[int, MatchKey]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The number and the key of those that some rank has not finished."""
    users: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """Owners and members of what it was used for."""

    @property
    def ready(self) -> bool:
        return len(self.joined) == len(self.places)

    @property
    def idle(self) -> bool:
        return self.ready and min(self.done) == self.launched

    @property
    def identity(self) -> Identity:
        return self.key.scope, self.places

    def frame(self, op: str, rank: int, /, **more: Any) -> DeviceMessage:
        return DeviceMessage(self.places[rank], {"op": op, "comm": self.id, "group": self.key.group, **more})
