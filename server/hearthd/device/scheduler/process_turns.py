"""Turns of several processes on one device: granted by the front, and reported to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hearth_proto.frames import Frame, Kind
from hearthd.device.outbox import Outbox
from hearthd.device.platform.spin_policy import sooner
from hearthd.device.scheduler.backlog import Backlog

IDLE_S = 2e-3
"""Time for which a process is idle before it reports that to the front, in seconds, unless another process waits for
it."""

MAY, ALONE, AWAITED = 1, 2, 4
WANTS, WORKS = 1, 2
"""Flags of TURN and of BUSY; see `hearthd.front.resources.time_credits`."""


class ProcessTurns:
    """Turns of this process. Device-handle thread only. A process that is alone on its device neither receives nor
    sends messages."""

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self.on = False
        """True if other processes share the device."""
        self._awaited = False
        self._told: int | None = None
        self._idle_since: float | None = None
        self.allowed = True
        """True if the process may submit work to the device."""

    @property
    def bounded(self) -> bool:
        """True if work on the device is limited to what other processes can wait for."""
        return self.on and (self._awaited or not self.allowed)

    def heard(self, frame: Frame) -> None:
        """Takes a TURN message of the front."""
        self.allowed = bool(frame.flags & MAY)
        self.on = not frame.flags & ALONE
        self._awaited = bool(frame.flags & AWAITED)
        self._told = self._idle_since = None

    def tell(self, active: Iterable[Backlog]) -> None:
        """Reports to the front which work these sessions have, if that has changed."""
        if not self.on:
            return
        state = 0
        for backlog in active:
            state |= WANTS * (self.allowed or backlog.wanting) | WORKS * (self.allowed or bool(backlog.slices))
        if state == self._told:
            self._idle_since = None
            return
        if not state and self._told and not self._awaited:  # more work may come in a moment
            now = self._clock()
            if self._idle_since is None:
                self._idle_since = now
            if now - self._idle_since < IDLE_S:
                return
        self._told, self._idle_since = state, None
        self._outbox.put(Kind.BUSY, flags=state)

    def sleep(self, asleep: float | None) -> float | None:
        """Returns how long the loop may sleep, at most `asleep`."""
        if self._idle_since is None:
            return asleep
        left = max(self._idle_since + IDLE_S - self._clock(), 0.0)
        return sooner(left, asleep)
