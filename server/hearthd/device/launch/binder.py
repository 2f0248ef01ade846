"""Binder: turns a launch record into a driver call. It resolves handles, makes every check, and fills in addresses.

The commands of `launch`, `graphs` and `dispatch` bind a record here and decide when, and whether, to issue the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hearth_proto.launches import (
    KNOWN_FLAGS,
    MAX_PARAMETER_BYTES,
    TENSOR_MAP_BYTES,
    LaunchFlag,
    LayoutEntry,
    Record,
    RecordError,
    pack,
    split_nested,
    unpack,
    unpack_layout,
)
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend import launch_attributes, launch_limits, residency
from hearthd.device.backend.graph_nodes import LaunchAttributes
from hearthd.device.backend.launch_limits import Violation
from hearthd.device.backend.resources import Function
from hearthd.device.context import DeviceContext
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.platform.tally import FULL, launch_weight
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.launch_plan import (
    LaunchPlan,
    Q,
    addresses,
    attributes_of,
    check_layout,
    plan_key,
    with_priority,
)
from hearthd.device.session.module import FunctionEntry, ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.ordering import Usage

MAX_PLANS = 256
"""Most checked launch plans that are cached per function."""

Pointer = Buffer | TensorMapEntry


class ResolvedRecord(NamedTuple):
    """A launch record with its handles resolved to objects."""

    record: Record
    stream: LogicalStream
    entry: FunctionEntry
    pointers: list[Pointer]
    grid_buffer: Buffer | None
    key: bytes
    """Key of the launch plan; empty: to be computed from the record."""
    window: Buffer | None = None
    """The buffer of the access-policy window; None: the launch has no window."""

    def split(self) -> tuple[list[Buffer], list[Buffer]]:
        """Returns the buffers that the kernel may write, and those that it only reads, among them its window."""
        readers = [argument.read_only for argument in unpack_layout(self.record.layout) if argument.pointer]
        return split(self.pointers, readers, self.window)


class BoundLaunch:
    """A launch that has passed every check and may be issued any number of times."""

    __slots__ = ("attributes", "buffers", "module", "params", "plan", "reads", "writes")

    def __init__(
        self,
        plan: LaunchPlan,
        params: bytearray,
        written: Sequence[Buffer],
        read: Sequence[Buffer],
        module: ModuleEntry,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        self.plan = plan
        self.params = params
        self.attributes = attributes
        self.buffers = [*written, *read]
        self.writes: list[Usage] = [buffer.usage for buffer in written]
        self.reads: list[Usage] = [buffer.usage for buffer in read]
        self.module = module


class Binder:
    """Checks and issues launches. Device-handle thread only."""

    def __init__(self, device: DeviceContext, watchdog: Watchdog) -> None:
        self._device = device
        self._watchdog = watchdog

    def parse(self, session: DeviceSession, data: bytes) -> ResolvedRecord:
        """Resolves the handles of one packed record.

        Raises Refusal(MALFORMED_MESSAGE) for a malformed record, and Refusal(INVALID_HANDLE), which names every unknown
        handle.
        """
        try:
            (record,) = unpack(data)
        except (RecordError, ValueError) as error:
            fault = str(error) if isinstance(error, RecordError) else "one record is expected here"
            raise Refusal(
                Reason.MALFORMED_MESSAGE, fault, fix="pack records as described in hearth_proto/launches.py"
            ) from error
        stream = session.streams.find(record.stream)
        entry = session.functions.find(record.function)
        entry.module.ensure_loading()
        pointer_arguments = [argument for argument in unpack_layout(record.layout) if argument.pointer]
        pointers: list[Pointer] = []
        unknown: list[Refusal] = []
        for index, handle in enumerate(record.buffers):
            tensor_map = index < len(pointer_arguments) and pointer_arguments[index].size == TENSOR_MAP_BYTES
            try:
                pointers.append(session.tensor_maps.find(handle) if tensor_map else session.buffers.find(handle))
            except Refusal as refusal:
                unknown.append(refusal)
        grid_buffer = None
        if record.extension is not None and record.extension.grid_buffer:
            try:
                grid_buffer = session.buffers.find(record.extension.grid_buffer)
            except Refusal as refusal:
                unknown.append(refusal)
        window = None
        try:
            window = find_window(session, record)
        except Refusal as refusal:
            unknown.append(refusal)
        if len(unknown) > 1:
            first = unknown[0]
            message = "; ".join(refusal.message for refusal in unknown)
            raise Refusal(first.reason, f"launch of {entry.name}: {message}", fix=first.fix, details=first.details)
        if unknown:
            raise unknown[0]
        key = plan_key(data, record)
        return ResolvedRecord(
            with_priority(record, session.priority), stream, entry, pointers, grid_buffer, key, window
        )

    def bind(self, resolved: ResolvedRecord) -> BoundLaunch:
        """Makes the checks that are not cached yet, and fills in the addresses. The module must be loaded.

        Raises one Refusal that lists all faults.
        """
        return self.fill(self.check(resolved), resolved)

    def check(self, resolved: ResolvedRecord) -> LaunchPlan:
        """Makes the checks of `bind` and returns the launch plan. The buffers need not have addresses yet."""
        record, _, entry, pointers, _, key, window = resolved
        plan = entry.plans.get(key)
        positions = addresses(unpack_layout(record.layout)) if plan is None else plan.addresses
        out_of_bounds = _pointer_faults(record, positions, pointers) + _window_faults(record, window)
        try:
            if plan is None:
                plan = self.plan(entry, record, key)
        except Refusal as refusal:
            if not out_of_bounds:
                raise
            message = "; ".join((refusal.message, *out_of_bounds))
            raise Refusal(refusal.reason, message, fix=refusal.fix, details=refusal.details) from refusal
        for pointer in pointers:
            buffer = pointer.buffer if isinstance(pointer, TensorMapEntry) else pointer
            buffer.range(0, 0, f"launch of {entry.name}")  # raises if the buffer has no memory
        if window is not None:
            window.range(0, 0, f"access-policy window of the launch of {entry.name}")
        plan.check_integers(record.params)
        if out_of_bounds:
            raise Refusal(
                Reason.OUT_OF_BOUNDS,
                f"launch of {entry.name}: " + "; ".join(out_of_bounds),
                fix="stay within the buffer",
                details={"kernel": entry.name, "failures": len(out_of_bounds)},
            )
        return plan

    def fill(self, plan: LaunchPlan, resolved: ResolvedRecord) -> BoundLaunch:
        """Fills the buffers' addresses into the parameters and the attributes of a checked launch."""
        record, _, entry, pointers, _, _, window = resolved
        params = plan.params_of(record.params)
        for (patch, _), pointer in zip(plan.pointers, pointers, strict=True):
            if isinstance(pointer, TensorMapEntry):
                params[patch : patch + TENSOR_MAP_BYTES] = pointer.data
            else:
                Q.pack_into(params, patch, pointer.address + Q.unpack_from(params, patch)[0])
        written, read = split(pointers, plan.readers, window)
        attributes = attributes_of(record, window.address if window is not None else 0)
        return BoundLaunch(plan, params, written, read, entry.module, attributes)

    def issue(self, stream: LogicalStream, bound: BoundLaunch, count: int | None = None) -> None:
        """Submits the launch to the driver, ordered after earlier users of its buffers.

        `count` is the number of driver calls; None: one per iteration of the launch.

        The caller has checked that the stream's track is not full. More iterations than a window holds must be
        submitted in several calls.
        """
        device = self._device
        plan = bound.plan
        track = stream.track
        limit = plan.timeout_ns / 1e9 or stream.launch_timeout
        for _ in range(plan.iterations if count is None else count):
            position = device.tracks.claim_position(track, bound.writes, bound.reads, is_launch=True)
            device.begin(stream, plan=plan)
            track.launched.append((position, plan.name, stream.session))
            if limit:
                with self._watchdog.limit(track, plan.name, limit, stream.session):
                    self._submit_to_driver(bound, stream)
            else:
                self._submit_to_driver(bound, stream)
        if bound.module.prints is not None:
            device.output.launched(bound.module.prints, track)

    def _submit_to_driver(self, bound: BoundLaunch, stream: LogicalStream) -> None:
        plan = bound.plan
        device = self._device
        device.server.launch(
            plan.function, plan.grid, plan.block, plan.shared_mem, stream.track.stream, bound.params, bound.attributes
        )
        device.telemetry.launched += plan.weight

    def plan(self, entry: FunctionEntry, record: Record, key: bytes = b"") -> LaunchPlan:
        """Returns the plan for the record's geometry and layout.

        A new plan makes every check that does not depend on the buffers; plans are cached.
        """
        key = key or plan_key(pack(record), record)
        plan = entry.plans.get(key)
        if plan is None:
            plan = self._create_plan(entry, record)
            if len(entry.plans) >= MAX_PLANS:
                entry.plans.clear()
            entry.plans[key] = plan
        return plan

    def _create_plan(self, entry: FunctionEntry, record: Record) -> LaunchPlan:
        """Checks flags, arguments, geometry, cluster and residency, in this order.

        Raises one Refusal that lists all faults.
        """
        function = entry.resolve()
        if record.flags & ~KNOWN_FLAGS:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"launch flags {record.flags & ~KNOWN_FLAGS:#x} are unknown",
                fix="use a client of this daemon's version",
            )
        if record.extension is not None and record.extension.attributes is not None:
            launch_attributes.check(self._device.limits, entry.name, record.extension.attributes)
        layout = unpack_layout(record.layout)
        faults = check_arguments(function, layout, record)
        fixes = [launch_limits.fix_of_arguments(split_nested(layout)[0], function.parameters)] if faults else []
        residency_faults: list[str] = []
        if not faults and record.flags & LaunchFlag.FIT:
            record = self._fit_grid(function, record)
        if not record.flags & LaunchFlag.UNCHECKED:
            geometry_faults, residency_faults = self._check_geometry(function, record)
            faults += geometry_faults
            fixes += [launch_limits.LIMITS_FIX] if geometry_faults or residency_faults else []
        if faults or residency_faults:
            reason = Reason.LAUNCH_INVALID if faults else Reason.RESIDENCY_EXCEEDED
            raise launch_limits.refuse(
                entry.name,
                faults + residency_faults,
                record.grid,
                record.block,
                record.shared_mem,
                reason,
                "; ".join(fixes),
            )
        plan = LaunchPlan(function, entry.name, record, layout)
        plan.weight = launch_weight(plan.threads, self._occupancy(function, record))
        if entry.module.prints is not None:
            plan.length = -1  # no direct launch: the output must be attributed to a session
        return plan

    def _occupancy(self, function: Function, record: Record) -> int | None:
        """Returns the occupancy of a multiprocessor by the launch, as a fraction of `tally.FULL`; None if unknown."""
        limits = self._device.limits
        limit = limits.max_threads_per_multiprocessor
        threads = residency.product(record.block)
        if threads > limits.max_threads_per_block or record.shared_mem > limits.shared_mem_per_block_optin:
            return None  # an unchecked launch, which the driver will refuse
        try:
            blocks = self._device.server.blocks_per_multiprocessor(function, threads, record.shared_mem)
        except Refusal:
            return None
        return blocks * threads * FULL // limit if limit > 0 else None

    def _fit_grid(self, function: Function, record: Record) -> Record:
        """Returns the record with a cooperative grid that can be resident; unchanged if its block is invalid.

        A launch with clusters is not changed: its grid must stay a multiple of the cluster.
        """
        attributes = attributes_of(record)
        if attributes is None or not attributes.cooperative or attributes.cluster is not None:
            return record
        limits = self._device.limits
        threads = residency.product(record.block)
        if not 0 < threads <= limits.max_threads_per_block or record.shared_mem > limits.shared_mem_per_block_optin:
            return record
        try:
            blocks = self._device.server.blocks_per_multiprocessor(function, threads, record.shared_mem)
        except Refusal:
            return record
        return record._replace(grid=residency.fit_grid(limits, record.grid, record.block, blocks))

    def _check_geometry(self, function: Function, record: Record) -> tuple[list[str], list[str]]:
        """Returns the faults of the geometry, and the reasons why the grid cannot be resident."""
        limits = self._device.limits
        server = self._device.server
        grid, block, shared_mem = record.grid, record.block, record.shared_mem
        faults = launch_limits.check(limits, function.attributes, grid, block, shared_mem)
        if record.extension is not None and not record.extension.iterations:
            faults.append(Violation("iterations is 0; a kernel must be launched at least once", "iterations"))
        attributes = attributes_of(record)
        if attributes is None:
            return faults, []
        residency_faults: list[str] = []
        if attributes.cluster is not None:
            clusters = residency.check_cluster(limits, grid, attributes.cluster)
            faults += [Violation(text, "cluster") for text in clusters]
            if not faults and not server.max_clusters(function, attributes.cluster, block, shared_mem):
                residency_faults.append(
                    f"no cluster of {residency.product(attributes.cluster)} blocks of this kernel fits the device"
                )
        if attributes.cooperative:
            residency_faults += residency.check_cooperative(limits, grid, block, None)
            if not faults and not residency_faults:
                blocks = server.blocks_per_multiprocessor(function, residency.product(block), shared_mem)
                residency_faults += residency.check_cooperative(limits, grid, block, blocks)
        return faults, residency_faults


