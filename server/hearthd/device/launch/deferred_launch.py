"""Deferred launch: a launch on the queued path.

It may wait for its module, its grid or room on its track, and is then validated, recorded or issued.
"""

from __future__ import annotations

from hearth_proto.launches import LaunchFlag
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.dynamic_grid import DynamicGrid
from hearthd.device.launch.idle_load import LaunchMemoryWait
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
        self._bound: BoundLaunch | None = None
        self._launch_memory = LaunchMemoryWait(device, origin.session, parsed.entry)
        self._request = MemoryRequest(device.grants, lambda: device.kick(origin.session))
        self.validates = bool(parsed.record.flags & LaunchFlag.VALIDATE)
        extension = parsed.record.extension
        if parsed.grid_buffer is not None and extension is not None:
            self._grid = DynamicGrid(device, origin, parsed.grid_buffer, extension.grid_offset)

    def step(self) -> bool:
        """Binds the launch, and issues as many of its iterations as the track has room for.

        It first waits for the module, for a grid that is read from a buffer, and for the kernel's local memory. Raises
        Refusal if the launch cannot run.
        """
        stream, bound = self._parsed.stream, self._bound
        if bound is None:
            if self._parsed.entry.module.pending:
                return False
            if self._grid is not None:
                if stream.track.closed or not self._grid.ready():
                    return False
                if not self._read_grid(self._grid):
                    return True
            bound = self._bound = self._binder.bind(self._parsed)
            self._remaining = bound.plan.iterations
        if not self._launch_memory.ready() or stream.track.closed:
            return False
        if self.validates:
            return self._validate(bound)
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

    def release(self, _refusal: Refusal) -> None:
        """Releases what the launch holds, because it will not run, for example after the end of its session."""
        self._remaining = 0
        self._launch_memory.end()

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
        bound = self._binder.bind(parsed)
        if not self._launch_memory.ready():
            return False
        assert self._capture is not None
        self._capture.add_launch(bound)
        return True

    def _read_grid(self, grid: DynamicGrid) -> bool:
        """Replaces the launch's grid by the one read from the buffer. Returns False if the grid is empty."""
        record = self._parsed.record
        extension = record.extension
        if extension is not None:
            extension = extension._replace(grid_buffer=0, grid_offset=0)
            self._parsed = self._parsed._replace(record=record._replace(grid=grid.value, extension=extension), key=b"")
            if not all(grid.value):
                if self.validates:
                    self._origin.reply()
                return False
        return True
