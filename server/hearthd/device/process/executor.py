"""Executor: opens and closes sessions, and executes their frames and commands, on the device-handle thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hearth_proto.chunks import varint
from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.launch.watchdog import shorter_limit
from hearthd.device.operation import Origin, done_response, internal_error, submit
from hearthd.device.outbox import LaneSink
from hearthd.device.platform.telemetry import resident_bytes
from hearthd.device.process.command_registry import CommandRegistry
from hearthd.device.profiling.annotations import KernelActivitySource, RangeMarker
from hearthd.device.scheduler.arrivals import Arrivals
from hearthd.device.scheduler.batch_run import Runners
from hearthd.device.scheduler.fair_share import FairShare
from hearthd.device.scheduler.steps import Steps
from hearthd.device.session import failed_handles, permissions
from hearthd.device.session.handle_limit import HandleLimits
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.streams.kernel_watch import KernelWatch

OPEN, RESPONSE, RESULT, ACK = Kind.OPEN, Kind.RESPONSE, Kind.RESULT, Kind.ACK  # plain names: each lookup costs 0.3 us


_RESULT = bytes((device_pb2.ExecuteResponse.RESULT_FIELD_NUMBER << 3 | 2,))
"""The tag of `ExecuteResponse.result`, a length-delimited field."""


class Executor:
    """Executes the frames of all sessions, and sends their answers. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        post: Callable[[Callable[[], None]], None],
        marks: RangeMarker | None = None,
        activity: KernelActivitySource | None = None,
    ) -> None:
        self._device = device
        self._sessions: dict[int, DeviceSession] = {}
        self._handles = HandleLimits(device.spec.max_handles, self._sessions.values)
        self._leaving: dict[int, DeviceSession] = {}
        """Closed sessions whose work is still running."""
        self._kernels = KernelWatch()
        self._kicked: set[int] = set()
        self.retry_all = False
        """True if deferred commands of all sessions are to be tried again in the next iteration of the loop."""
        registry = CommandRegistry(device, self, self.session, post, marks, activity)
        self.registry, self._handlers = registry, registry.handlers
        self.memory, self._traces = registry.memory, registry.traces
        self.watchdog = registry.watchdog
        self.collectives, self.transfers, self.segments = registry.collectives, registry.transfers, registry.segments
        self.snapshots, self.publishing = registry.snapshots, registry.publishing
        device.telemetry.register(self._handlers)
        device.idle_work.tenant_of = self._tenant_of
        runners = Runners(device, registry.launches, self, registry.at_once)
        self.sharing = FairShare(device, Arrivals(runners), self._perform)
        self.steps = Steps(device, self, registry.launches, self.sharing, self.has_deferred)
        self.on_arrival: Callable[[DeviceSession], None] = self.sharing.run_on_arrival
        """Runs the batches of a session that have arrived. An attribute, so that an observer can replace it in a
        compiled class."""
        self._at_once: dict[int, Callable[[DeviceSession, Frame], None]] = {
            Kind.UPLOAD: self._upload,
            Kind.DOWNLOAD: self.transfers.downloads.frame,
            Kind.CREDIT: self.transfers.downloads.credit,
            Kind.ABORT: self.transfers.aborted,
            Kind.CANCEL: self._cancel,
            Kind.DROP: self._drop,
            Kind.SNAPSHOT: self.snapshots.answered,
            Kind.CHANGE: lambda session, frame: session.change(json.loads(frame.payload)),
        }
        """Handlers of frames that are handled on arrival; all other frames keep the order of the session's commands."""
        self.on_close: Callable[[DeviceSession], None] = self.segments.close
        """Called with each session that is being closed, after its waiting commands have been abandoned."""
        self.in_order: dict[int, Callable[[DeviceSession, Frame], None]] = {
            Kind.CLOSE: self._close,
            Kind.UPLOAD: self.transfers.uploads.frame,
            Kind.RESTORE: self.snapshots.restore,
        }

    def frame(self, frame: Frame) -> None:
        """Handles a frame that belongs to a session, or opens one; a frame of an unknown session is ignored."""
        if frame.kind == OPEN:
            info = json.loads(frame.payload or b"{}")
            info["launch_timeout"] = shorter_limit(info.get("launch_timeout", 0.0), self._device.spec.launch_timeout)
            opened = self._sessions[frame.channel] = DeviceSession(frame.channel, info, self._device.tracks.acquire)
            self._handles.limit(opened)
            self.sharing.open(opened)
            self._traces.opened(opened)
            return
        session = self._sessions.get(frame.channel)
        if session is None:
            return
        handler = self._at_once.get(frame.kind)
        if handler is not None:
            handler(session, frame)
        else:
            self.sharing.enqueue(session, frame)

    def run_step(self, lane: LaneSink, seq: int, payload: bytes) -> bool:
        """Executes a batch that is a step. Returns False, without effect, if the batch takes the general path."""
        session = self._sessions.get(lane.channel)
        return session is not None and self.steps.execute(lane, session, seq, payload)

    def run_on_arrival(self, channel: int) -> None:
        """Runs the batches of the channel that have arrived, if no other session has work."""
        session = self._sessions.get(channel)
        if session is not None and not self.has_deferred():
            self.on_arrival(session)

    def session(self, channel: int) -> DeviceSession | None:
        """Returns the open session of the channel; None if there is none."""
        return self._sessions.get(channel)

    def _tenant_of(self, ident: str) -> str | None:
        """Returns the tenant of a session by its id, while the session is open or its work runs; otherwise None."""
        sessions = (*self._sessions.values(), *self._leaving.values())
        return next((session.tenant for session in sessions if session.id == ident), None)

    def kick(self, session: DeviceSession | None) -> None:
        """Schedules the deferred commands of the session (None: of all sessions) to be tried again.

        They are tried before the loop sleeps.
        """
        if session is None:
            for channel, open_session in self._sessions.items():
                if open_session.deferred.waiting:
                    self._kicked.add(channel)
        elif session.deferred.waiting:
            self._kicked.add(session.channel)

    def pump(self) -> None:
        """Runs the commands that have arrived, and the deferred commands of sessions that were kicked."""
        if self.retry_all:
            self.retry_all = False
            self.kick(None)
        if self.memory.deferred_free.queues:
            self.memory.deferred_free.pump()
        self.sharing.pump()
        if self._kicked:
            self.pump_kicked()

    def pump_kicked(self) -> None:
        """Runs only the deferred commands of sessions that were kicked."""
        while self._kicked:
            session = self._sessions.get(self._kicked.pop())
            if session is not None:
                session.deferred.pump()
                self.sharing.deferred_retried(session)

    def has_deferred(self) -> bool:
        """True if deferred commands or frees must be tried first."""
        return bool(self._kicked or self.memory.deferred_free.queues)

    @property
    def more(self) -> bool:
        """True if another iteration of the loop would make progress immediately."""
        return bool(self._kicked) or self.retry_all or self.sharing.more or self.memory.deferred_free.more

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds; at most `limit`, where None means no limit."""
        if self._kicked or self.retry_all or self.memory.deferred_free.more:
            return 0.0
        return self.watchdog.max_sleep(self.sharing.max_sleep(limit))

    @property
    def unused(self) -> bool:
        """True if the process has no session, and no buffer that outlived one because it is published or exported."""
        gauges = self.registry.gauges()
        return not (self._sessions or self._leaving or gauges["buffers_published"] or gauges["buffers_exported"])

    def snapshot(self) -> dict[str, Any]:
        """Returns the state of the process for the metrics and the status page.

        Contains counters, gauges and histograms, memory in use by tenant and by channel, the running kernels, and the
        closed sessions whose work is still running.
        """
        info = self._device.server.memory_info()
        sessions = self._sessions.values()
        gauges = {
            "sessions": len(self._sessions),
            "sessions_leaving": len(self._leaving),
            "buffers": sum(len(session.buffers) for session in sessions),
            "modules": sum(len(session.modules) for session in sessions),
            "graphs": sum(len(session.graphs) for session in sessions),
            "prepared_lists": sum(len(session.prepared) for session in sessions),
            "commands_waiting": sum(len(session.deferred) for session in sessions),
            "streams": len(self._device.tracks.all),
            "streams_kept_back": len(self._device.tracks.withheld),
            **self._device.idle_work.gauges(),
            "memory_in_use_bytes": sum(session.bytes_in_use for session in sessions),
            "memory_reserved_bytes": info.reserved,
            "memory_free_bytes": info.free,
            "memory_total_bytes": info.total,
            "staging_bytes": self._device.staging.in_use + self.transfers.chunks.reserved_bytes,
            "durable_bytes": sum(session.bytes_durable for session in sessions),
            "profiles_open": sum(len(session.profiles) for session in sessions),
            "device_process_resident_memory_bytes": resident_bytes(),
            **self.registry.gauges(),
        }
        tenants: dict[str, int] = {}
        for session in sessions:
            tenants[session.tenant] = tenants.get(session.tenant, 0) + session.bytes_in_use
        return {
            **self._device.telemetry.snapshot(gauges["commands_waiting"]),
            "gauges": gauges,
            "tenants": tenants,
            "sessions": {
                channel: size for channel, session in self._sessions.items() if (size := session.bytes_in_use)
            },
            "running": self._kernels.report(self._device.tracks.live),
            "leaving": {channel: self._leaving_state(session) for channel, session in self._leaving.items()},
        }

    def _leaving_state(self, session: DeviceSession) -> dict[str, Any]:
        """Returns the state of a closed session whose work is still running.

        Contains its kernels in flight, and `busy`, which is False if only frees that can run are left.
        """
        free_queue = self.memory.deferred_free.latest(session)
        return {
            "busy": free_queue is None or self.memory.deferred_free.blocked(session),
            "kernels": self._device.tracks.in_flight(session.id),
        }

    # ---- replies (see operation.ReplySink) ----

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        """Sends the result: as the answer to the single call `call`, or as a stream response if `call` is 0.

        Output of the session's completed kernels is sent before it.
        """
        device = self._device
        if device.output.suspects:
            device.output.settle(session.channel)
        if call:
            device.outbox.put(RESULT, result.SerializeToString(), channel=session.channel, id=call)
        else:
            data = result.SerializeToString()
            # The encoding of ExecuteResponse.result; a message around the result would copy it.
            device.outbox.put(RESPONSE, _RESULT + varint(len(data)) + data, channel=session.channel)

    def done(self, session: DeviceSession, call: int, request: int) -> None:
        """Sends the result of a command that returns no value, in the same way as `result`."""
        device = self._device
        if device.output.suspects:
            device.output.settle(session.channel)
        if call:
            done = commands_pb2.Result(request=request, done=commands_pb2.Done())
            device.outbox.put(RESULT, done.SerializeToString(), channel=session.channel, id=call)
        else:
            device.outbox.put(RESPONSE, done_response(request), channel=session.channel)

    def failed(self, origin: Origin, refusal: Refusal) -> None:
        """Counts the failure in the telemetry, under the command's kind."""
        self._device.telemetry.failed(origin.kind, refusal)

    def waited(self, nanoseconds: int) -> None:
        """Counts the delay of a deferred command, in nanoseconds, in the telemetry."""
        self._device.telemetry.queue_delay.observe(nanoseconds)

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None:
        """Acknowledges all batches, from the oldest on, whose commands have all run."""
        batches = session.batches
        done = 0
        while batches and not batches[0].left:
            done = batches.popleft().seq
        if done:
            self._device.outbox.put(ACK, channel=session.channel, id=done)

    # ---- frames ----

    def _perform(self, session: DeviceSession, frame: Frame) -> None:
        handler = self.in_order.get(frame.kind)
        if handler is not None:
            handler(session, frame)

    def _upload(self, session: DeviceSession, frame: Frame) -> None:
        if not self.sharing.enqueue_behind(session, frame):
            self.transfers.uploads.frame(session, frame)

    def _cancel(self, session: DeviceSession, frame: Frame) -> None:
        """Cancels a call that its client no longer waits for, unless it must run; see `Operation.cancellable`."""
        refusal = Refusal(Reason.CANCELLED, "the client no longer waits for the call; the call was not executed")
        if self.sharing.cancel(session, frame.id):
            self._device.telemetry.cancelled += 1
            self.result(session, frame.id, commands_pb2.Result(error=refusal.to_status()))
            return
        for operation in session.deferred:
            if operation.cancellable(frame.id):
                operation.abandon(refusal)
                self._device.telemetry.cancelled += 1
                self._kicked.add(session.channel)
                return

    def _drop(self, session: DeviceSession, frame: Frame) -> None:
        """Puts a Cancel command into effect before its batch is executed."""
        self.registry.cancels.take_effect_early(session, frame)
        self.sharing.commands_cancelled(session)

    def command(
        self,
        session: DeviceSession,
        command: commands_pb2.Command,
        kind: str,
        *,
        batch: BatchEntry | None = None,
        index: int = 0,
        call: int = 0,
    ) -> None:
        """Runs the command or defers it. An error of the command is answered, or recorded on the stream.

        `kind` is the command's kind; "" if it has none. `call` is the number of the single call; 0 in a batch. Raises
        DeviceFault if the device is lost.
        """
        device = self._device
        device.telemetry.count(kind)
        stream = session.streams.get(command.stream)
        origin = Origin(
            self,
            session,
            stream if stream is not None else session.streams.items[0],
            kind or "command",
            batch=batch,
            index=index,
            request=command.request,
            call=call,
        )
        try:
            if session.permissions is not None:
                session.permissions.check(device.outbox, permissions.kind_of(kind, command))
            if stream is None:
                origin.capture = None
                raise session.streams.unknown(command.stream)
            if stream.capture is not None:
                stream.capture.admit(origin, command)
            handler = self._handlers.get(kind)
            if handler is None:
                raise Refusal(
                    Reason.UNSUPPORTED,
                    f"a command of kind {kind or 'none'} is not supported",
                    fix="use a client of this daemon's version; see NodeService.Describe",
                )
            operation = handler(origin, getattr(command, kind))
            if operation is not None:
                submit(operation)
            elif origin.record is not None:
                origin.record.settle()
        except Refusal as refusal:
            if kind == "cancel":  # it may have taken effect early
                self.registry.cancels.end(session, command.request)
            self._refuse(origin, kind, command, refusal)
        except DeviceFault:
            raise
        except Exception as error:
            origin.fail(internal_error(origin.name, error))

    @staticmethod
    def _refuse(origin: Origin, kind: str, command: commands_pb2.Command, refusal: Refusal) -> None:
        """Refuses a command. Destroying an object whose creation failed counts as success."""
        message = getattr(command, kind, None)
        if failed_handles.never_created(origin.session, kind, message):
            origin.reply()
            if origin.record is not None:
                origin.record.settle()
            return
        origin.fail(refusal)
        if not origin.answered:  # a client that waits for the answer receives the refusal
            failed_handles.record_refusal(origin.session, kind, message, refusal)

    def _close(self, session: DeviceSession, _frame: Frame) -> None:
        """Abandons the session's waiting commands, frees everything that it holds, and then sends CLOSED to the front.

        Memory is freed, and tracks may be used again, after the session's work under way is done.
        """
        refusal = Refusal(Reason.SESSION_EXPIRED, "the session was closed before the command ran")
        for operation in session.deferred.clear():
            operation.abandon(refusal)
        self.on_close(session)
        self.registry.close(session)
        release_tracks = self._device.tracks.withhold(session.tracks())
        for stream in session.streams.items.values():
            self._device.tracks.release(stream.track)
        self._leaving[session.channel] = self._sessions.pop(session.channel)

        def closed() -> None:
            del self._leaving[session.channel]
            release_tracks()
            self._device.output.close(session.channel)
            self.sharing.remove(session)
            self._device.outbox.put(Kind.CLOSED, channel=session.channel)

        self.memory.deferred_free.after(session, lambda: self._device.tracks.after_all(session.tracks(), closed))
