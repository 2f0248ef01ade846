"""Memory checker: launches in `validate` mode, in which every buffer argument is replaced by a copy between red zones.

The kernel runs on the copies. Its writes inside the copies are copied back; its writes to the red zones are reported
with the kernel and the buffer. Nothing outside the buffers is changed, as long as the kernel writes within the zones.
A backend that guards memory also notices reads, and accesses beyond the zones, and contains all of them.
Addresses that a kernel reads from memory are not replaced, and a launch with an array of pointers is refused.

On a backend without guards, kernels that were compiled with -fsanitize=address report their reads of the zones.

If the backend checks for races, a race in the kernel's shared memory fails the launch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hearth_proto.launches import unpack_layout
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend import access_table
from hearthd.device.backend.access_table import Span
from hearthd.device.backend.resources import GuardedMemory, HostBuffer, Memory, StrayAccess
from hearthd.device.backend.server import ChecksRaces, GuardsMemory, InstrumentsModules
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.red_zones import PATTERN, Damage, Shadow, find_damage, shadow
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.launch_plan import Q, addresses
from hearthd.device.streams.pending_outcomes import PendingOutcome

_MAX_DESCRIBED = 4
"""Number of reads, and of distant writes, that a message describes."""


class _GuardedCopy(NamedTuple):
    """A buffer and its copy between two red zones."""

    buffer: Buffer
    plan: Shadow
    memory: Memory
    """The memory of the copy; with a guard, it is unused and only counts the bytes of the copy."""
    written: bool
    guard: GuardedMemory | None
    """Guarded memory, which replaces `memory`; None if the backend cannot guard the copy."""

    @property
    def address(self) -> int:
        """Device address of the copy's memory."""
        return self.memory.address if self.guard is None else self.guard.address


_WRITES = {access_table.UNKNOWN: None, access_table.READ: False, access_table.WRITE: True}
"""`StrayAccess.writes` by the kind that an instrumented kernel reports."""


class Stray(NamedTuple):
    """An access outside of a buffer that the guarding backend has noticed."""

    buffer: Buffer
    access: StrayAccess


