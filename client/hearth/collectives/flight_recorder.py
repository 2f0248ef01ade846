"""Flight records: the last operations of a group, as recorded by the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth_proto.collectives import short_number

if TYPE_CHECKING:
    from hearth_proto.v1 import node_pb2


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """An operation of a group: see `Group.flight_recorder`.

    Times are Unix times in nanoseconds by the daemon's clock; 0: not yet.
    """

    what: str
    """Description, e.g. ``all_reduce 1024 float32 sum``; the operations of a batch are separated by commas."""
    state: str
    """``"presented"`` (some ranks have not arrived), ``"launched"``, ``"done"`` or ``"failed"``."""
    sequence: int
    """Sequence number among the operations of the same `ranks`. The sends and receives of two ranks outside of batches
    are counted apart, for each group and direction."""
    ranks: tuple[int, ...]
    """Ranks of the group that take part: all, or the two of a send and its receive."""
    presented: tuple[int, ...]
    """Ranks that have arrived."""
    presented_ns: int
    """Time at which the first rank arrived."""
    launched_ns: int
    finished_ns: int
    """Time of the end, accurate to 50 ms."""
    error: str = ""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not arrived."""
        return tuple(rank for rank in self.ranks if rank not in self.presented)

    def __str__(self) -> str:
        waits = f", missing rank {', '.join(map(str, self.missing))}" if self.missing else ""
        error = f": {self.error}" if self.error else ""
        return f"#{self.sequence} {self.what} {self.state}{waits}{error}"


def records(groups: Iterable[tuple[node_pb2.GroupInfo, Mapping[int, int]]]) -> list[FlightRecord]:
    """Converts the daemons' records of operations.

    Args:
        groups: Groups of the daemons, each with the rank in the caller's group of each of its ranks.

    Returns:
        The operations, oldest first.
    """
    entries = [
        FlightRecord(
            operation.what,
            operation.state,
            short_number(operation.sequence),
            tuple(ranks.values()),
            tuple(ranks[rank] for rank in operation.presented if rank in ranks),
            operation.presented_unix_ns,
            operation.launched_unix_ns,
            operation.finished_unix_ns,
            operation.error,
        )
        for info, ranks in groups
        for operation in info.operations
    ]
    return sorted(entries, key=lambda entry: (entry.presented_ns, entry.sequence))
