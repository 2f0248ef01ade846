"""Deferred launch: a launch on the queued path.

It may wait for its module, its grid or room on its track, and is then validated, recorded or issued.
"""

from __future__ import annotations

from hearth_proto.launches import LaunchFlag
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.dynamic_grid import DynamicGrid
from hearthd.device.launch.memory_checker import Validation
from hearthd.device.operation import Origin
from hearthd.device.resources.grants import MemoryRequest
from hearthd.device.resources.idle_work import Waiting
from hearthd.device.streams.stream_pool import WINDOW


class LaunchRun:
    """State of a launch on the queued path.

    `step` and `record` return False if they cannot continue, and are called again later.
    """

    def __init__(self, device: DeviceContext, binder: Binder, origin: Origin, parsed: ResolvedRecord) -> None:
        self._device = device
        self._binder = binder
        self._origin = origin
        self._parsed = parsed
        self._capture = origin.capture
        self._bound: BoundLaunch | None = None
        self._remaining = 0
        self._grid: DynamicGrid | None = None
        self._idle_outcome: bool | Refusal = False
        """True once the device was idle for the launch, or the launch does not need an idle device; a Refusal if the
        wait was refused."""
        self._idle_work: Waiting | None = None
        """The queued idle work of this launch, pending or done; None if there is none."""
        self._request = MemoryRequest(device.grants, lambda: device.kick(origin.session))
        self.validates = bool(parsed.record.flags & LaunchFlag.VALIDATE)
        extension = parsed.record.extension
        if parsed.grid_buffer is not None and extension is not None:
            self._grid = DynamicGrid(device, origin, parsed.grid_buffer, extension.grid_offset)

    def step(self) -> bool:
        """Binds the launch, and issues as many of its iterations as the track has room for.

        It first waits for the module, for a grid that is read from a buffer, and for an idle device if the driver needs
        one. Raises Refusal if the launch cannot run.
        """
        if isinstance(self._idle_outcome, Refusal):
            raise self._idle_outcome  # takes precedence over any other wait
        parsed = self._parsed
        stream = parsed.stream
        if parsed.entry.module.pending or stream.track.closed:
            return False
        if self._grid is not None:
            if not self._grid.ready():
                return False
            if not self._read_grid(self._grid):
                return True
        if self._bound is None:
            self._bound = self._binder.bind(self._parsed)
            self._remaining = self._bound.plan.iterations
        if not self._may_issue(self._bound):
            return False
        if self.validates:
            return self._validate(self._bound)
        while self._remaining and not stream.track.closed:
            count = min(self._remaining, WINDOW, stream.track.room)
            self._binder.issue(stream, self._bound, count)
            self._remaining -= count
        return not self._remaining

    def _validate(self, bound: BoundLaunch) -> bool:
        try:
            return Validation(self._device, self._binder, self._origin, bound, self._parsed, self._settle).run()
        except Refusal as refusal:
            if not self._request.waits(refusal):
                raise
            return False

    def _settle(self, violation: Refusal | None) -> None:
        """Answers a validated launch."""
        if violation is not None:
            self._origin.fail(violation)
        else:
            self._origin.reply()

    def _may_issue(self, bound: BoundLaunch) -> bool:
        """Returns True if the launch may be issued.

        The driver would wait for other kernels in the first launch of some kernels, so that launch is issued while no
        kernel runs.
        """
        if self._idle_outcome is False:
            self._wait_for_idle(bound)
        if isinstance(self._idle_outcome, Refusal):
            raise self._idle_outcome
        return self._idle_outcome

    def _wait_for_idle(self, bound: BoundLaunch) -> None:
        device = self._device
        if not device.server.first_launch_waits(bound.plan.function, bound.module.prints is not None):
            # Another launch has made the driver's allocations that this launch waited for.
            if self._idle_work is not None:
                device.idle_work.drop(self._idle_work)
            self._idle_outcome = True
            return
        refused = self._parsed.entry.refused
        if refused is not None and not refused[1]():
            self._idle_outcome = refused[0]
        elif self._idle_work is None:
            description = f"the first launch of {bound.plan.name}"
            self._idle_work = device.idle_work.load(
                self._origin.session, description, lambda: self._issue_when_idle(bound), self._refuse
            )

    def _refuse(self, refusal: Refusal) -> None:
        self._device.telemetry.loads_refused += 1
        self._parsed.entry.refused = refusal, self._device.idle_work.retry_condition()
        self._idle_outcome = refusal
        self._device.kick(self._origin.session)

    def release(self, _refusal: Refusal) -> None:
        """Releases what the launch holds, because it will not run, for example after the end of its session."""
        self._remaining = 0
        if self._idle_work is not None:
            self._device.idle_work.drop(self._idle_work)
        if self._bound is not None and self._idle_outcome is not True:
            self._parsed.entry.plans.clear()  # the next launch may be the first one again, and must be checked again

    def _issue_when_idle(self, bound: BoundLaunch) -> None:
        self._device.server.record_first_launch(bound.plan.function, bound.module.prints is not None)
        self._idle_outcome = True
        if not self.validates and self._remaining:
            try:
                self._binder.issue(self._parsed.stream, bound, 1)
                self._remaining -= 1
                self._origin.started = True
            except Refusal as refusal:
                self._idle_outcome = refusal
        self._device.kick(self._origin.session)

    def record(self) -> bool:
        """Records the launch in the stream's capture; called in place of `step`."""
        parsed = self._parsed
        if parsed.entry.module.pending:
            return False
        if self.validates or self._grid is not None:
            feature = 'mode="validate"' if self.validates else "a grid from a buffer"
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"launch of {parsed.entry.name} with {feature} cannot be captured: the host takes part in it",
                fix="launch it outside the graph",
            )
        assert self._capture is not None
        self._capture.add_launch(self._binder.bind(parsed))
        return True

    def _read_grid(self, grid: DynamicGrid) -> bool:
        """Replaces the launch's grid by the one read from the buffer. Returns False if the grid is empty."""
        record = self._parsed.record
        extension = record.extension
        if self._bound is None and extension is not None:
            extension = extension._replace(grid_buffer=0, grid_offset=0)
            self._parsed = self._parsed._replace(record=record._replace(grid=grid.value, extension=extension), key=b"")
            if not all(grid.value):
                if self.validates:
                    self._origin.reply()
                return False
        return True
