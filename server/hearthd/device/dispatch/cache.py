"""Dispatch cache: the plan of the first dispatch serves later dispatches that differ only in inputs and values.

A client that calls a kernel repeatedly changes the bytes of its inputs, and possibly values among its parameters. The
rest of the command is the same, and need not be decoded, checked and packed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hearth_proto.launches import Extension, LaunchFlag, Record, pack, split_nested, unpack_layout
from hearth_proto.v1 import commands_pb2
from hearthd.device.dispatch.plan import DispatchPlan
from hearthd.device.launch.arguments import (
    attributes_of,
    cluster_of,
    dim,
    flags_of,
    pack_arguments,
    value_bytes,
)
from hearthd.device.session.launch_plan import plan_key

MAX_DISPATCHES = 256
"""Most dispatches in the cache."""

MAX_COMMAND_BYTES = 2 << 10
"""Largest cached command, in bytes without its inputs."""

CacheKey = tuple[bytes, tuple[int, ...]]
"""Cache key: the command's bytes without inputs and values, and the sizes of the inputs."""


class CachedDispatch(NamedTuple):
    """Plan of a dispatch. It refers to objects by handle only, so it can serve every session."""

    plan: DispatchPlan
    first: Record
    """Launch record of the first dispatch."""
    key: bytes
    """Key of the launch plan."""
    read_only: tuple[bool, ...]
    """True for each pointer parameter that the kernel only reads through."""
    values: tuple[tuple[int, int, int], ...]
    """(binding index, offset in the parameter block, size) of each value that is given as bytes or as an integer."""

    def record(self, command: commands_pb2.Dispatch, stream: int) -> Record:
        """Returns the launch record for a command with the same likeness."""
        params = bytearray(self.first.params)
        for binding, at, size in self.values:
            params[at : at + size] = value_bytes(command.bindings[binding].value)
        return self.first._replace(stream=stream, params=bytes(params))


class DispatchCache:
    """The cache. Device-handle thread only."""

    def __init__(self, max_dispatches: int = MAX_DISPATCHES) -> None:
        """`max_dispatches` is the largest number of dispatches in the cache."""
        self._max_dispatches = max_dispatches
        self._entries: dict[CacheKey, CachedDispatch] = {}

    def find(self, command: commands_pb2.Dispatch, inputs: Sequence[bytes]) -> tuple[CacheKey, CachedDispatch | None]:
        """Returns the command's likeness, which `add` takes, and the known dispatch with that likeness or None."""
        cache_key = _cache_key(command, inputs)
        return cache_key, self._entries.get(cache_key)

    def add(self, cache_key: CacheKey, command: commands_pb2.Dispatch, plan: DispatchPlan) -> CachedDispatch:
        """Adds a valid command to the cache, and returns its entry.

        Raises Refusal: LAUNCH_INVALID if its parameters are too large, INVALID_ARGUMENT for an unknown mode.
        """
        layout, handles, params = pack_arguments(plan.arguments)
        flags = flags_of(command)
        record = Record(
            function=command.function,
            stream=0,
            grid=dim(command.grid),
            block=dim(command.block),
            shared_mem=command.shared_mem,
            flags=flags,
            timeout_ns=command.timeout_ns,
            layout=layout,
            buffers=handles,
            params=params,
            extension=_extension(command, plan.iterations if flags & LaunchFlag.VALIDATE else 1),
        )
        places = unpack_layout(layout)
        entry = CachedDispatch(
            plan._replace(arguments=[]),  # without the arguments, which would keep the whole command in memory
            record,
            plan_key(pack(record), record),
            tuple(place.read_only for place in places if place.pointer),
            tuple(
                (index, place.offset, place.size)
                for index, (argument, place) in enumerate(zip(plan.arguments, split_nested(places)[0], strict=True))
                if argument.WhichOneof("value") in ("raw", "int64")
            ),
        )
        if len(cache_key[0]) <= MAX_COMMAND_BYTES and not plan.transfers:  # transfers have a new number in each command
            if len(self._entries) >= self._max_dispatches:
                self._entries.clear()
            self._entries[cache_key] = entry
        return entry


def _extension(command: commands_pb2.Dispatch, iterations: int) -> Extension | None:
    """Returns the extension of the launch record, in which a validated launch has its iterations; None if not needed.

    The launches of other modes are counted by the dispatch, which submits them in several steps.
    """
    cluster = cluster_of(command)
    attributes = attributes_of(command.attributes) if command.HasField("attributes") else None
    if iterations == 1 and not any(cluster) and attributes is None:
        return None
    return Extension(cluster, iterations, attributes=attributes)


def _cache_key(command: commands_pb2.Dispatch, inputs: Sequence[bytes]) -> CacheKey:
    stripped = commands_pb2.Dispatch()
    stripped.CopyFrom(command)
    for binding, data in zip(stripped.bindings, inputs, strict=True):
        if data:
            binding.ClearField("data")
        elif binding.HasField("value") and binding.value.HasField("raw"):
            binding.value.raw = bytes(len(binding.value.raw))
        elif binding.HasField("value") and binding.value.HasField("int64"):
            binding.value.int64 = 0
    return stripped.SerializeToString(), tuple(map(len, inputs))
