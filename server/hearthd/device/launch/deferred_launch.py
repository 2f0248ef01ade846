"""Deferred launch: a launch on the queued path.

It may wait for its module, its grid or room on its track, and is then validated, recorded or issued.
"""

from __future__ import annotations

from hearth_proto.launches import LaunchFlag
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.dynamic_grid import DynamicGrid
from hearthd.device.launch.first_launch import FirstLaunch
from hearthd.device.launch.memory_checker import Validation
from hearthd.device.operation import Origin
from hearthd.device.resources.grants import MemoryRequest
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
        self._remaining = 0
        self._grid: DynamicGrid | None = None
        self._first_launch: FirstLaunch | None = None
        self._request = MemoryRequest(device.grants, lambda: device.kick(origin.session))
        self._validated = False
        self.validates = bool(parsed.record.flags & LaunchFlag.VALIDATE)
        extension = parsed.record.extension
        if parsed.grid_buffer is not None and extension is not None:
            self._grid = DynamicGrid(device, origin, parsed.grid_buffer, extension.grid_offset)

    def step(self) -> bool:
        """Binds the launch, and issues as many of its iterations as the track has room for.

        It first waits for the module, for a grid that is read from a buffer, and for an idle device if the driver needs
        one. Raises Refusal if the launch cannot run.
        """
        first_launch = self._first_launch
        if first_launch is not None:
            first_launch.check()  # takes precedence over any other wait
        parsed = self._parsed
        stream = parsed.stream
        if parsed.entry.module.pending or stream.track.closed:
            return False
        if self._grid is not None:
            if not self._grid.ready():
                return False
            if not self._read_grid(self._grid):
                return True
        if first_launch is None:
            bound = self._binder.bind(self._parsed)
            self._remaining = bound.plan.iterations
            first_launch = self._first_launch = FirstLaunch(self._device, self._origin, parsed.entry, bound)
        if not first_launch.ready(self._issue_first):
            return False
        bound = first_launch.bound
        if self.validates:
            return self._validated or self._validate(bound)
        while self._remaining and not stream.track.closed:
            count = min(self._remaining, WINDOW, stream.track.room)
            self._binder.issue(stream, bound, count)
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

    def _issue_first(self) -> bool:
        """Issues the first iteration, or the validated launch, while the device is idle for it.

        Returns False if it has issued nothing.
        """
        assert self._first_launch is not None
        bound = self._first_launch.bound
        if self.validates:
            self._validated = self._validate(bound)
            return self._validated
        if self._remaining:
            self._binder.issue(self._parsed.stream, bound, 1)
            self._remaining -= 1
            self._origin.started = True
        return True

    def release(self, _refusal: Refusal) -> None:
        """Releases what the launch holds, because it will not run, for example after the end of its session."""
        self._remaining = 0
        if self._first_launch is not None:
            self._first_launch.release()

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
        if self._first_launch is None and extension is not None:
            extension = extension._replace(grid_buffer=0, grid_offset=0)
            self._parsed = self._parsed._replace(record=record._replace(grid=grid.value, extension=extension), key=b"")
            if not all(grid.value):
                if self.validates:
                    self._origin.reply()
                return False
        return True
