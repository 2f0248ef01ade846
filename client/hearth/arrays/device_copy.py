"""Copies of an array to another device of its session, as one send and its receive."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hearth import stream as streams
from hearth.session.collective_order import sorted_order, submit_in_turn
from hearth_proto.collectives import ITEM_SIZES
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    import numpy as np

    from hearth.interfaces import ArrayLike
    from hearth.stream import Stream


def copy_between(to: ArrayLike, since: ArrayLike, stream: Stream | None) -> None:
    """Copies an array to another device of its session: on `stream` (None: the current one) there, and on the current
    stream here. Shapes and dtypes are the same, and not empty.

    Raises `LaunchError` inside the recording of a graph.
    """
    source = since if since._as_rows().dense else since.copy()
    target: ArrayLike = to if to._as_rows().dense else to._device.empty(to.shape, to.dtype, stream)
    here, there = source._connection, target._connection
    roster = sorted_order([here.ordinal, there.ordinal])
    dtype, count = moved(source, source.size)
    commands = []
    for peer, array, on in (1, source, streams.current(here)), (0, target, stream or streams.current(there)):
        attachment = array._usable()
        command = commands_pb2.Command(stream=streams.resolve_for_collective(on, array._connection, attachment))
        command.collective.devices.extend((here.ordinal, there.ordinal)[member] for member in roster.members)
        operation = command.collective.operations.add(count=count, dtype=dtype, peer=roster.rank(peer))
        if array is source:
            operation.kind = commands_pb2.COLLECTIVE_KIND_SEND
            operation.source, operation.source_offset = array._memory.handle, array._offset
        else:
            operation.kind = commands_pb2.COLLECTIVE_KIND_RECV
            operation.destination, operation.destination_offset = array._memory.handle, array._offset
        commands.append((array._connection.turns, attachment, command))
    submit_in_turn(commands, roster)
    if target is not to:
        to.copy_from(target, stream)


def moved(array: ArrayLike, elements: int) -> tuple[str, int]:
    """The dtype to send `elements` of the array as, where they are only moved, and how many of it they are."""
    name = name_of(array.dtype)
    return (name, elements) if name in ITEM_SIZES else ("uint8", elements * array.itemsize)


@lru_cache(64)
def name_of(dtype: np.dtype[Any]) -> str:
    """The dtype's name, which NumPy puts together anew each time."""
    return dtype.name
