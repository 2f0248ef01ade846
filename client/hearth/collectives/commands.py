"""Submission of the parts of an operation, for all ranks of this process at once."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

from hearth import base_stream as streams
from hearth.collectives import overlap
from hearth.collectives.completion import LastOperation
from hearth.session.collective_order import RankOrder, submit_in_order
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.collectives.part import RankPart
    from hearth.session.attachment import Attachment
    from hearth.session.collective_order import CollectiveSequence
    from hearth.session.connection import Connection


def present(
    connections: Mapping[int, Connection],
    order: RankOrder,
    parts: Mapping[int, Sequence[RankPart]],
    timeout_ns: int,
    on: Mapping[int, BaseStream | None] | None = None,
    last_operations: MutableMapping[tuple[bytes, int], LastOperation] | None = None,
) -> None:
    """Submits one operation: the parts of each rank in `parts`. If an error is raised, no part is submitted.

    Args:
        connections: Connection of each rank.
        order: The ranks that take part, in the order that the daemon uses.
        parts: Parts of each rank.
        timeout_ns: Nanoseconds until all ranks have arrived and finished; 0: the daemon's default.
        on: Stream of each rank; None: the current ones.
        last_operations: Receives the operation as the last one of its ranks, by group over daemons and rank.

    Raises:
        ArgumentError: Arrays of a rank overlap.
        LaunchError: A stream is being recorded in a graph.
    """
    commands: list[tuple[CollectiveSequence, Attachment, commands_pb2.Command]] = []
    over_daemons = order.name if isinstance(order.name, bytes) else None
    submitted: dict[tuple[bytes, int], LastOperation] = {}
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
            submitted[over_daemons, rank] = LastOperation(connection, attachment, stream, command.stream)
        else:
            collective.devices.extend(order.name)
        collective.timeout_ns = timeout_ns
        for part in rank_parts:
            part.write(collective.operations.add(), order)
        commands.append((connection.sequence, attachment, command))
    submit_in_order(commands, order)
    if last_operations is not None:
        last_operations.update(submitted)
