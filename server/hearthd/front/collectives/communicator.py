"""A communicator: its ranks, its waiting operations, and the progress of each rank."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, RankLocation

REMEMBERED = 1024
"""Maximum number of operations under way whose keys one communicator remembers."""

Identity = tuple[str, tuple[RankLocation, ...], bool]
"""The owner (empty: all sessions that share the processes), the locations of the ranks, and True for copies."""

COPY = {"transport": "copy"}
"""Fields of the messages about a communicator of copies that the ranks' processes need to create it."""


@dataclass
class Communicator:
    """A communicator of one sequence of locations. Its ranks must join before it runs operations."""

    id: str
    """Unique across daemons."""
    key: MatchKey
    """The key of the operation for which the communicator was created."""
    locations: tuple[RankLocation, ...]
    deadline: float
    """Time by which all ranks must have joined."""
    copies: bool = False
    """True for a communicator of copies between two devices; see `Match.is_copy`."""
    unique_id: str = ""
    joined: set[int] = field(default_factory=set)
    """The ranks that have joined."""
    queue: deque[Match] = field(default_factory=deque)
    """Complete operations that wait until all ranks have joined."""
    launched: int = 0
    """Number of operations for which `go` was sent to all ranks."""
    done: list[int] = field(default_factory=list)
    """Number of launched operations that each rank has finished."""
    in_flight: deque[tuple[int, MatchKey]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Index and key of the operations that at least one rank has not finished."""
    users: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """Owner and members of each group that has used the communicator."""

    @property
    def is_ready(self) -> bool:
        """True if all ranks have joined."""
        return len(self.joined) == len(self.locations)

    @property
    def is_idle(self) -> bool:
        """True if all ranks have joined, and have finished all operations that were launched."""
        return self.is_ready and min(self.done) == self.launched

    @property
    def identity(self) -> Identity:
        """The owner, the locations and the transport, which together identify at most one communicator."""
        return self.key.scope, self.locations, self.copies

    @property
    def transport(self) -> dict[str, Any]:
        """The fields of `create_id` and `join` that name the transport; empty for the backend's collectives."""
        return COPY if self.copies else {}

    def frame(self, op: str, rank: int, /, **fields: Any) -> DeviceMessage:
        """Returns the message `op` to a rank about this communicator, with `fields` added."""
        return DeviceMessage(self.locations[rank], {"op": op, "comm": self.id, "group": self.key.group, **fields})
