"""Queue of jobs that wait for an idle device. Pure: times are passed in, in seconds of a monotonic clock.

Background jobs hold launches back only when there are many. A load has a client that waits for it: it holds launches
back, is logged when it is late, and expires at a limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from hearthd.device.platform.spin_policy import sooner

J = TypeVar("J")

PATIENT_MOST = 64
"""Limit of jobs that no client waits for; beyond it, they are urgent."""

TELL_S = 2.0
"""Wait of a load after which it is logged, in seconds."""

PATIENCE_S = 0.005
"""Seconds in which the device may become idle by itself, before launches are held back."""

FIRST_S = 0.020
LONGEST_S = 5.0


class IdleWaiter(Generic[J]):
    """A queued job, since `since`. `limited`: a load, which may expire."""

    __slots__ = ("excused", "job", "limited", "since", "told", "urgent")

    def __init__(self, job: J, since: float, urgent: bool, limited: bool) -> None:
        self.job = job
        self.since = since
        self.urgent = urgent
        self.limited = limited
        self.excused = -math.inf
        """Time before which the job does not count as late, however long it has waited."""
        self.told = False
        """True once the wait has been logged."""


class IdleQueue(Generic[J]):
    """Queued jobs, oldest first."""

    def __init__(self) -> None:
        self._all: dict[IdleWaiter[J], None] = {}
        self._urgent: dict[IdleWaiter[J], None] = {}
        self._limited: dict[IdleWaiter[J], None] = {}
        self._crowded: float | None = None
        """Time since when there have been too many jobs that no client waits for."""
        self.since: float | None = None
        """Time since when the oldest urgent job has waited, for which launches may be held back; None: there is
        none."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def first(self) -> IdleWaiter[J] | None:
        return next(iter(self._all), None)

    @property
    def limited(self) -> int:
        """Number of loads."""
        return len(self._limited)

    def longest(self, now: float) -> float:
        """Seconds that the oldest load has waited; 0 without loads."""
        return max(0.0, now - first.since) if (first := next(iter(self._limited), None)) is not None else 0.0

    def add(self, job: J, now: float, *, urgent: bool, limited: bool = False) -> IdleWaiter[J]:
        """Queues a job. `limited`: a load, which is always urgent."""
        place = IdleWaiter(job, now, urgent or limited, limited)
        self._all[place] = None
        if place.urgent:
            self._urgent[place] = None
        elif self._crowded is None and len(self._all) - len(self._urgent) > PATIENT_MOST:
            self._crowded = now
        if limited:
            self._limited[place] = None
        self._reckon()
        return place

    def drop(self, place: IdleWaiter[J]) -> bool:
        """Removes a job. Returns False if it was not queued."""
        if place not in self._all:
            return False
        del self._all[place]
        self._urgent.pop(place, None)
        self._limited.pop(place, None)
        if len(self._all) - len(self._urgent) <= PATIENT_MOST:
            self._crowded = None
        self._reckon()
        return True

    def _reckon(self) -> None:
        first = next(iter(self._urgent), None)
        self.since = self._crowded
        if first is not None:
            self.since = sooner(first.since, self._crowded)

    # ---- loads ----

    def expired(self, now: float, limit: float) -> list[IdleWaiter[J]]:
        """Loads that have waited for `limit` seconds and are not excused; 0: no limit."""
        return [place for place in self._waited(now, limit or math.inf) if now >= place.excused]

    def untold(self, now: float) -> list[IdleWaiter[J]]:
        """Late loads that have not been logged; each is returned once."""
        found = [place for place in self._waited(now, TELL_S) if not place.told]
        for place in found:
            place.told = True
        return found

    def _waited(self, now: float, seconds: float) -> Iterator[IdleWaiter[J]]:
        for place in self._limited:
            if now < place.since + seconds:
                return
            yield place

    def wake(self, now: float, limit: float) -> float | None:
        """Seconds until the next load expires or is to be logged; None: no load will."""
        if not self._limited:
            return None
        ahead = self._next_due(limit) - now if limit else None
        idle_work = next((place for place in self._limited if not place.told), None)
        if idle_work is not None:
            ahead = sooner(idle_work.since + TELL_S - now, ahead)
        return None if ahead is None else max(0.0, ahead)

    def _next_due(self, limit: float) -> float:
        due = math.inf
        for place in self._limited:
            if place.since + limit >= due:
                break
            due = min(due, max(place.since + limit, place.excused))
        return due


def holding(waited: float) -> tuple[bool, float]:
    """Returns True if launches are held back for idle work after `waited` seconds, and the seconds until that changes.

    Idle work is work that the driver does only while no kernel runs.

    At first, launches are not held back: a device that is not always busy becomes idle by itself. Then they are held
    back for a while, and let through for as long, each time twice as long. The queued work is finite, so it completes
    in one of these intervals, and other sessions keep at least half of the device while a kernel keeps running.
    """
    end = PATIENCE_S
    if waited < end:
        return False, end - waited
    length = FIRST_S
    while True:
        for held in (True, False):
            end += length
            if waited < end:
                return held, end - waited
        if length == LONGEST_S:
            rest = (waited - end) % (2 * length)
            return rest < length, length - rest % length
        length = min(2 * length, LONGEST_S)
