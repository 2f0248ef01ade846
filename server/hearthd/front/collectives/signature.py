"""Compares the ranks' requests for one collective operation, and finds the rank that differs.

Pure. Each rank has a list of operations, which run as one: dicts with `kind`, `count`, `dtype`, `reduce`, `root` and
`peer`. Sends and receives are paired. Everything else must be equal, in the same order, on every rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hearthd.front.collectives.match import TRANSFERS

Operation = Mapping[str, Any]

_FIELDS = {
    "all_reduce": ("count", "dtype", "reduce"),
    "reduce": ("count", "dtype", "reduce", "root"),
    "broadcast": ("count", "dtype", "root"),
    "all_gather": ("count", "dtype"),
    "reduce_scatter": ("count", "dtype", "reduce"),
    "all_to_all": ("count", "dtype"),
    "gather": ("count", "dtype", "root"),
    "scatter": ("count", "dtype", "root"),
    "barrier": (),
}
"""The fields, in addition to `kind`, that must be equal on all ranks."""

_EVERY_FIELD = ("count", "dtype", "reduce", "root")


@dataclass(frozen=True)
class Mismatch:
    """The first difference between ranks."""

    field: str
    """The field that differs. `operations`: the number of operations; `sends`, `recvs`: the number from one rank to
    another; `peer`: a rank that does not exist."""
    values: dict[int, Any]
    """Values by rank. For a send and its receive, only those of the two ranks."""
    odd_ranks: list[int]
    """Ranks that differ from the majority; of two ranks, the higher one. For a send and its receive: both ranks,
    because neither is more likely to be right."""
    position: int = 0
    """The position of the operation among those of the odd rank, from 1. 0 if there is only one operation, or if the
    number of operations differs."""
    pair: tuple[int, int, Any, Any] | None = None
    """Sender, receiver, and the value of each."""

    @property
    def majority(self) -> list[int]:
        """The ranks that agree with the majority."""
        return [rank for rank in self.values if rank not in self.odd_ranks]


def find_mismatch(lists: Mapping[int, Sequence[Operation]], size: int) -> Mismatch | None:
    """Returns the first difference between the operations of the ranks that have presented; None: they match.

    `size` is the number of all ranks. Transfers to and from the other ranks are not compared.
    """
    first = next(iter(lists.values()), ())
    if all(operations == first for operations in lists.values()) and not any(map(_is_transfer, first)):
        return None  # the usual case
    ranks = sorted(lists)
    is_batch = any(len(operations) > 1 for operations in lists.values())
    collectives = {rank: _collective_operations(lists[rank]) for rank in ranks}
    difference = _compare_field("operations", {rank: len(entries) for rank, entries in collectives.items()})
    if difference is not None:
        return difference
    for aligned in zip(*collectives.values(), strict=True):
        entries = dict(zip(ranks, aligned, strict=True))
        difference = _compare_operation({rank: operation for rank, (_, operation) in entries.items()})
        if difference is not None:
            return replace(difference, position=entries[difference.odd_ranks[0]][0] if is_batch else 0)
    return _compare_transfers(lists, size, is_batch)


def _is_transfer(operation: Operation) -> bool:
    return operation.get("kind") in TRANSFERS


def _collective_operations(operations: Sequence[Operation]) -> list[tuple[int, Operation]]:
    """Returns a rank's operations without sends and receives, each with its position from 1."""
    return [(position, operation) for position, operation in enumerate(operations, 1) if not _is_transfer(operation)]


def _compare_operation(operations: Mapping[int, Operation]) -> Mismatch | None:
    """Compares one operation across all ranks."""
    difference = _compare_field("kind", {rank: operation.get("kind") for rank, operation in operations.items()})
    if difference is not None:
        return difference
    kind = str(next(iter(operations.values())).get("kind"))
    for name in _FIELDS.get(kind, _EVERY_FIELD):
        difference = _compare_field(name, {rank: operation.get(name) for rank, operation in operations.items()})
        if difference is not None:
            return difference
    return None


def _compare_field(name: str, values: dict[int, Any]) -> Mismatch | None:
    """Returns the difference in one field, if there is one.

    The most frequent value counts as the group's; among equally frequent values, that of the lowest rank.
    """
    counts = Counter(map(repr, values.values()))
    if len(counts) <= 1:
        return None
    majority = max(
        counts, key=lambda text: counts[text]
    )  # the first of the most frequent; the values are in rank order
    return Mismatch(name, values, [rank for rank, value in values.items() if repr(value) != majority])


def _compare_transfers(lists: Mapping[int, Sequence[Operation]], size: int, is_batch: bool) -> Mismatch | None:
    """Compares each send with its receive: the k-th send from rank a to rank b belongs to b's k-th receive from a."""
    sends: defaultdict[tuple[int, int], list[tuple[int, Operation]]] = defaultdict(list)
    recvs: defaultdict[tuple[int, int], list[tuple[int, Operation]]] = defaultdict(list)
    for rank, operations in sorted(lists.items()):
        for position, operation in enumerate(operations, 1):
            kind, peer = operation.get("kind"), operation.get("peer")
            if not _is_transfer(operation):
                continue
            if not isinstance(peer, int) or not 0 <= peer < size:
                return Mismatch("peer", {rank: peer}, [rank], position if is_batch else 0)
            if kind == "send":
                sends[rank, peer].append((position, operation))
            else:
                recvs[peer, rank].append((position, operation))
    for pair in sorted({*sends, *recvs}):
        sender, receiver = pair
        if sender not in lists or receiver not in lists:
            continue
        pair_ranks = sorted({sender, receiver})
        for (position, send), (_, recv) in zip(sends[pair], recvs[pair], strict=False):
            for name in ("count", "dtype"):
                sent, received = send.get(name), recv.get(name)
                if repr(sent) != repr(received):
                    values = {receiver: received, sender: sent}
                    return Mismatch(name, values, pair_ranks, position if is_batch else 0, (*pair, sent, received))
        counts = len(sends[pair]), len(recvs[pair])
        if counts[0] != counts[1]:
            name = "sends" if counts[0] > counts[1] else "recvs"
            return Mismatch(name, {receiver: counts[1], sender: counts[0]}, pair_ranks, pair=(*pair, *counts))
    return None
