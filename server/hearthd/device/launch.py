"""Launches: packed records in, checks, addresses filled in, out to the driver.

A launch whose function has seen this geometry and layout before goes the short way: one dictionary look-up replaces
all checks but those on the buffers. Everything else becomes an operation that may wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hearth_proto.launches import (
    HEADER,
    KNOWN_FLAGS,
    MAX_PARAMETER_BYTES,
    LaunchFlag,
    Place,
    Record,
    RecordError,
    pack,
    unpack,
    unpack_layout,
)
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.arguments import pack_arguments
from hearthd.device.context import Device
from hearthd.device.operation import Operation, Origin, Replies, submit
from hearthd.device.policy import geometry
from hearthd.device.policy.launch_plan import KEY_AT, Plan, Q, check_layout
from hearthd.device.server import Function
from hearthd.device.tables import BatchEntry, Buffer, FunctionEntry, LogicalStream, Session
from hearthd.device.tracks import Track
from hearthd.device.watchdog import Watchdog

MAX_PLANS = 256
"""Checked launches remembered per function."""


class LaunchCommands:
    """Belongs to the device-handle thread."""

    def __init__(self, device: Device, watchdog: Watchdog, replies: Replies) -> None:
        self._device = device
        self._watchdog = watchdog
        self._replies = replies

    def run_records(self, session: Session, data: bytes, batch: BatchEntry, index: int) -> int:
        """Runs the records of one `launches` field in order; how many there were."""
        functions = session.functions.items
        streams = session.streams.items
        deferred = session.deferred
        unpack_header = HEADER.unpack_from
        default_timeout = self._device.spec.launch_timeout
        tracks = self._device.tracks
        at = 0
        size = len(data)
        count = 0
        while at < size:
            if size - at < HEADER.size:
                self._malformed(session, batch, index + count, f"{size - at} bytes are left; a record has at least 64")
                break
            head = unpack_header(data, at)
            length = head[0]
            if length < HEADER.size or length & 7 or length > size - at:
                self._malformed(session, batch, index + count, f"it says it has {length} bytes, {size - at} are left")
                break
            entry = functions.get(head[3])
            stream = streams.get(head[4])
            plan = entry.plans.get(data[at + KEY_AT : at + HEADER.size + 4 * head[1]]) if entry is not None else None
            if (
                plan is None
                or stream is None
                or deferred
                or stream.starting
                or plan.timeout_ns
                or default_timeout
                or plan.length != length
                or (stream.track.budget <= 0 and not tracks.reap(stream.track))
                or not self._launch_again(session, stream, plan, data, at)
            ):
                self._submit(session, data[at : at + length], batch=batch, index=index + count)
            at += length
            count += 1
        return count

    def _launch_again(self, session: Session, stream: LogicalStream, plan: Plan, data: bytes, at: int) -> bool:
        """The short way; False, with nothing done, where a buffer needs a closer look."""
        device = self._device
        buffers = session.buffers.items
        params = plan.params(data, at)
        usages = []
        for patch, handle in zip(plan.patches, plan.handles.unpack_from(data, at + plan.handles_at), strict=True):
            buffer = buffers.get(handle)
            if buffer is None or buffer.failure is not None or buffer.lost is not None:
                return False
            offset = Q.unpack_from(params, patch)[0]
            if offset > buffer.size:
                return False
            Q.pack_into(params, patch, buffer.address + offset)
            usages.append(buffer.usage)
        track = stream.track
        tracks = device.tracks
        tracks.before(track, usages)
        track.launched.append((tracks.ordering.position(track.index), plan.name))
        try:
            device.server.launch(plan.function, plan.grid, plan.block, plan.shared_mem, track.stream, params)
        except Refusal:
            return False  # the long way meets it again, and knows whom to tell
        device.telemetry.kernel_launches += 1
        return True

    def launch(self, origin: Origin, command: commands_pb2.Launch) -> None:
        """The readable form: becomes a record and goes the same way."""
        layout, buffers, params = pack_arguments(command.arguments)
        record = Record(
            function=command.function,
            stream=origin.stream.handle,
            grid=(command.grid.x, command.grid.y or 1, command.grid.z or 1),
            block=(command.block.x, command.block.y or 1, command.block.z or 1),
            shared_mem=command.shared_mem,
            flags=0,
            timeout_ns=command.timeout_ns,
            layout=layout,
            buffers=buffers,
            params=params,
        )
        self._submit(
            origin.session,
            pack(record),
            batch=origin.batch,
            index=origin.index,
            request=origin.request,
            call=origin.call,
        )

    def _malformed(self, session: Session, batch: BatchEntry, index: int, why: str) -> None:
        origin = Origin(self._replies, session, session.streams.items[0], "launch", batch=batch, index=index)
        refusal = Refusal(
            Reason.MALFORMED_MESSAGE,
            f"no launch record at this place: {why}; the rest of its launches was dropped",
            fix="pack records as hearth_proto/launches.py says",
        )
        origin.fail(refusal)

    def _submit(
        self,
        session: Session,
        data: bytes,
        *,
        batch: BatchEntry | None,
        index: int,
        request: int = 0,
        call: int = 0,
    ) -> None:
        """The long way: every check, and an operation that can wait for its module, its buffers or for room."""
        stream = session.streams.items[0]
        name = "launch"

        def origin() -> Origin:
            return Origin(self._replies, session, stream, name, batch=batch, index=index, request=request, call=call)

        buffers: list[Buffer] = []
        try:
            (record,) = unpack(data)
            stream = session.streams.find(record.stream)
            entry = session.functions.find(record.function)
            name = f"launch {entry.name}"
            for handle in record.buffers:
                buffers.append(session.buffers.find(handle))
        except RecordError as error:
            origin().fail(Refusal(Reason.MALFORMED_MESSAGE, str(error), fix="pack records as launches.py says"))
            return
        except Refusal as refusal:
            origin().fail(refusal, buffers)
            return
        operation = Operation(
            origin(),
            partial(self._run, stream, entry, record, buffers, data[KEY_AT : HEADER.size + len(record.layout)]),
            writes=(stream, *buffers),
            reads=(entry.module,),
            needs=buffers,
            spoils=buffers,
        )
        operation.after = operation.origin.reply
        submit(operation)

    def _run(
        self, stream: LogicalStream, entry: FunctionEntry, record: Record, buffers: Sequence[Buffer], key: bytes
    ) -> bool:
        device = self._device
        track = stream.track
        if entry.module.pending or track.full:
            return False
        plan = entry.plans.get(key)
        if plan is None:
            plan = self._plan(entry, record)
            if len(entry.plans) >= MAX_PLANS:
                entry.plans.clear()
            entry.plans[key] = plan
        params = plan.params_of(record.params)
        for patch, buffer in zip(plan.patches, buffers, strict=True):
            offset = Q.unpack_from(params, patch)[0]
            Q.pack_into(params, patch, buffer.range(offset, 0, f"launch of {entry.name}"))
        device.begin(stream)
        device.tracks.before(track, [buffer.usage for buffer in buffers])
        track.launched.append((device.tracks.ordering.position(track.index), entry.name))
        limit = plan.timeout_ns / 1e9 or device.spec.launch_timeout
        if limit:
            with self._watchdog.limit(track, entry.name, limit):
                self._to_driver(plan, track, params)
        else:
            self._to_driver(plan, track, params)
        return True

    def _to_driver(self, plan: Plan, track: Track, params: bytearray) -> None:
        self._device.server.launch(plan.function, plan.grid, plan.block, plan.shared_mem, track.stream, params)
        self._device.telemetry.kernel_launches += 1

    def _plan(self, entry: FunctionEntry, record: Record) -> Plan:
        """Every check that does not depend on the buffers; all failures in one refusal."""
        function = entry.resolve()
        if record.flags & ~KNOWN_FLAGS:
            raise Refusal(Reason.UNSUPPORTED, f"launch flags {record.flags & ~KNOWN_FLAGS:#x} are unknown here")
        if record.flags & (LaunchFlag.VALIDATE | LaunchFlag.COOPERATIVE):
            flag = LaunchFlag(record.flags & (LaunchFlag.VALIDATE | LaunchFlag.COOPERATIVE))
            raise Refusal(Reason.UNSUPPORTED, f"{flag.name} launches are not served yet", fix="launch in checked mode")
        given = unpack_layout(record.layout)
        wrong = self._check_arguments(function, given, record)
        kernel = geometry.KernelLimits(
            function.attributes.max_threads_per_block, function.attributes.static_shared_bytes
        )
        wrong += geometry.check(self._device.limits, kernel, record.grid, record.block, record.shared_mem)
        if wrong:
            raise geometry.refuse(entry.name, wrong, record.grid, record.block, record.shared_mem)
        return Plan(function, entry.name, record, given)

    @staticmethod
    def _check_arguments(function: Function, given: Sequence[Place], record: Record) -> list[str]:
        if len(record.params) > MAX_PARAMETER_BYTES:
            return [f"the arguments take {len(record.params)} bytes; the most is {MAX_PARAMETER_BYTES}"]
        if sum(place.pointer for place in given) != len(record.buffers):
            return [f"{len(record.buffers)} buffers are named; the layout has another number of addresses"]
        malformed = check_layout(given, len(record.params))
        return [malformed] if malformed else geometry.check_parameters(given, function.parameters)