class Validation:
    """A launch on copies between red zones. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        binder: Binder,
        origin: Origin,
        bound: BoundLaunch,
        parsed: ResolvedRecord,
        settle: Callable[[Refusal | None], None],
    ) -> None:
        """`settle` is called when the launch is done, with the accesses that it must not make, or None."""
        self._device = device
        self._binder = binder
        self._origin = origin
        self._bound = bound
        self._settle = settle
        self._buffers: list[Buffer] = []
        """Buffers of the pointer arguments, in order."""
        self._layout = parsed.record.layout
        self._race: Callable[[], Refusal | None] = lambda: None
        self._stray_accesses: list[tuple[_GuardedCopy, Callable[[], Sequence[StrayAccess]]]] = []
        """Functions that return the accesses outside of each guarded copy."""
        server, module = device.server, bound.module
        self._table = server.access_table(module.loaded()) if isinstance(server, InstrumentsModules) else 0
        """Address of the access table of an instrumented module; 0 without one."""
        self._spans: list[Span] = []
        """Spans of the copies, by which an instrumented kernel checks its accesses."""
        for pointer in parsed.pointers:
            if isinstance(pointer, TensorMapEntry):
                raise Refusal(
                    Reason.UNSUPPORTED,
                    f"launch of {bound.plan.name}: a tensor map holds an address that cannot be replaced",
                    fix='launch with mode="checked"',
                )
            if pointer.has_pointers:
                raise Refusal(
                    Reason.UNSUPPORTED,
                    f"launch of {bound.plan.name}: buffer {pointer.handle} holds addresses that cannot be replaced",
                    fix='launch with mode="checked", or pass the arrays as arguments or in a structure',
                )
            self._buffers.append(pointer)

    def run(self) -> bool:
        """Submits the whole launch, which is settled when it is done.

        Returns False if there is no staging memory for the zones, or another launch uses the module's access table.
        """
        device = self._device
        track = self._origin.stream.track
        plans = {buffer: shadow(buffer.size) for buffer in self._bound.buffers}
        size = sum(sum(length for _, length in _zones(plan)) for plan in plans.values())
        if self._table:
            if self._bound.module.validating:
                return False
            self._check_count(len(plans))
            size += access_table.BYTES
        host = device.staging.acquire(size)
        if host is None:
            return False
        guarded: dict[Buffer, _GuardedCopy] = {}
        armed: list[_GuardedCopy] = []
        try:
            for index, (buffer, plan) in enumerate(plans.items()):
                memory = device.grants.allocate(plan.total, track.stream)
                guard: GuardedMemory | None = None
                if isinstance(device.server, GuardsMemory):
                    guard = device.server.guard(plan.total, plan.buffer_offset, buffer.size)
                guarded[buffer] = _GuardedCopy(buffer, plan, memory, index < len(self._bound.writes), guard)
        except Refusal:
            device.staging.release(host)
            self._free(guarded)
            raise
        try:
            self._fill(guarded)
            for copy in guarded.values():
                if copy.guard is not None:
                    copy.guard.arm(track.stream)
                    armed.append(copy)
            self._send_table(list(guarded.values()), host)
            self._binder.issue(self._origin.stream, self._with_copies(guarded))
            if isinstance(device.server, ChecksRaces):
                self._race = device.server.race_refusal(track.stream)
            self._disarm(armed)
            self._fetch_table(host)
            self._restore(guarded, host)
        except Refusal:  # some of the copies may already run
            device.staging.drop(track, host)
            raise
        finally:
            self._free(guarded)
        self._bound.module.validating = bool(self._table)
        device.telemetry.validated_launches += 1
        outcome = PendingOutcome(object(), 0)  # its success implies nothing about other checks
        device.tracks.pending_outcomes.launched(outcome, [buffer.usage for buffer in guarded])
        device.tracks.on_complete(track, partial(self._check_zones, list(guarded.values()), host, outcome))
        return True

    def _fill(self, guarded: Mapping[Buffer, _GuardedCopy]) -> None:
        device = self._device
        track = self._origin.stream.track
        for copy in guarded.values():
            buffer, plan = copy.buffer, copy.plan
            device.tracks.claim_position(track, (), (buffer.usage,))
            device.begin(self._origin.stream)
            device.server.fill(copy.address, PATTERN, plan.total, track.stream)
            if buffer.size:
                device.server.copy(copy.address + plan.buffer_offset, buffer.address, buffer.size, track.stream)

    def _check_count(self, count: int) -> None:
        """Raises Refusal(UNSUPPORTED) if the access table has no room for that number of buffers."""
        if count > access_table.MAX_SPANS:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"launch of {self._bound.plan.name}: {count} buffers; an instrumented kernel checks at most "
                f"{access_table.MAX_SPANS}",
                fix="pass fewer buffers, or compile without -fsanitize=address",
                details={"requested": count, "allowed": access_table.MAX_SPANS},
            )

    def _send_table(self, copies: Sequence[_GuardedCopy], host: HostBuffer) -> None:
        """Uploads the spans of the copies to the access table of an instrumented module."""
        if not self._table:
            return
        for copy in copies:
            begin = copy.address + copy.plan.buffer_offset
            self._spans.append(Span(copy.address, begin, begin + copy.buffer.size, copy.address + copy.plan.total))
        host.view[: access_table.BYTES] = access_table.encode(self._spans)
        self._device.server.upload(self._table, host, 0, access_table.BYTES, self._origin.stream.track.stream)

    def _fetch_table(self, host: HostBuffer) -> None:
        """Downloads the access table after the kernel, and empties it: other launches of the module check nothing."""
        if self._table:
            server, stream = self._device.server, self._origin.stream.track.stream
            server.download(host, 0, self._table, access_table.BYTES, stream)
            server.fill(self._table, b"\0", access_table.SPANS, stream)

    def _disarm(self, armed: Sequence[_GuardedCopy]) -> None:
        stream = self._origin.stream.track.stream
        for copy in armed:
            if copy.guard is not None:
                self._stray_accesses.append((copy, copy.guard.disarm(stream)))

    def _with_copies(self, guarded: Mapping[Buffer, _GuardedCopy]) -> BoundLaunch:
        """Returns the launch with the addresses of the copies in place of those of the buffers."""
        bound = self._bound
        params = bytearray(bound.params)
        for patch, buffer in zip(bound.plan.patches, self._buffers, strict=True):
            offset = Q.unpack_from(params, patch)[0] - buffer.address
            Q.pack_into(params, patch, guarded[buffer].address + guarded[buffer].plan.buffer_offset + offset)
        launch = BoundLaunch(bound.plan, params, (), (), bound.module, bound.attributes)
        launch.writes, launch.reads = bound.writes, bound.reads
        return launch

    def _restore(self, guarded: Mapping[Buffer, _GuardedCopy], host: HostBuffer) -> None:
        device = self._device
        track = self._origin.stream.track
        at = self._table_bytes
        for copy in guarded.values():
            buffer, plan = copy.buffer, copy.plan
            if copy.written and buffer.size:
                device.tracks.claim_position(track, (buffer.usage,))
                device.server.copy(buffer.address, copy.address + plan.buffer_offset, buffer.size, track.stream)
            for start, size in _zones(plan):
                device.server.download(host, at, copy.address + start, size, track.stream)
                at += size

    def _free(self, guarded: Mapping[Buffer, _GuardedCopy]) -> None:
        stream = self._origin.stream.track.stream
        for copy in guarded.values():
            if copy.guard is not None:
                copy.guard.free(stream)
            self._device.server.free(copy.memory, stream)

    def _check_zones(self, guarded: Sequence[_GuardedCopy], host: HostBuffer, outcome: PendingOutcome) -> None:
        """Checks the zones of the completed launch, and settles it.

        Reads of the buffers, whose contents stay valid, are answered afterwards, so that the first one has the error.
        """
        damages: list[tuple[Buffer, Damage]] = []
        at = self._table_bytes
        for copy in guarded:
            for start, size in _zones(copy.plan):
                damage = find_damage(host.view[at : at + size], start, copy.plan)
                at += size
                if damage is not None:
                    damages.append((copy.buffer, damage))
        strays = [
            Stray(copy.buffer, access) for copy, stray_accesses in self._stray_accesses for access in stray_accesses()
        ]
        if self._table:
            for record in access_table.decode(host.view[: access_table.BYTES], self._spans):
                access = StrayAccess(record.offset, _WRITES[record.kind], record.block)
                strays.append(Stray(guarded[record.span].buffer, access))
            self._bound.module.validating = False
            self._device.kick(self._origin.session)
        self._device.staging.release(host)
        if damages or strays:
            self._settle(refuse(self._bound.plan.name, damages, self._arguments(), strays))
        else:
            self._settle(self._race())
        self._device.tracks.pending_outcomes.settle(outcome)
        outcome.report()

    @property
    def _table_bytes(self) -> int:
        """Size of the access table at the beginning of the staging memory; 0 without a table."""
        return access_table.BYTES if self._table else 0

    def _arguments(self) -> dict[Buffer, int]:
        """Returns for each buffer the number of the first argument that points to it."""
        numbers = [number for number, _ in addresses(unpack_layout(self._layout))]
        return dict(zip(reversed(self._buffers), reversed(numbers), strict=True))


def _zones(plan: Shadow) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns (start, size) of each zone, in bytes."""
    return (0, plan.zone), (plan.second_zone, plan.total - plan.second_zone)


