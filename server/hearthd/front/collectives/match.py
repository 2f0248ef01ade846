"""A collective operation and the parts of it that ranks have presented. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth_proto.collectives import ITEM_SIZES, MAX_COPY, operation_name

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink

GROUP = "group:"

TRANSFERS = ("send", "recv")
"""Kinds of operations that move data from one rank to another."""


class RankLocation(NamedTuple):
    """The location of a rank: the device process in which it runs."""

    node: int
    """0: this daemon's node. Other numbers are those in the members of a group over daemons, and are unique only
    together with the owner."""
    device: int
    process: int
    """Generation of the process. A device has several processes, successively and for different sessions."""

    @staticmethod
    def of(link: DeviceLink) -> RankLocation:
        """Returns the location of the ranks in a device process of this daemon."""
        return RankLocation(0, link.ordinal, link.generation)


def location_name(location: RankLocation | int) -> str:
    """Returns the name of a location for messages: `device 1`, `device 0 of node 1` or `node 1`."""
    if isinstance(location, int):
        return f"node {location}"
    return f"device {location.device}" + (f" of node {location.node}" if location.node else "")


def group_name(group: str, members: Sequence[int]) -> str:
    """Returns the name of a group for messages.

    It is `group [0, 1]`, or `group 3f2a9c01 of 2 ranks` for a group over daemons.
    """
    return f"group {group[:8]} of {len(members)} ranks" if group else f"group {list(members)}"


class DeviceMessage(NamedTuple):
    """A COLLECTIVE frame for one device process."""

    location: RankLocation
    body: dict[str, Any]


class MatchKey(NamedTuple):
    """The identity of an operation."""

    owner: str
    """The id of a session, or ``group:<hex>`` for a group over daemons."""
    members: tuple[int, ...]
    """Members in rank order: ordinals of devices or, for a group over daemons, the ranks 0 to n - 1."""
    sequence: int

    @property
    def group(self) -> str:
        """The group's id in hexadecimal. Empty for a group of this daemon's devices."""
        return self.owner.removeprefix(GROUP) if self.owner.startswith(GROUP) else ""

    @property
    def scope(self) -> str:
        """The owner of the operation's communicator.

        Empty for local devices, whose communicators all sessions of their processes share.
        """
        return self.owner if self.group else ""

    @property
    def name(self) -> str:
        """The name of the operation for messages: `operation 3 of group [0, 1]`."""
        return f"{operation_name(self.sequence)} of {group_name(self.group, self.members)}"

    @property
    def title(self) -> str:
        """The name of the operation at the beginning of a message."""
        return self.name.capitalize()

    def rank_name(self, rank: int) -> str:
        """Returns the name of a rank: `device 3`, or `rank 1` for a group over daemons."""
        return f"rank {rank}" if self.group else f"device {self.members[rank]}"

    def rank_names(self, ranks: Iterable[int]) -> str:
        """Returns the names of several ranks: `devices 0, 3`, or `ranks 0, 1` for a group over daemons."""
        return f"{'ranks' if self.group else 'devices'} {self.rank_numbers(ranks)}"

    def rank_numbers(self, ranks: Iterable[int]) -> str:
        """Returns the ranks as they appear in details: device ordinals, or the ranks of a group over daemons."""
        return ", ".join(str(self.members[rank]) for rank in sorted(ranks))

    def address(self) -> dict[str, Any]:
        """Returns the fields that identify the operation to a device process, without the channel."""
        return {"group": self.group, "devices": [] if self.group else list(self.members), "sequence": self.sequence}


class Presentation(NamedTuple):
    """The part of one rank in an operation, as the rank presented it."""

    location: RankLocation
    channel: int
    """The number of the session's channel in the rank's process."""
    operations: list[dict[str, Any]]

    @classmethod
    def of(cls, location: RankLocation, body: Mapping[str, Any]) -> Presentation:
        """Returns the part in a `present` message.

        Raises KeyError, TypeError or ValueError if the message is invalid.
        """
        signature = body["signature"]
        operations = [signature] if isinstance(signature, dict) else list(signature)
        if not all(isinstance(operation, dict) for operation in operations):
            raise TypeError("an operation is not an object")
        return cls(location, int(body["channel"]), operations)


@dataclass(slots=True)
class Match:
    """An operation, and the parts of it that ranks have presented."""

    key: MatchKey
    deadline: float
    presentations: dict[int, Presentation] = field(default_factory=dict)
    predecessors: set[MatchKey] = field(default_factory=set)
    """Operations that must run before this one on at least one rank."""

    @property
    def missing(self) -> list[int]:
        """Ranks that have not presented."""
        return [rank for rank in range(len(self.key.members)) if rank not in self.presentations]

    @property
    def is_copy(self) -> bool:
        """True for one send and its receive between two devices of this daemon: a copy between devices.

        Copies have separate communicators, which copy from one device to the other without NCCL. Available only after
        all ranks have presented.
        """
        return (
            not self.key.group
            and len(self.key.members) == 2
            and all(_is_copy(presentation.operations) for presentation in self.presentations.values())
        )

    @property
    def locations(self) -> tuple[RankLocation, ...]:
        """The locations of all ranks, in rank order. Available only after all ranks have presented."""
        return tuple([self.presentations[rank].location for rank in range(len(self.key.members))])


def _is_copy(operations: Sequence[Mapping[str, Any]]) -> bool:
    """Returns True for one send or receive that is not too large for a copy."""
    if len(operations) != 1 or operations[0].get("kind") not in TRANSFERS:
        return False
    return int(operations[0].get("count", 0)) * ITEM_SIZES.get(operations[0].get("dtype", ""), 1) <= MAX_COPY
