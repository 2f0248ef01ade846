"""Dispatch cache: the plan of the first dispatch serves later ones that differ only in their inputs and values.

A client that calls a kernel repeatedly changes the bytes of its inputs, and perhaps values among its parameters; the
rest of the command is the same, and is not decoded, checked and packed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hearth_proto.launches import Record, pack, unpack_layout
from hearth_proto.v1 import commands_pb2
from hearthd.device.dispatch.plan import DispatchPlan
from hearthd.device.launch.arguments import dim, pack_arguments
from hearthd.device.session.launch_plan import plan_key

MOST = 256
"""Dispatches in the cache."""

LONGEST = 2 << 10
"""Largest command in the cache, in bytes without its inputs."""

Likeness = tuple[bytes, tuple[int, ...]]
"""Cache key: the command's bytes without inputs and values, and the sizes of the inputs."""


class KnownDispatch(NamedTuple):
    """Plan of a dispatch. It refers to objects by their handles alone, and so serves every session."""

    plan: DispatchPlan
    first: Record
    """Launch record of the first dispatch."""
    key: bytes
    """Key of the launch's plan."""
    read_only: tuple[bool, ...]
    """True for each of the kernel's pointers that it only reads through."""
    values: tuple[tuple[int, int, int], ...]
    """Binding, place in the parameter block, and size of each value that comes as bytes."""

    def record(self, command: commands_pb2.Dispatch, stream: int) -> Record:
        """Returns the launch record of a command with the same likeness."""
        params = bytearray(self.first.params)
        for binding, at, size in self.values:
            params[at : at + size] = command.bindings[binding].value.raw
        return self.first._replace(stream=stream, params=bytes(params))


class KnownDispatches:
    """The cache. Device-handle thread only."""

    def __init__(self, most: int = MOST) -> None:
        """`most`: dispatches in the cache."""
        self._most = most
        self._known: dict[Likeness, KnownDispatch] = {}

    def find(self, command: commands_pb2.Dispatch, inputs: Sequence[bytes]) -> tuple[Likeness, KnownDispatch | None]:
        """Returns the likeness of the command, to learn it by, and the known dispatch with that likeness."""
        likeness = _likeness(command, inputs)
        return likeness, self._known.get(likeness)

    def learn(self, likeness: Likeness, command: commands_pb2.Dispatch, plan: DispatchPlan) -> KnownDispatch:
        """Adds a command without faults to the cache. Raises Refusal(LAUNCH_INVALID) where its parameters take too many
        bytes."""
        layout, handles, params = pack_arguments(plan.arguments)
        record = Record(
            function=command.function,
            stream=0,
            grid=dim(command.grid),
            block=dim(command.block),
            shared_mem=command.shared_mem,
            flags=0,
            timeout_ns=command.timeout_ns,
            layout=layout,
            buffers=handles,
            params=params,
        )
        places = unpack_layout(layout)
        known = KnownDispatch(
            plan._replace(arguments=[]),  # the arguments keep the whole command in memory
            record,
            plan_key(pack(record), record),
            tuple(place.read_only for place in places if place.pointer),
            tuple(
                (index, place.offset, place.size)
                for index, (argument, place) in enumerate(zip(plan.arguments, places, strict=True))
                if argument.HasField("raw")
            ),
        )
        if len(likeness[0]) <= LONGEST and not plan.transfers:  # transfers have a new number each time
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[likeness] = known
        return known


def _likeness(command: commands_pb2.Dispatch, inputs: Sequence[bytes]) -> Likeness:
    like = commands_pb2.Dispatch()
    like.CopyFrom(command)
    for binding, data in zip(like.bindings, inputs, strict=True):
        if data:
            binding.ClearField("data")
        elif binding.HasField("value") and binding.value.HasField("raw"):
            binding.value.raw = bytes(len(binding.value.raw))
    return like.SerializeToString(), tuple(map(len, inputs))