def _pointer_faults(record: Record, positions: Sequence[tuple[int, int]], pointers: Sequence[Pointer]) -> list[str]:
    """Returns messages for the pointer arguments that start beyond the end of their buffers.

    `positions` are the positions of the pointers, from `launch_plan.addresses`.
    """
    faults: list[str] = []
    for (index, position), pointer in zip(positions, pointers, strict=False):
        if position >= 0 and isinstance(pointer, Buffer) and position + Q.size <= len(record.params):
            offset = Q.unpack_from(record.params, position)[0]
            if offset > pointer.size and pointer.lost is None:
                faults.append(
                    f"argument {index} starts at byte {offset} of buffer {pointer.handle}, which has {pointer.size}"
                )
    return faults


def find_window(session: DeviceSession, record: Record) -> Buffer | None:
    """Returns the buffer of a record's access-policy window; None if it has no window. Raises Refusal."""
    attributes = record.extension.attributes if record.extension is not None else None
    if attributes is None or attributes.window is None:
        return None
    return session.buffers.find(attributes.window.buffer)


def _window_faults(record: Record, window: Buffer | None) -> list[str]:
    """Returns a message for an access-policy window that extends beyond its buffer; otherwise an empty list."""
    attributes = record.extension.attributes if record.extension is not None else None
    if window is None or attributes is None or attributes.window is None or window.lost is not None:
        return []
    start, size = attributes.window.offset, attributes.window.size
    if start + size <= window.size:
        return []
    return [
        f"the access-policy window has bytes [{start}..{start + size}) of buffer {window.handle}, which has "
        f"{window.size}"
    ]


