"""Dispatches that come again with other inputs: what the first of them was read as serves the others.

Whoever calls a kernel again and again changes the bytes of its inputs, and perhaps values among its parameters; the
rest of the command is the same, and is not read, checked and packed anew.
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
"""Dispatches that are known."""

LONGEST = 2 << 10
"""Bytes of one, its inputs left out."""

Likeness = tuple[bytes, tuple[int, ...]]
"""Its bytes without those of inputs and values; the inputs' sizes."""


class KnownDispatch(NamedTuple):
    """What a dispatch was read as, of whoever's session: it names things by their handles alone."""

    plan: DispatchPlan
    first: Record
    """The launch, as it came first."""
    key: bytes
    """Under which the launch's plan is known."""
    read_only: tuple[bool, ...]
    """Which of the kernel's pointers it only reads through."""
    values: tuple[tuple[int, int, int], ...]
    """Of values that come as bytes: the binding, the place in the parameter block, and the size."""

    def record(self, command: commands_pb2.Dispatch, stream: int) -> Record:
        """The launch of a command that is like the first."""
        params = bytearray(self.first.params)
        for binding, at, size in self.values:
            params[at : at + size] = command.bindings[binding].value.raw
        return self.first._replace(stream=stream, params=bytes(params))


class KnownDispatches:
    """Belongs to the device-handle thread."""

    def __init__(self) -> None:
        self._known: dict[Likeness, KnownDispatch] = {}

    def find(self, command: commands_pb2.Dispatch, inputs: Sequence[bytes]) -> tuple[Likeness, KnownDispatch | None]:
        """What one that is like it was read as, and its likeness, to learn it by."""
        likeness = _likeness(command, inputs)
        return likeness, self._known.get(likeness)

    def learn(self, likeness: Likeness, command: commands_pb2.Dispatch, plan: DispatchPlan) -> KnownDispatch:
        """One that nothing is wrong with in itself. Raises Refusal(LAUNCH_INVALID) where its parameters take too many
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
            plan._replace(arguments=[]),  # which keep the whole command in memory
            record,
            plan_key(pack(record), record),
            tuple(place.read_only for place in places if place.pointer),
            tuple(
                (index, place.offset, place.size)
                for index, (argument, place) in enumerate(zip(plan.arguments, places, strict=True))
                if argument.HasField("raw")
            ),
        )
        if len(likeness[0]) <= LONGEST and not plan.transfers:  # those have another number each time
            if len(self._known) >= MOST:
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
