"""Launch commands: packed records, submitted to the driver.

A launch whose function has a plan for this geometry and layout is launched directly: one dictionary lookup replaces
all checks except those of the buffers. Any other launch becomes an operation that may wait, and goes through `Binder`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from hearth_proto.launches import HEADER, Extension, Record, RecordError, pack, unpack
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.launch.arguments import attributes_of, cluster_of, dim, flags_of, pack_arguments
from hearthd.device.launch.binder import Binder
from hearthd.device.launch.deferred_launch import LaunchRun
from hearthd.device.operation import Operation, Origin, ReplySink, submit
from hearthd.device.session.buffer import Buffer, Reach
from hearthd.device.session.launch_plan import KEY_OFFSET, LaunchPlan, Q
from hearthd.device.session.session import BatchEntry, CachedLaunch, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import NEVER, WINDOW

LENGTH = struct.Struct("<I")


class LaunchCommands:
    """Executes launches. Device-handle thread only."""

    def __init__(self, device: DeviceContext, binder: Binder, replies: ReplySink) -> None:
        self._device = device
        self._binder = binder
        self._replies = replies

    def run_records(
        self,
        session: DeviceSession,
        data: bytes,
        batch: BatchEntry,
        index: int,
        at: int = 0,
        limit: int = NEVER,
        must_stop_before: Callable[[LogicalStream], bool] | None = None,
    ) -> tuple[int, int]:
        """Runs the records of one `launches` field in order, from byte `at` on, at most about `limit` of them.

        Returns the number of records that were run, and the byte offset of the next record.

        `must_stop_before` is called for a record whose stream is full, or has many waiting commands. If it returns
        True, the run ends before that record; otherwise the record is deferred.
        """
        functions = session.functions.items
        streams = session.streams.items
        deferred = session.deferred.waiting
        unpack_header = HEADER.unpack_from
        default_timeout = session.launch_timeout
        tracks = self._device.tracks
        traced = session.trace is not None
        replay_cache = session.replay_cache
        entries = replay_cache.entries if replay_cache.should_look_up() else None
        last, cached = b"", None
        hits = 0
        size = len(data)
        end = min(size, at + limit * HEADER.size)
        misses = 0
        while at < end:
            if size - at < HEADER.size:
                self._report_malformed(
                    session, batch, index + misses + hits, f"{size - at} bytes are left; a record has at least 64 bytes"
                )
                at = size
                misses += 1
                break
            if entries and not deferred and not traced:
                if not last or not data.startswith(last, at):  # a record equal to the previous one needs no lookup
                    last = data[at : at + LENGTH.unpack_from(data, at)[0]]
                    cached = entries.get(last)
                if cached is not None and self._relaunch(cached):
                    at += len(last)
                    hits += 1
                    continue
                last = b""  # the following code may change the cache
            header = unpack_header(data, at)
            length = header[0]
            if length < HEADER.size or length & 7 or length > size - at:
                self._report_malformed(
                    session,
                    batch,
                    index + misses + hits,
                    f"its length is {length} bytes, and {size - at} bytes are left",
                )
                at = size
                misses += 1
                break
            entry = functions.get(header[3])
            stream = streams.get(header[4])
            plan = (
                entry.plans.get(data[at + KEY_OFFSET : at + HEADER.size + 4 * header[1]])
                if entry is not None and entry.has_launch_memory
                else None
            )
            if (
                plan is None
                or stream is None
                or deferred
                or traced
                or stream.starting
                or stream.capture is not None
                or plan.timeout_ns
                or default_timeout
                or plan.length != length
                or stream.track.held
                or (stream.track.budget <= 0 and not tracks.reap(stream.track))
                or not self._launch_planned(session, stream, plan, data, at, entries is not None)
            ):
                if (
                    must_stop_before is not None
                    and stream is not None
                    and _is_full(session, stream)
                    and must_stop_before(stream)
                ):
                    break
                self._submit(session, data[at : at + length], batch=batch, index=index + misses + hits)
            at += length
            misses += 1
        if entries is not None:
            replay_cache.report(hits, misses)
        return misses + hits, at

    def drop_records(
        self, session: DeviceSession, data: bytes, batch: BatchEntry, index: int, at: int, limit: int
    ) -> tuple[int, int]:
        """Drops records of one `launches` field from byte `at` on, up to the first that no cancellation covers.

        Drops at most `limit` records. Returns their number, and the byte offset of the next record.
        """
        size, count = len(data), 0
        while count < limit and size - at >= HEADER.size:
            header = HEADER.unpack_from(data, at)
            length = header[0]
            if length < HEADER.size or length & 7 or length > size - at:
                break  # `run_records` reports it
            stream = session.streams.get(header[4])
            covered = session.cancellations.find("launch", header[4], 0)
            if covered is None or (stream is not None and stream.capture is not None):
                break
            self._submit(session, data[at : at + length], batch=batch, index=index + count)
            at += length
            count += 1
        return count, at

    def relaunch(self, session: DeviceSession, record: bytes) -> bool:
        """Runs the single launch in `record` from the replay cache; no command of the session may be waiting.

        Returns False, without effect, if the launch is not in the cache or cannot be issued now.
        """
        replay_cache = session.replay_cache
        cached = replay_cache.entries.get(record)
        if cached is None or not self._relaunch(cached):
            return False
        replay_cache.report(1, 0)
        return True

    def _relaunch(self, launch: CachedLaunch) -> bool:
        """Repeats a launch whose record equals an earlier one byte for byte.

        Returns False, without effect, if the launch must wait.
        """
        stream, track, plan = launch.stream, launch.track, launch.plan
        if stream.starting or stream.capture is not None or track.held:
            return False
        device = self._device
        if track.budget <= 0 and not device.tracks.reap(track):
            return False
        relaunch = launch.relaunch
        if relaunch is None:
            relaunch = launch.relaunch = device.server.bind_launch(
                plan.function, plan.grid, plan.block, plan.shared_mem, track.stream, launch.params
            )
        position = device.tracks.claim_position(track, launch.writes, launch.reads, is_launch=True)
        track.launched.append((position, plan.name, stream.session))
        try:
            relaunch()
        except (Refusal, RuntimeError):
            launch.relaunch = None
            return False  # the queued path repeats the call and reports the error
        device.telemetry.launched += plan.weight
        return True

    def _launch_planned(
        self, session: DeviceSession, stream: LogicalStream, plan: LaunchPlan, data: bytes, at: int, remember: bool
    ) -> bool:
        """Launches directly. Returns False, without effect, if a buffer needs further checks."""
        device = self._device
        buffers = session.buffers.items
        if plan.integers and not plan.integers_fit(data, at + plan.params_at):
            return False
        params = plan.params(data, at)
        usages: list[Usage] = []
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
        reads: list[Usage] = []
        if plan.readers or session.shares:
            all_usages = usages
            readers = plan.readers if not session.shares else self._readers(session, plan, data, at)
            usages = [usage for usage, reader in zip(all_usages, readers, strict=True) if not reader]
            reads = [usage for usage in all_usages if usage not in usages]
            if session.shares and (reached := self._reached(session, plan, data, at)):
                if any(reach.buffer.failure is not None for reach in reached):
                    return False
                usages += [reach.buffer.usage for reach in reached if reach.may_write]
                reads = [usage for usage in (*reads, *(reach.buffer.usage for reach in reached)) if usage not in usages]
        position = tracks.claim_position(track, usages, reads, is_launch=True)
        track.launched.append((position, plan.name, session.id))
        try:
            device.server.launch(plan.function, plan.grid, plan.block, plan.shared_mem, track.stream, params)
        except Refusal:
            return False  # the queued path repeats the call and reports the error
        if remember:
            for usage in (*usages, *reads):
                usage.replayable = True
            session.replay_cache.remember(
                data[at : at + plan.length], CachedLaunch(stream, plan, params, usages, reads)
            )
        device.telemetry.launched += plan.weight
        return True

    @staticmethod
    def _reached(session: DeviceSession, plan: LaunchPlan, data: bytes, at: int) -> list[Reach]:
        """Returns the targets of the launch's arrays of pointers."""
        buffers = session.buffers.items
        handles = plan.handles.unpack_from(data, at + plan.handles_at)
        return [reach for handle in set(handles) for reach in buffers[handle].reaches]

    @staticmethod
    def _readers(session: DeviceSession, plan: LaunchPlan, data: bytes, at: int) -> Sequence[bool]:
        """Returns, for each buffer of the launch, True if it is only read.

        A buffer is only read if the client's layout says so, or if the buffer is read-only.
        """
        buffers = session.buffers.items
        handles = plan.handles.unpack_from(data, at + plan.handles_at)
        read_only = [buffers[handle].read_only is not None for handle in handles]
        return (
            [by_buffer or by_layout for by_buffer, by_layout in zip(read_only, plan.readers, strict=True)]
            if plan.readers
            else read_only
        )

    def launch(self, origin: Origin, command: commands_pb2.Launch) -> None:
        """Executes the readable form of a launch: converts it to a record and submits that."""
        if origin.record is not None:
            origin.record.drop()  # the record's operation has its own trace record
        layout, buffers, params = pack_arguments(command.arguments)
        record = Record(
            function=command.function,
            stream=origin.stream.handle,
            grid=dim(command.grid),
            block=dim(command.block),
            shared_mem=command.shared_mem,
            flags=flags_of(command),
            timeout_ns=command.timeout_ns,
            layout=layout,
            buffers=buffers,
            params=params,
            extension=_extension(command),
        )
        self._submit(
            origin.session,
            pack(record),
            batch=origin.batch,
            index=origin.index,
            request=origin.request,
            call=origin.call,
        )

    def _report_malformed(self, session: DeviceSession, batch: BatchEntry, index: int, fault: str) -> None:
        origin = Origin(self._replies, session, session.streams.items[0], "launch", batch=batch, index=index)
        refusal = Refusal(
            Reason.MALFORMED_MESSAGE,
            f"not a valid launch record: {fault}; the remaining launches of the command were dropped",
            fix="pack records as described in hearth_proto/launches.py",
        )
        origin.fail(refusal)

    def _submit(
        self,
        session: DeviceSession,
        data: bytes,
        *,
        batch: BatchEntry | None,
        index: int,
        request: int = 0,
        call: int = 0,
    ) -> None:
        """Submits a record on the queued path: resolves it, and creates an operation that makes every check.

        The operation can wait for its module, its buffers or room on its track.
        """
        stream, name = self._stream_and_name(session, data)
        origin = Origin(self._replies, session, stream, name, batch=batch, index=index, request=request, call=call)
        try:
            # A session without the right to launch has no functions, so its launches always arrive here.
            if session.permissions is not None:
                session.permissions.check(self._device.outbox, "launches")
            parsed = self._binder.parse(session, data)
        except Refusal as refusal:
            origin.fail(refusal, self._named_buffers(session, data))
            return
        run = LaunchRun(self._device, self._binder, origin, parsed)
        written, read = parsed.split()
        if parsed.grid_buffer is not None:
            read = [*read, parsed.grid_buffer]
        operation = Operation(
            origin,
            run.step if origin.capture is None else run.record,
            writes=(stream, *written),
            reads=(parsed.entry.module, *read),
            needs=(*written, *read),
            spoils=written,
        )
        operation.on_failure = run.release
        if origin.capture is not None or not run.validates:
            operation.after = origin.reply
        submit(operation)

    @staticmethod
    def _stream_and_name(session: DeviceSession, data: bytes) -> tuple[LogicalStream, str]:
        """Returns the stream and the command name of a record, or defaults if its handles are unknown."""
        header = HEADER.unpack_from(data)
        entry = session.functions.get(header[3])
        stream = session.streams.get(header[4])
        return (
            stream if stream is not None else session.streams.items[0],
            f"launch {entry.name}" if entry is not None else "launch",
        )

    @staticmethod
    def _named_buffers(session: DeviceSession, data: bytes) -> list[Buffer]:
        """Returns the buffers that a refused record names; empty if the record or its function is invalid."""
        try:
            (record,) = unpack(data)
        except (RecordError, ValueError):
            return []
        if session.functions.get(record.function) is None:
            return []
        buffers = (session.buffers.get(handle) for handle in record.buffers)
        return [buffer for buffer in buffers if buffer is not None]


def _is_full(session: DeviceSession, stream: LogicalStream) -> bool:
    """True if a launch would have to wait for other launches of its stream."""
    deferred = session.deferred
    return stream.track.budget <= 0 or (len(deferred) >= WINDOW and deferred.holds(stream))


def _extension(command: commands_pb2.Launch) -> Extension | None:
    dynamic = command.dynamic_grid
    iterations = command.iterations if command.HasField("iterations") else 1
    cluster = cluster_of(command)
    attributes = attributes_of(command.attributes) if command.HasField("attributes") else None
    if iterations == 1 and not any(cluster) and not command.HasField("dynamic_grid") and attributes is None:
        return None
    return Extension(cluster, iterations, dynamic.buffer, dynamic.offset, attributes)


def refuse_answered_launches(_origin: Origin, _records: bytes) -> None:
    """Refuses packed launches outside a batch, or with a request number, because their answer would never be sent."""
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        "packed launches are one way: they take no request number",
        fix="send them without one and a Flush after them, or the readable form, Launch",
    )
