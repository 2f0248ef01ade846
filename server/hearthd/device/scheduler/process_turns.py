"""Turns of several processes on one device: granted by the front, and reported to the front."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hearth_proto.frames import Frame, Kind
from hearthd.device.outbox import Outbox
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.scheduler.backlog import Backlog

IDLE_S = 2e-3
"""Time, in seconds, for which a process must be idle before it reports that to the front. Not applied if another
process waits for the device."""

MAY, ALONE, AWAITED = 1, 2, 4
WANTS, WORKS = 1, 2
"""Flags of TURN and of BUSY frames; see `hearthd.front.resources.time_credits`."""


class ProcessTurns:
    """Turns of this process on a shared device.

    Device-handle thread only. If no other process uses the device, no messages are exchanged.
    """

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self.on = False
        """True if other processes use the same device."""
        self._awaited = False
        self._reported_state: int | None = None
        self._idle_since: float | None = None
        self.allowed = True
        """True if the process may submit work to the device."""

    @property
    def bounded(self) -> bool:
        """True if work on the device must stay short, because another process waits or this process has no turn."""
        return self.on and (self._awaited or not self.allowed)

    def on_turn(self, frame: Frame) -> None:
        """Handles a TURN frame of the front."""
        self.allowed = bool(frame.flags & MAY)
        self.on = not frame.flags & ALONE
        self._awaited = bool(frame.flags & AWAITED)
        self._reported_state = self._idle_since = None

    def report(self, active: Iterable[Backlog]) -> None:
        """Sends a BUSY frame to the front if the kind of work that these sessions have has changed.

        Called while other processes use the device.
        """
        state = 0
        for backlog in active:
            state |= WANTS * (self.allowed or backlog.wanting) | WORKS * (self.allowed or bool(backlog.slices))
        if state == self._reported_state:
            self._idle_since = None
            return
        if not state and self._reported_state and not self._awaited:  # more work may arrive within `IDLE_S`
            now = self._clock()
            if self._idle_since is None:
                self._idle_since = now
            if now - self._idle_since < IDLE_S:
                return
        self._reported_state, self._idle_since = state, None
        self._outbox.put(Kind.BUSY, flags=state)

    def max_sleep(self, timeout: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds: at most `timeout`, and until the next idle report."""
        if self._idle_since is None:
            return timeout
        remaining = max(self._idle_since + IDLE_S - self._clock(), 0.0)
        return at_most(remaining, timeout)
