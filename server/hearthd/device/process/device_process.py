"""A device process: one event loop over the link to the front, lanes and wake-ups.

All commands run on the loop's thread, the device-handle thread.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from hearth_proto.cores import cores
from hearth_proto.frames import HEADER, Frame, FrameError, FrameReader, Kind
from hearthd.device.backend.launch_limits import LaunchLimits
from hearthd.device.backend.server import ComputeServer, DeviceFault, KeepsCrashRecord
from hearthd.device.broker.client import Broker, BrokeredLibraries
from hearthd.device.channels.lane import BATCH
from hearthd.device.channels.lanes import LaneConnections
from hearthd.device.channels.segment_channels import SegmentConnections
from hearthd.device.channels.stripes import Stripes
from hearthd.device.compiler.service import CompileService
from hearthd.device.context import DeviceContext
from hearthd.device.outbox import Outbox
from hearthd.device.platform import segment_exchange, spin_policy
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.spin_policy import SpinPolicy, at_most
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.printf_capture import PrintfCapture
from hearthd.device.process.broker_watch import BrokerWatch
from hearthd.device.process.executor import Executor
from hearthd.device.process.fatal import abort_process, send_output
from hearthd.device.process.gc_policy import GarbageCollector
from hearthd.device.process.idle_policy import NAP_S, IdlePolicy
from hearthd.device.profiling.annotations import KernelActivitySource, RangeMarker
from hearthd.device.resources.grants import ProcessGrants
from hearthd.device.resources.idle_work import IdleWork
from hearthd.device.resources.staging import Staging
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.completion_forecast import SHORT_S
from hearthd.device.streams.stream_pool import StreamPool
from hearthd.shared import crash_record, log
from hearthd.shared.device_spec import DeviceSpec

HEAD = HEADER.size
RECEIVE_BYTES = 64 << 10
LONG_RECEIVE_BYTES = 2 << 20
"""Size of a receive, in bytes, while a long frame has been received in part. Other receives use `RECEIVE_BYTES`,
because allocating this much takes 20 us."""


def make_server(spec: DeviceSpec, broker: Broker) -> ComputeServer:
    """Returns the backend that the specification names.

    The backend reads all host files through the broker, and passes segments to other processes.
    """
    segment_exchange.use(broker)
    if spec.backend == "cuda":
        from hearthd.device.cuda.server import CudaServer

        return CudaServer(spec)
    from hearthd.device.cpu.server import CpuServer

    return CpuServer(spec, BrokeredLibraries(broker))


class DeviceProcess:
    """The event loop, the link to the front, and the executor."""

    _answers_faults = False
    _pinned = False
    """True once compiles are attributed to a tenant, which happens before any work of a session."""

    def __init__(
        self,
        link: socket.socket,
        spec: DeviceSpec,
        server: ComputeServer,
        broker: Broker,
        descriptors: socket.socket,
        confined: str = "",
    ) -> None:
        self._link = link
        self._reader = FrameReader()
        self.loop = Loop()
        link.setblocking(False)
        self.outbox = Outbox(link, self._watch_writes)
        properties = server.properties
        properties.confinement = confined
        tracks = StreamPool(server, spec.max_streams, self.loop.wake)
        telemetry = Telemetry()
        journal = ProcessLog(spec)
        if spec.backend == "cuda":
            broker.serve(server.compiler.recipe())
        output = PrintfCapture(server.flush_output, tracks, self.outbox, telemetry, journal, self.loop.post)
        device = DeviceContext(
            spec=spec,
            server=server,
            tracks=tracks,
            staging=Staging(server, spec.staging_bytes, tracks, lambda: self._kick(None)),
            grants=ProcessGrants(spec, server, self.outbox),
            compiler=CompileService(broker, spec.compile_workers, self.loop.post),
            outbox=self.outbox,
            telemetry=telemetry,
            output=output,
            idle_work=IdleWork(server, tracks, lambda: self._kick(None), journal, spec.load_timeout),
            limits=LaunchLimits(
                properties.max_threads_per_block,
                _dim(properties.max_block_dim),
                _dim(properties.max_grid_dim),
                properties.shared_mem_per_block_optin,
                properties.multiprocessor_count,
                properties.max_threads_per_multiprocessor,
                properties.max_blocks_per_multiprocessor,
                frozenset(properties.features),
                properties.access_policy_max_window_size,
            ),
            kick=self._kick,
            retry_soon=self._retry_soon,
        )
        self.device = device
        device.staging.on_return = telemetry.transfer.observe
        self.loop.on_iteration = telemetry.loop_turn.observe
        tracks.on_launch_timed = telemetry.launch_completion.observe
        self.executor = Executor(device, self.loop.post, *_observers(spec, journal))
        self.descriptors = DescriptorSocket(descriptors, self.loop, journal)
        """The socket next to the link that passes open files."""
        self.idle_policy = IdlePolicy(self.executor, tracks, self.outbox, self.loop)
        self.lanes = LaneConnections(self.loop, self.outbox, self.executor, journal, self.descriptors)
        self._segments = SegmentConnections(
            self.loop,
            self.executor.session,
            self.executor.segments,
            self.executor.transfers,
            journal,
            self.descriptors,
        )
        self.executor.on_close = self._segments.close
        self.stripes = Stripes(self.loop, self.executor.session, self.executor.transfers, journal, self.descriptors)
        self._collector = GarbageCollector()
        self._controls: dict[int, Callable[[Frame], None]] = {}
        self.control(Kind.TURN, self.executor.sharing.on_turn)
        self.control(Kind.LIMIT, device.grants.on_limit)
        self._controls[Kind.CHANGE] = self._change
        self.executor.publishing.listen(self.control, self.descriptors)
        self.executor.snapshots.listen(self.descriptors)
        self.executor.transfers.chunks.listen(self.control, self.descriptors, journal)
        self.loop.add_reader(link.fileno(), self._readable)
        if spec.linger and cores() >= spin_policy.CORES:
            self.loop.lingering = SpinPolicy(spec.linger)
            self.loop.on_served = self.idle_policy.expects
            tracks.forecast.short = SHORT_S
        self.loop.on_poll = self._poll
        self.loop.on_nap = self.idle_policy.nap
        self.loop.on_idle = self._send
        if isinstance(server, KeepsCrashRecord):
            self.descriptors.register(
                crash_record.FILE, lambda _body, files: self._keep_crash_record(server, files, journal)
            )
            self.descriptors.receive()  # handles the messages that the front has sent already
        self._broker_watch = BrokerWatch(
            broker, telemetry, journal, self.loop.post, lambda: self.executor.unused, self._die
        )
        self.outbox.put(Kind.READY, properties.SerializeToString())

    def _keep_crash_record(self, server: KeepsCrashRecord, files: Sequence[int], journal: ProcessLog) -> None:
        for file in files:
            try:
                server.keep_crash_record(file)
                self._send_output_before_end(server)
            except (OSError, ValueError) as error:  # a crash is then reported without kernel names
                journal.warning("crash_record", error=str(error))

    def _send_output_before_end(self, server: KeepsCrashRecord) -> None:
        """Makes the backend wait, when a kernel's fault ends the process, for the delivery of the kernels' output.

        The wait ends when the front has received the output.
        """
        if self._answers_faults:
            return
        self._answers_faults = True
        request, answer = server.output_pipes()

        def send(_events: int) -> None:
            os.read(request, 1)
            send_output(self.device, self._link)
            os.write(answer, b"!")

        self.loop.add_reader(request, send)

    def run(self) -> None:
        """Serves until the front sends SHUTDOWN or closes the link.

        After a fault it does not return; the process ends.
        """
        self.device.compiler.warm()
        self._collector.begin()
        try:
            self.loop.run()
        except DeviceFault as fault:
            self._die(f"the device failed: {fault}")
        except Exception as error:
            traceback.print_exc()
            self._die(f"an error inside the daemon: {type(error).__name__}: {error}", fix="report it with the log")
        self._broker_watch.close()
        self.outbox.send_all()
        self.device.compiler.close()
        if not self.device.tracks.in_flight():  # otherwise freeing memory would wait for kernels that may never end
            self.device.server.close()
        self.loop.close()

    def control(self, kind: Kind, handler: Callable[[Frame], None]) -> None:
        """Registers `handler` for the frames of this kind.

        A frame of a session is handled after all earlier frames of that session, any other frame immediately.
        """
        self._controls[kind] = handler
        self.executor.in_order[kind] = lambda _session, frame: handler(frame)

    def _change(self, frame: Frame) -> None:
        """Applies changed limits that the process was started with."""
        if frame.channel:
            return  # for a session that has ended
        changes = json.loads(frame.payload)
        self.device.spec = dataclasses.replace(self.device.spec, launch_timeout=changes["launch_timeout"])
        self.device.idle_work.limit = changes["load_timeout"]
        log.configure(changes["log_level"], changes["log_format"])

    def _kick(self, session: DeviceSession | None) -> None:
        self.executor.kick(session)  # indirect, because the executor is created after the objects that call this

    def _retry_soon(self) -> None:
        self.executor.retry_all = True  # indirect, for the same reason

    def _poll(self) -> float | None:
        device, executor = self.device, self.executor
        tracks, sharing = device.tracks, executor.sharing
        self.idle_policy.begin()
        progress = tracks.poll()
        if progress:
            self.outbox.answer()  # answers are sent before any other work
            executor.kick(None)
            self.loop.linger()
        device.staging.poll()
        executor.pump()
        device.staging.flush()
        if self.idle_policy.defers_housekeeping():
            return NAP_S
        wake = device.idle_work.poll()
        # A slice that other sessions wait for is filled from the sockets before it is closed.
        idle = not (progress and sharing.is_slicing)
        sharing.settle(idle)
        expired = executor.watchdog.expired()
        if expired is not None:
            self.device.telemetry.kernel_timeouts += 1
            self._die(
                f"kernel {expired.kernel} ran longer than its limit of {expired.seconds:g} s",
                fix="raise the launch's timeout, or make the kernel end",
                sessions=[expired.session],
            )
        limit = executor.collectives.poll(tracks.max_sleep() if idle else 0.0)
        if wake is not None:
            limit = at_most(wake, limit)
        limit = self.stripes.max_sleep(self.lanes.max_sleep(executor.max_sleep(limit)))
        return self._collector.max_sleep(self.outbox.max_sleep(limit))

    def _send(self) -> None:
        self.executor.collectives.flush()
        self.outbox.send()

    def _watch_writes(self, writes: bool) -> None:
        self.loop.watch(self._link.fileno(), writes=writes)

    def _readable(self, _events: int) -> None:
        try:
            data = self._link.recv(LONG_RECEIVE_BYTES if self._reader.pending > HEAD else RECEIVE_BYTES)
        except BlockingIOError:
            self.outbox.send()  # woken because the socket is writable again
            return
        except OSError:
            data = b""
        if not data:
            # The front is gone, and with it every client. The process does not wait for work under way, which may never
            # end.
            os._exit(0)
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            self._die(f"the front's link has lost its framing: {error}")
        for frame in frames:
            self._frame(frame)
        if len(frames) == 1 and frames[0].kind == BATCH:
            self.executor.run_on_arrival(frames[0].channel)

    def _frame(self, frame: Frame) -> None:
        if frame.kind == Kind.PING:
            self.outbox.put(Kind.PONG, id=frame.id)
        elif frame.kind == Kind.STATS:
            self.executor.sharing.meter.report()  # so that both reports are of the same time
            self.outbox.put(Kind.STATS, json.dumps(self.executor.snapshot()).encode(), id=frame.id)
        elif frame.kind == Kind.COLLECTIVE:
            self.executor.collectives.message(frame.payload)
            # Runs them now, because every device must launch collectives in the order of the front's messages.
            self.executor.pump_kicked()
        elif frame.kind == Kind.SHUTDOWN:
            self.lanes.close()
            self.stripes.close()
            self.loop.stop()
        elif frame.kind == Kind.LANE_END:
            self.lanes.end(frame)
        elif frame.kind in self._controls and self.executor.session(frame.channel) is None:
            self._controls[frame.kind](frame)
        else:
            if frame.kind == Kind.CLOSE:
                self.lanes.drop(frame.channel)
            if frame.kind == Kind.OPEN and not self._pinned:
                self._pinned = True
                self.device.compiler.pin(str(json.loads(frame.payload).get("tenant", "")))
            self.executor.frame(frame)
            if frame.kind == Kind.OPEN:
                self.lanes.opened(frame.channel)
                self._segments.opened(frame.channel)
                self.stripes.opened(frame.channel)

    def _die(self, reason: str, *, fix: str = "", sessions: Sequence[str] | None = None) -> NoReturn:
        abort_process(self.device, self.executor.sharing.meter, self._link, reason, fix=fix, sessions=sessions)


def _observers(spec: DeviceSpec, journal: ProcessLog) -> tuple[RangeMarker | None, KernelActivitySource | None]:
    """Returns the observers of commands that the configuration requests and the machine supports."""
    marks: RangeMarker | None = None
    activity: KernelActivitySource | None = None
    if spec.nvtx:
        from hearthd.device.cuda.nvtx import make_ranges

        marks = make_ranges(journal.warning)
    if spec.cupti:
        from hearthd.device.cuda.cupti import make_activity

        activity = make_activity(journal.warning)
    return marks, activity


def _dim(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
