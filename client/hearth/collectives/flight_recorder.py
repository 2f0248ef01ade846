"""The last operations of a group, as the daemon saw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth_proto.v1 import node_pb2


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """An operation: see `Group.flight_recorder`. Times are the daemon's clock: Unix time in nanoseconds, 0: not yet."""

    what: str
    """``all_reduce 1024 float32 sum``; several of a batch with commas."""
    state: str
    """``"presented"`` (some ranks wait for others), ``"launched"``, ``"done"`` or ``"failed"``."""
    sequence: int
    """Sequence number among the operations of the same `ranks`."""
    ranks: tuple[int, ...]
    """The group's ranks that have to come to it: all, or the two of a send and its receive."""
    presented: tuple[int, ...]
    """Ranks that presented their part."""
    presented_ns: int
    """Time at which the first of them came."""
    launched_ns: int
    finished_ns: int
    """Known to a twentieth of a second."""
    error: str = ""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not come."""
        return tuple(rank for rank in self.ranks if rank not in self.presented)

    def __str__(self) -> str:
        waits = f", without rank {', '.join(map(str, self.missing))}" if self.missing else ""
        error = f": {self.error}" if self.error else ""
        return f"#{self.sequence} {self.what} {self.state}{waits}{error}"


def records(found: Iterable[tuple[node_pb2.GroupInfo, Mapping[int, int]]]) -> list[FlightRecord]:
    """The operations of groups, the newest last. With each comes which rank of ours each of its ranks is."""
    entries = [
        FlightRecord(
            operation.what,
            operation.state,
            operation.sequence,
            tuple(ranks.values()),
            tuple(ranks[rank] for rank in operation.presented if rank in ranks),
            operation.presented_unix_ns,
            operation.launched_unix_ns,
            operation.finished_unix_ns,
            operation.error,
        )
        for info, ranks in found
        for operation in info.operations
    ]
    return sorted(entries, key=lambda entry: (entry.presented_ns, entry.sequence))
