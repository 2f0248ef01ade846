"""Memory checker: launches in `validate` mode, in which every buffer argument is replaced by a copy between red zones.

The kernel runs on the copies. Its writes inside the copies are copied back; its writes to the red zones are reported
with the kernel and the buffer. Nothing outside the buffers is changed, as long as the kernel writes within the zones.
Addresses that a kernel reads from memory (a buffer of pointers) are not replaced.

If the backend checks for races, a race in the kernel's shared memory fails the launch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hearth_proto.launches import unpack_layout
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostBuffer, Memory
from hearthd.device.backend.server import ChecksRaces
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.red_zones import PATTERN, Damage, Shadow, find_damage, shadow
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.launch_plan import Q


class _Guarded(NamedTuple):
    """A buffer and its copy between two red zones."""

    buffer: Buffer
    plan: Shadow
    memory: Memory
    written: bool


class Validation:
    """A launch on copies between red zones. Device-handle thread only."""

    def __init__(
        self, device: DeviceContext, binder: Binder, origin: Origin, bound: BoundLaunch, parsed: ResolvedRecord
    ) -> None:
        self._device = device
        self._binder = binder
        self._origin = origin
        self._bound = bound
        self._buffers: list[Buffer] = []
        """Buffers of the pointer arguments, in order."""
        self._layout = parsed.record.layout
        self._race: Callable[[], Refusal | None] = lambda: None
        for pointer in parsed.pointers:
            if isinstance(pointer, TensorMapEntry):
                raise Refusal(
                    Reason.UNSUPPORTED,
                    f"launch of {bound.plan.name}: a tensor map holds an address that cannot be replaced",
                    fix='launch with mode="checked"',
                )
            self._buffers.append(pointer)

    def run(self) -> bool:
        """Submits the whole launch, which is answered when it is done.

        Returns False if there is no staging memory for the zones.
        """
        device = self._device
        track = self._origin.stream.track
        plans = {buffer: shadow(buffer.size) for buffer in self._bound.buffers}
        size = sum(sum(length for _, length in _zones(plan)) for plan in plans.values())
        host = device.staging.acquire(size)
        if host is None:
            return False
        guarded: dict[Buffer, _Guarded] = {}
        try:
            for index, (buffer, plan) in enumerate(plans.items()):
                memory = device.grants.allocate(plan.total, track.stream)
                guarded[buffer] = _Guarded(buffer, plan, memory, index < len(self._bound.writes))
        except Refusal:
            device.staging.release(host)
            self._free(guarded)
            raise
        try:
            self._fill(guarded)
            self._binder.issue(self._origin.stream, self._with_copies(guarded))
            if isinstance(device.server, ChecksRaces):
                self._race = device.server.race_refusal(track.stream)
            self._restore(guarded, host)
        except Refusal:  # some of the copies may already run
            device.staging.drop(track, host)
            raise
        finally:
            self._free(guarded)
        device.telemetry.validated_launches += 1
        device.tracks.on_complete(track, partial(self._look, list(guarded.values()), host))
        return True

    def _fill(self, guarded: Mapping[Buffer, _Guarded]) -> None:
        device = self._device
        track = self._origin.stream.track
        for buffer, plan, memory, _ in guarded.values():
            device.tracks.claim_position(track, (), (buffer.usage,))
            device.begin(self._origin.stream)
            device.server.fill(memory.address, PATTERN, plan.total, track.stream)
            if buffer.size:
                device.server.copy(memory.address + plan.inside, buffer.address, buffer.size, track.stream)

    def _with_copies(self, guarded: Mapping[Buffer, _Guarded]) -> BoundLaunch:
        """Returns the launch with the addresses of the copies in place of those of the buffers."""
        bound = self._bound
        params = bytearray(bound.params)
        for patch, buffer in zip(bound.plan.patches, self._buffers, strict=True):
            offset = Q.unpack_from(params, patch)[0] - buffer.address
            Q.pack_into(params, patch, guarded[buffer].memory.address + guarded[buffer].plan.inside + offset)
        moved = BoundLaunch(bound.plan, params, (), (), bound.module)
        moved.writes, moved.reads = bound.writes, bound.reads
        return moved

    def _restore(self, guarded: Mapping[Buffer, _Guarded], host: HostBuffer) -> None:
        device = self._device
        track = self._origin.stream.track
        at = 0
        for buffer, plan, memory, written in guarded.values():
            if written and buffer.size:
                device.tracks.claim_position(track, (buffer.usage,))
                device.server.copy(buffer.address, memory.address + plan.inside, buffer.size, track.stream)
            for start, size in _zones(plan):
                device.server.download(host, at, memory.address + start, size, track.stream)
                at += size

    def _free(self, guarded: Mapping[Buffer, _Guarded]) -> None:
        for each in guarded.values():
            self._device.server.free(each.memory, self._origin.stream.track.stream)

    def _look(self, guarded: Sequence[_Guarded], host: HostBuffer) -> None:
        """Checks the zones of the completed launch, and answers the command."""
        found: list[tuple[Buffer, Damage]] = []
        at = 0
        for each in guarded:
            for start, size in _zones(each.plan):
                hurt = find_damage(host.view[at : at + size], start, each.plan)
                at += size
                if hurt is not None:
                    found.append((each.buffer, hurt))
        self._device.staging.release(host)
        if found:
            self._origin.fail(refuse(self._bound.plan.name, found, self._arguments()))
        elif (race := self._race()) is not None:
            self._origin.fail(race)
        else:
            self._origin.reply()

    def _arguments(self) -> dict[Buffer, int]:
        """Returns for each buffer the number of the first argument that points to it."""
        numbers = [number for number, place in enumerate(unpack_layout(self._layout)) if place.pointer]
        return dict(zip(reversed(self._buffers), reversed(numbers), strict=True))


def _zones(plan: Shadow) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns (start, size) of each zone, in bytes."""
    return (0, plan.zone), (plan.behind, plan.total - plan.behind)


def refuse(kernel: str, found: Sequence[tuple[Buffer, Damage]], arguments: Mapping[Buffer, int]) -> Refusal:
    """The refusal of a kernel that wrote outside its buffers. `arguments`: number of the argument by buffer."""
    said = [
        f"{hurt.count} bytes {_where(hurt, buffer.size)} argument {arguments[buffer]}, an array of {buffer.size} bytes "
        f"(bytes [{hurt.first}..{hurt.last + 1}) from its start)"
        for buffer, hurt in found
    ]
    first, hurt = found[0]
    return Refusal(
        Reason.OUT_OF_BOUNDS_WRITE,
        f"kernel {kernel} wrote outside its buffers: " + "; ".join(said),
        fix="bound the kernel's indices; what it wrote inside its buffers was kept, the rest was not",
        details={
            "kernel": kernel,
            "argument": arguments[first],
            "buffer": first.handle,
            "buffer_size": first.size,
            "first_byte": hurt.first,
            "last_byte": hurt.last,
            "buffers": len({buffer.handle for buffer, _ in found}),
        },
    )


def _where(hurt: Damage, size: int) -> str:
    return "before" if hurt.last < 0 else "behind" if hurt.first >= size else "around"
