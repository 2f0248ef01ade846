"""StartTrace and EndTrace: records the times of each command of a session.

The times are those at which the command arrived, was submitted to the device, started and ended.

Without a trace, a session has no records, and its launches may need no operations.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import Stream
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin, internal_error
from hearthd.device.profiling.annotations import AnnotationObserver, KernelActivitySource, RangeMarker
from hearthd.device.profiling.recorder import Trace
from hearthd.device.session.session import DeviceSession

DEFAULT_EVENTS = 100_000
MAX_EVENTS = 200_000


class TraceCommands:
    """Executes the trace commands. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        post: Callable[[Callable[[], None]], None],
        marks: RangeMarker | None = None,
        activity: KernelActivitySource | None = None,
    ) -> None:
        self._device = device
        self._post = post
        self._activity = activity
        self._clock_stream: Stream | None = None
        self._sessions: set[int] = set()
        self._numbers = itertools.count(1)
        self._marks: list[RangeMarker] = [marker for marker in (marks, activity) if marker is not None]
        self._always = AnnotationObserver(marks, self._numbers) if marks is not None else None

    def opened(self, session: DeviceSession) -> None:
        """Installs the observer for annotations, if configured, in a new session."""
        session.trace = self._always

    @property
    def running(self) -> int:
        """Number of sessions with a trace."""
        return len(self._sessions)

    def closed(self, session: DeviceSession) -> None:
        """Ends the trace or the annotations of a session that is closed; the trace is not reported."""
        self._sessions.discard(session.channel)
        if session.trace is not None:
            session.trace.close()
            session.trace = None

    def start(self, origin: Origin, command: commands_pb2.StartTrace) -> None:
        """Starts a trace with the next command.

        It is limited to `MAX_EVENTS` records and `recorder.MAX_BYTES`, even if more was requested.
        """
        session = origin.session
        if isinstance(session.trace, Trace):
            raise Refusal(
                Reason.PROFILE_INVALID,
                "a trace of this session is running on this device",
                fix="end it first; one trace has all commands of the session",
            )
        if self._clock_stream is None:
            self._clock_stream = self._device.server.create_stream()
        limit = min(command.max_events or DEFAULT_EVENTS, MAX_EVENTS)
        session.trace = Trace(self._device, self._clock_stream, limit, self._marks, self._activity, self._numbers)
        self._sessions.add(session.channel)
        origin.reply()

    def end(self, origin: Origin, _command: commands_pb2.EndTrace) -> Operation:
        """Ends the trace. The answer is sent when all work submitted earlier is done."""
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "a trace end needs a request number", fix="set Command.request")
        session = origin.session
        trace = session.trace
        if not isinstance(trace, Trace):
            raise Refusal(
                Reason.PROFILE_INVALID, "no trace of this session is running on this device", fix="start one first"
            )
        session.trace = self._always
        self._sessions.discard(session.channel)
        if origin.record is not None:
            origin.record.drop()
            origin.record = None

        def run() -> bool:
            trace.finish(partial(self._report, origin, trace))
            return True

        operation = Operation(origin, run, barrier=True)
        operation.on_failure = lambda _refusal: trace.close()
        return operation

    def _report(self, origin: Origin, trace: Trace) -> None:
        """Builds the answer on a separate thread, because encoding 100,000 events takes long."""
        telemetry = self._device.telemetry
        duration_ns = time.perf_counter_ns() - trace.began_ns
        telemetry.traces += 1
        telemetry.trace_events += len(trace.records)
        telemetry.trace_events_dropped += trace.dropped

        def work() -> None:
            try:
                result = commands_pb2.Result(trace=trace.result())
                copy = _pack(result.trace, duration_ns)
            except Exception as error:
                refusal = internal_error(origin.name, error)
                self._post(lambda: origin.fail(refusal))
                return

            def answer() -> None:
                self._device.outbox.put(Kind.TRACED, copy, channel=origin.session.channel)
                origin.reply(result)

            self._post(answer)

        threading.Thread(target=work, name="trace", daemon=True).start()


def _pack(result: commands_pb2.TraceResult, duration_ns: int) -> bytes:
    """Returns the payload of a TRACED frame, which the front keeps for its status page."""
    head = {"events": len(result.events), "epoch_ns": result.epoch_ns, "lasted_ns": duration_ns}
    return json.dumps(head).encode() + b"\n" + zlib.compress(result.SerializeToString(), 1)
