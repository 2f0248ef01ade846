"""Batches: operations of a ``with group.batch():`` block that are submitted as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hearth import base_stream as streams
from hearth.collectives.part import RankPart, by_rank
from hearth.errors import ArgumentError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from hearth.base_stream import BaseStream
    from hearth.session.connection import Connection

Present = Callable[["Mapping[int, Sequence[RankPart]]", int, "Mapping[int, BaseStream | None]"], None]

_open: ContextVar[tuple[Batch, ...]] = ContextVar("hearth_open_batches", default=())


def open_batch(owner: object) -> Batch | None:
    """Returns the batch of the group `owner` that is open in this thread (or task); None: no batch is open."""
    for batch in _open.get():
        if batch.owner is owner:
            return batch
    return None


def check_none_open(owner: object) -> None:
    """Raises `ArgumentError` if a batch of the group `owner` is open in this thread (or task)."""
    if open_batch(owner) is not None:
        raise ArgumentError(f"a batch of {owner!r} is already open here.", fix="use the open batch.")


class Batch:
    """Operations of a ``with`` block, submitted at its end as one NCCL group. See `Group.batch`.

    No operation waits for another one, so each rank may send and receive in any order.
    """

    def __init__(self, owner: object, connections: Mapping[int, Connection], timeout_ns: int, present: Present) -> None:
        self.owner = owner
        self._connections = connections
        self._timeout_ns = timeout_ns
        self._present = present
        self._parts: list[RankPart] = []
        self._streams: dict[int, BaseStream | None] = {}

    def add(self, parts: Iterable[RankPart]) -> None:
        """Appends parts to the batch.

        Args:
            parts: Parts of ranks in one operation.

        Raises:
            ArgumentError: The current stream of a rank's device has changed since the batch began.
        """
        parts = list(parts)
        current_streams = {part.rank: streams.current(self._connections[part.rank]) for part in parts}
        for rank, stream in current_streams.items():
            if rank in self._streams and self._streams[rank] is not stream:
                raise ArgumentError(
                    f"rank {rank} uses {stream or 'its default stream'} here, but used "
                    f"{self._streams[rank] or 'its default stream'} earlier in the batch.",
                    fix="use one stream of each device for the whole batch: select it around the batch.",
                )
        self._streams.update(current_streams)
        self._parts += parts

    def __len__(self) -> int:
        """Returns the number of parts collected so far."""
        return len(self._parts)

    def __enter__(self) -> Batch:
        check_none_open(self.owner)
        self._parts, self._streams = [], {}
        _open.set((*_open.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.set(tuple(batch for batch in _open.get() if batch is not self))
        parts, self._parts = self._parts, []
        if error is not None or not parts:
            return
        check_pairs(parts)
        current_streams = {rank: streams.current(connection) for rank, connection in self._connections.items()}
        self._present(by_rank(parts, self._connections), self._timeout_ns, current_streams | self._streams)


def check_pairs(parts: Iterable[RankPart]) -> None:
    """Checks that sends and receives match.

    Args:
        parts: The parts of the batch.

    Raises:
        ArgumentError: A send has no receive, a receive has no send, or the two differ in size or dtype.
    """
    sends: defaultdict[tuple[int, int], list[RankPart]] = defaultdict(list)
    receives: defaultdict[tuple[int, int], list[RankPart]] = defaultdict(list)
    for part in parts:
        if part.peer is not None and part.kind == commands_pb2.COLLECTIVE_KIND_SEND:
            sends[part.rank, part.peer].append(part)
        elif part.peer is not None:
            receives[part.peer, part.rank].append(part)
    for source, destination in sorted(sends.keys() | receives.keys()):
        sent, received = sends[source, destination], receives[source, destination]
        if len(sent) != len(received):
            raise _mismatch(
                f"the batch has {len(sent)} sends from rank {source} to rank {destination}, but {len(received)} "
                "matching receives"
            )
        for number, (send, receive) in enumerate(zip(sent, received, strict=True), 1):
            if (send.elements, send.dtype) != (receive.elements, receive.dtype):
                raise _mismatch(
                    f"send {number} from rank {source} to rank {destination} in the batch has {send.elements} "
                    f"elements of {send.dtype}, but the matching receive has {receive.elements} elements "
                    f"of {receive.dtype}"
                )


def _mismatch(message: str) -> ArgumentError:
    return ArgumentError(
        f"{message}.", reason="COLLECTIVE_MISMATCH", fix="match each send with a recv of the same size and dtype."
    )