def split(
    pointers: Sequence[Pointer], readers: Sequence[bool], window: Buffer | None = None
) -> tuple[list[Buffer], list[Buffer]]:
    """Returns the targets of the pointers, each once: first those that may be written, then those only read.

    Every read-only buffer is among those that are only read. The targets of an array of pointers are included, and the
    buffer of an access-policy window.
    """
    written: dict[Buffer, None] = {}
    read: dict[Buffer, None] = {}
    for index, pointer in enumerate(pointers):
        buffer = pointer.buffer if isinstance(pointer, TensorMapEntry) else pointer
        only_read = buffer.read_only is not None or (index < len(readers) and readers[index])
        if buffer.reaches and buffer not in written and buffer not in read:
            for reach in buffer.reaches:
                (written if reach.may_write else read)[reach.buffer] = None
        (read if only_read else written)[buffer] = None
    if window is not None:
        read[window] = None
    return list(written), [buffer for buffer in read if buffer not in written]


def check_arguments(function: Function, layout: Sequence[LayoutEntry], record: Record) -> list[str]:
    """Returns the faults in the number, sizes and offsets of the arguments."""
    if len(record.params) > MAX_PARAMETER_BYTES:
        return [f"the arguments take {len(record.params)} bytes; the maximum is {MAX_PARAMETER_BYTES}"]
    if sum(argument.pointer for argument in layout) != len(record.buffers):
        return [f"{len(record.buffers)} buffers are named; the layout has another number of addresses"]
    malformed = check_layout(layout, len(record.params))
    if malformed:
        return [malformed]
    return launch_limits.check_parameters(split_nested(layout)[0], function.parameters, function.kinds)
