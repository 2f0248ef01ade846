"""Queue of jobs that wait for an idle device. Pure: times are passed in, in seconds of a monotonic clock.

Background jobs cause launches to be held back only if there are many. A load has a client that waits for it: it causes
launches to be held back, is logged when it is late, and expires after a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from hearthd.device.platform.spin_policy import at_most

J = TypeVar("J")

PATIENT_MOST = 64
"""Most jobs without a waiting client; beyond this number, such jobs become urgent."""

TELL_S = 2.0
"""Seconds after which a waiting load is logged."""

PATIENCE_S = 0.005
"""Seconds for which launches are not held back yet, because the device may become idle by itself."""

FIRST_S = 0.020
LONGEST_S = 5.0


class IdleWaiter(Generic[J]):
    """A job, queued at time `since`. `limited`: the job is a load, which may expire."""

    __slots__ = ("job", "limited", "logged", "not_before", "since", "urgent")

    def __init__(self, job: J, since: float, urgent: bool, limited: bool) -> None:
        self.job = job
        self.since = since
        self.urgent = urgent
        self.limited = limited
        self.not_before = -math.inf
        """Time before which the job does not expire, however long it has waited."""
        self.logged = False
        """True once the wait has been logged."""


class IdleQueue(Generic[J]):
    """Waiting jobs, oldest first."""

    def __init__(self) -> None:
        self._all: dict[IdleWaiter[J], None] = {}
        self._urgent: dict[IdleWaiter[J], None] = {}
        self._limited: dict[IdleWaiter[J], None] = {}
        self._crowded: float | None = None
        """Time since when there have been too many background jobs; None if there are not."""
        self.since: float | None = None
        """Time since when the oldest urgent job has waited, so that launches may be held back; None if there is
        none."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def first(self) -> IdleWaiter[J] | None:
        """The oldest job; None if the queue is empty."""
        return next(iter(self._all), None)

    @property
    def limited(self) -> int:
        """Number of waiting loads."""
        return len(self._limited)

    def longest(self, now: float) -> float:
        """Returns the seconds that the oldest load has waited; 0 without loads."""
        return max(0.0, now - first.since) if (first := next(iter(self._limited), None)) is not None else 0.0

    def add(self, job: J, now: float, *, urgent: bool, limited: bool = False) -> IdleWaiter[J]:
        """Queues a job. `limited`: the job is a load, which is always urgent."""
        place = IdleWaiter(job, now, urgent or limited, limited)
        self._all[place] = None
        if place.urgent:
            self._urgent[place] = None
        elif self._crowded is None and len(self._all) - len(self._urgent) > PATIENT_MOST:
            self._crowded = now
        if limited:
            self._limited[place] = None
        self._recompute()
        return place

    def drop(self, place: IdleWaiter[J]) -> bool:
        """Removes a job. Returns False if it is not queued."""
        if place not in self._all:
            return False
        del self._all[place]
        self._urgent.pop(place, None)
        self._limited.pop(place, None)
        if len(self._all) - len(self._urgent) <= PATIENT_MOST:
            self._crowded = None
        self._recompute()
        return True

    def _recompute(self) -> None:
        first = next(iter(self._urgent), None)
        self.since = self._crowded
        if first is not None:
            self.since = at_most(first.since, self._crowded)

    # ---- loads ----

    def expired(self, now: float, limit: float) -> list[IdleWaiter[J]]:
        """Returns the loads that have waited for `limit` seconds and are not excused. `limit` 0: no limit."""
        return [place for place in self._waited(now, limit or math.inf) if now >= place.not_before]

    def unlogged(self, now: float) -> list[IdleWaiter[J]]:
        """Returns the late loads that have not been logged; each load is returned once."""
        found = [place for place in self._waited(now, TELL_S) if not place.logged]
        for place in found:
            place.logged = True
        return found

    def _waited(self, now: float, seconds: float) -> Iterator[IdleWaiter[J]]:
        for place in self._limited:
            if now < place.since + seconds:
                return
            yield place

    def wake(self, now: float, limit: float) -> float | None:
        """Returns the seconds until the next load expires or is to be logged; None if none will."""
        if not self._limited:
            return None
        ahead = self._next_due(limit) - now if limit else None
        idle_work = next((place for place in self._limited if not place.logged), None)
        if idle_work is not None:
            ahead = at_most(idle_work.since + TELL_S - now, ahead)
        return None if ahead is None else max(0.0, ahead)

    def _next_due(self, limit: float) -> float:
        due = math.inf
        for place in self._limited:
            if place.since + limit >= due:
                break
            due = min(due, max(place.since + limit, place.not_before))
        return due


def holding(waited: float) -> tuple[bool, float]:
    """Returns True if launches are held back for idle work after `waited` seconds, and the seconds until that changes.

    At first, launches are not held back, because a device that is not always busy becomes idle by itself. Then they are
    held back and let through in intervals of equal length, and the length doubles each time, up to `LONGEST_S`. The
    submitted work is finite, so the device becomes idle in one of these intervals, while other sessions keep at least
    half of the device if a kernel keeps running.
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
