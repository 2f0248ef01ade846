"""Turns of several processes on one device: granted by the front, and reported to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hearth_proto.frames import Frame, Kind
from hearthd.device.outbox import Outbox
from hearthd.device.platform.spin_policy import sooner
from hearthd.device.scheduler.backlog import Backlog

IDLE_S = 2e-3
"""How long a process has nothing to do before the front is told, unless another waits for it."""

MAY, ALONE, AWAITED = 1, 2, 4
WANTS, WORKS = 1, 2
"""Flags of TURN and of BUSY; see `hearthd.front.resources.time_credits`."""


class ProcessTurns:
    """This process's turns. Device-handle thread only. A process that is alone on its device neither gets nor sends
    messages."""

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self.on = False
        """Whether there are others on the device."""
        self._awaited = False
        self._told: int | None = None
        self._idle_since: float | None = None
        self.allowed = True
        """Whether the device may be given work."""

    @property
    def bounded(self) -> bool:
        """Whether only so much may be on the device as others can wait for."""
        return self.on and (self._awaited or not self.allowed)

    def heard(self, frame: Frame) -> None:
        """A TURN has come."""
        self.allowed = bool(frame.flags & MAY)
        self.on = not frame.flags & ALONE
        self._awaited = bool(frame.flags & AWAITED)
        self._told = self._idle_since = None

    def tell(self, active: Iterable[Backlog]) -> None:
        """Tells the front what these sessions have to do, as far as that is news."""
        if not self.on:
            return
        state = 0
        for backlog in active:
            state |= WANTS * (self.allowed or backlog.wanting) | WORKS * (self.allowed or bool(backlog.slices))
        if state == self._told:
            self._idle_since = None
            return
        if not state and self._told and not self._awaited:  # it may go on in a moment
            now = self._clock()
            if self._idle_since is None:
                self._idle_since = now
            if now - self._idle_since < IDLE_S:
                return
        self._told, self._idle_since = state, None
        self._outbox.put(Kind.BUSY, flags=state)

    def sleep(self, asleep: float | None) -> float | None:
        """How long the loop may sleep, where it would otherwise so long."""
        if self._idle_since is None:
            return asleep
        left = max(self._idle_since + IDLE_S - self._clock(), 0.0)
        return sooner(left, asleep)
