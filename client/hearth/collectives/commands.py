"""Submission of the parts of an operation, for all ranks of this process together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hearth import base_stream as streams
from hearth.collectives import overlap
from hearth.collectives.completion import LastOperation, LastOperations
from hearth.session.collective_order import WORTH, RankOrder, submit_in_order
from hearth_proto.collectives import pair_number
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.collectives.part import RankPart
    from hearth.session.attachment import Attachment
    from hearth.session.collective_order import CollectiveSequence
    from hearth.session.connection import Connection


_groups = itertools.count()


class PairNumbers:
    """Numbers of one group's sends and receives outside of batches: the sends of a direction match in their order."""

    def __init__(self) -> None:
        self._group = next(_groups)
        self._counts: Counter[tuple[int, int, int]] = Counter()
        """Number of submitted operations, by the rank that submitted them, the source and the destination."""

    def submit(
        self, sequence: CollectiveSequence, attachment: Attachment, command: commands_pb2.Command, part: RankPart
    ) -> None:
        """Submits one rank's send or receive. A call that raises uses no number.

        Args:
            sequence: Numbering of the rank's device, whose lock is held meanwhile.
            attachment: The rank's attachment.
            command: The command, whose `collective.sequence` is set here.
            part: The send or receive.
        """
        assert part.peer is not None
        sends = part.kind == commands_pb2.COLLECTIVE_KIND_SEND
        source, destination = (part.rank, part.peer) if sends else (part.peer, part.rank)
        counted = part.rank, source, destination
        with sequence.lock:
            count = self._counts[counted] + 1
            command.collective.sequence = pair_number(self._group, source > destination, count)
            attachment.submit(command, WORTH)
            self._counts[counted] = count


def present(
    connections: Mapping[int, Connection],
    order: RankOrder,
    parts: Mapping[int, Sequence[RankPart]],
    timeout_ns: int,
    on: Mapping[int, BaseStream | None] | None = None,
    last_operations: LastOperations | None = None,
    pair_numbers: PairNumbers | None = None,
) -> None:
    """Submits one operation: the parts of each rank in `parts`. If an error is raised, no part is submitted.

    Args:
        connections: Connection of each rank.
        order: The ranks that take part, in the order that the daemon uses.
        parts: Parts of each rank.
        timeout_ns: Nanoseconds until all ranks have arrived and finished; 0: the daemon's default.
        on: Stream of each rank; None: the current ones.
        last_operations: Receives an operation of a group over daemons as the last one of its ranks.
        pair_numbers: Numbers the operation, which is one rank's send or receive; None: all ranks are in `parts`, and
            the operation has the next number of their common ones.

    Raises:
        ArgumentError: Arrays of a rank overlap.
        LaunchError: A stream is being recorded in a graph.
    """
    commands: list[tuple[CollectiveSequence, Attachment, commands_pb2.Command]] = []
    over_daemons = order.name if isinstance(order.name, bytes) else None
    submitted: list[tuple[bytes, int, LastOperation]] = []
    for rank, rank_parts in parts.items():
        connection = connections[rank]
        attachment = connection.attachment()
        for part in rank_parts:
            for array in part.arrays:
                attachment = array._usable()
        overlap.check(rank_parts)
        stream = streams.current(connection) if on is None else on[rank]
        command = commands_pb2.Command(stream=streams.resolve_for_collective(stream, connection, attachment))
        collective = command.collective
        if over_daemons is not None:
            collective.group = over_daemons
            submitted.append((over_daemons, rank, LastOperation(connection, attachment, stream, command.stream)))
        else:
            collective.devices.extend(order.name)
        collective.timeout_ns = timeout_ns
        for part in rank_parts:
            part.write(collective.operations.add(), order)
        commands.append((connection.sequence, attachment, command))
    if pair_numbers is None:
        submit_in_order(commands, order)
    else:
        for submission, (part,) in zip(commands, parts.values(), strict=True):
            pair_numbers.submit(*submission, part)
    if last_operations is not None:
        for each in submitted:
            last_operations.record(*each)