def refuse(
    kernel: str, damages: Sequence[tuple[Buffer, Damage]], arguments: Mapping[Buffer, int], strays: Sequence[Stray] = ()
) -> Refusal:
    """Returns the refusal of a kernel that wrote or read outside its buffers.

    `arguments` maps each buffer to the number of its argument.
    """
    written = [
        f"{damage.count} bytes {_position(damage, buffer.size)} argument {arguments[buffer]}, an array of "
        f"{buffer.size} bytes (bytes [{damage.first}..{damage.last + 1}) from its start)"
        for buffer, damage in damages
    ]
    damaged_buffers = dict(damages)
    writes = [stray for stray in strays if stray.access.writes]
    reads = [stray for stray in strays if not stray.access.writes]
    # A write to a zone that has left damage is described already.
    distant_writes = [stray for stray in writes if stray.buffer not in damaged_buffers or not _in_zone(stray)]
    written += [_description(stray, arguments) for stray in distant_writes[:_MAX_DESCRIBED]]
    accessed = [_description(stray, arguments) for stray in reads[:_MAX_DESCRIBED]]
    read_verb = "read" if all(stray.access.writes is False for stray in reads) else "accessed"
    clauses = [
        f"{verb} outside its buffers: " + "; ".join(texts)
        for verb, texts in (("wrote", written), (read_verb, accessed))
        if texts
    ]
    first, first_byte, last_byte = (
        (damages[0][0], damages[0][1].first, damages[0][1].last)
        if damages
        else _byte_range((distant_writes or reads)[0])
    )
    blocks = [stray.access.block for stray in (writes if written else reads) if stray.buffer is first]
    note = "what it wrote inside its buffers was kept, the rest was not"
    return Refusal(
        Reason.OUT_OF_BOUNDS_WRITE if written else Reason.OUT_OF_BOUNDS_READ,
        f"kernel {kernel} " + ", and ".join(clauses),
        fix=f"bound the kernel's indices; {note}",
        details={
            "kernel": kernel,
            "argument": arguments[first],
            "buffer": first.handle,
            "buffer_size": first.size,
            "first_byte": first_byte,
            "last_byte": last_byte,
            "buffers": len({*damaged_buffers, *(stray.buffer for stray in (*distant_writes, *reads))}),
            **({"block": ", ".join(map(str, blocks[0]))} if blocks else {}),
        },
    )


def _description(stray: Stray, arguments: Mapping[Buffer, int]) -> str:
    """Returns the text of one access: its distance from the array, and its block."""
    buffer, access = stray
    is_after = access.offset >= 0
    distance = access.offset - buffer.size if is_after else -access.offset
    return (
        f"{distance} bytes {'after' if is_after else 'before'} argument {arguments[buffer]}, an array of "
        f"{buffer.size} bytes (byte {access.offset} from its start), in block ({', '.join(map(str, access.block))})"
    )


def _in_zone(stray: Stray) -> bool:
    """True if the access begins in one of the red zones of its buffer."""
    size, zone = stray.buffer.size, shadow(stray.buffer.size).zone
    return -zone <= stray.access.offset < size + zone


def _byte_range(stray: Stray) -> tuple[Buffer, int, int]:
    """Returns the buffer of an access, and its first and last known byte."""
    return stray.buffer, stray.access.offset, stray.access.offset


def _position(damage: Damage, size: int) -> str:
    return "before" if damage.last < 0 else "after" if damage.first >= size else "around"
