"""A collective operation and the parts of it that ranks have presented. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

GROUP = "group:"


class RankLocation(NamedTuple):
    """The device process that a rank is in."""

    node: int
    """0: this daemon's; others: as in the members of a group over daemons, and only together with its owner unique."""
    device: int
    process: int
    """Generation of the process: a device has several, one after another and for different sessions."""


def place_name(where: RankLocation | int) -> str:
    """`device 1`, `device 0 of node 1`, `node 1`."""
    if isinstance(where, int):
        return f"node {where}"
    return f"device {where.device}" + (f" of node {where.node}" if where.node else "")


def group_name(group: str, members: Sequence[int]) -> str:
    """`group [0, 1]`, or `group 3f2a9c01 of 2 ranks` over daemons."""
    return f"group {group[:8]} of {len(members)} ranks" if group else f"group {list(members)}"


class DeviceMessage(NamedTuple):
    """A COLLECTIVE frame for one device process."""

    place: RankLocation
    body: dict[str, Any]


class MatchKey(NamedTuple):
    """Names an operation."""

    owner: str
    """A session's id, or ``group:<hex>`` for a group over daemons."""
    members: tuple[int, ...]
    """Members in rank order: ordinals of devices; of a group over daemons, the ranks 0 to n - 1."""
    sequence: int

    @property
    def group(self) -> str:
        """The group's id in hex; empty for devices of this daemon."""
        return self.owner.removeprefix(GROUP) if self.owner.startswith(GROUP) else ""

    @property
    def scope(self) -> str:
        """The owner of its communicators: those of local devices are shared by all sessions of their processes."""
        return self.owner if self.group else ""

    @property
    def title(self) -> str:
        """Name of the operation in messages: `Operation 3 of group [0, 1]`."""
        return f"Operation {self.sequence} of {group_name(self.group, self.members)}"

    def name(self, rank: int) -> str:
        """`device 3`, or `rank 1`."""
        return f"rank {rank}" if self.group else f"device {self.members[rank]}"

    def names(self, ranks: Iterable[int]) -> str:
        """`devices 0, 3`, or `ranks 0, 1`."""
        return f"{'ranks' if self.group else 'devices'} {self.numbers(ranks)}"

    def numbers(self, ranks: Iterable[int]) -> str:
        """Returns the ranks as details name them: ordinals, or the ranks of a group over daemons."""
        return ", ".join(str(self.members[rank]) for rank in sorted(ranks))

    def address(self) -> dict[str, Any]:
        """Returns its key in the device process, without the channel."""
        return {"group": self.group, "devices": [] if self.group else list(self.members), "sequence": self.sequence}


class Presentation(NamedTuple):
    """The part of one rank in an operation, as presented."""

    place: RankLocation
    channel: int
    """The number of its session's channel, in its process."""
    operations: list[dict[str, Any]]

    @classmethod
    def of(cls, place: RankLocation, body: Mapping[str, Any]) -> Presentation:
        """Raises KeyError, TypeError or ValueError for what is none."""
        signature = body["signature"]
        operations = [signature] if isinstance(signature, dict) else list(signature)
        if not all(isinstance(operation, dict) for operation in operations):
            raise TypeError("an operation is no object")
        return cls(place, int(body["channel"]), operations)


@dataclass(slots=True)
class Match:
    """An operation and the parts of it that have been presented, by rank."""

    key: MatchKey
    deadline: float
    parts: dict[int, Presentation] = field(default_factory=dict)
    behind: set[MatchKey] = field(default_factory=set)
    """Operations that it stands behind on some rank."""

    @property
    def missing(self) -> list[int]:
        """Ranks that have not presented."""
        return [rank for rank in range(len(self.key.members)) if rank not in self.parts]

    @property
    def places(self) -> tuple[RankLocation, ...]:
        """The places of all ranks, in their order; only when none is missing."""
        return tuple([self.parts[rank].place for rank in range(len(self.key.members))])
