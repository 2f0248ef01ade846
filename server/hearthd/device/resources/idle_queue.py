"""Queue of jobs that wait for an idle device. Pure: times are passed in, in seconds of a monotonic clock.

Background jobs cause launches to be held back only if there are many. A client waits for a load: therefore a load
causes launches to be held back, is logged when it is late, and expires after a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from hearthd.device.platform.spin_policy import at_most

J = TypeVar("J")

MAX_BACKGROUND = 64
"""Most jobs without a waiting client; beyond this number, such jobs become urgent."""

LOG_AFTER_S = 2.0
"""Seconds after which a waiting load is logged."""

GRACE_S = 0.005
"""Seconds for which launches are not held back yet, because the device may become idle by itself."""

FIRST_S = 0.020
LONGEST_S = 5.0


class IdleWaiter(Generic[J]):
    """A job, queued at time `queued_at`. `limited`: the job is a load, which may expire."""

    __slots__ = ("job", "limited", "logged", "not_before", "queued_at", "urgent")

    def __init__(self, job: J, queued_at: float, urgent: bool, limited: bool) -> None:
        self.job = job
        self.queued_at = queued_at
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
        """Time at which the number of background jobs exceeded `MAX_BACKGROUND`; None if it does not now."""
        self.urgent_since: float | None = None
        """Start of the wait for which launches may be held back (see `holding`): the time at which the oldest urgent
        job was queued, or at which there were too many background jobs, whichever is earlier. None without either."""

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
        return max(0.0, now - first.queued_at) if (first := next(iter(self._limited), None)) is not None else 0.0

    def add(self, job: J, now: float, *, urgent: bool, limited: bool = False) -> IdleWaiter[J]:
        """Queues a job. `limited`: the job is a load, which is always urgent."""
        waiter = IdleWaiter(job, now, urgent or limited, limited)
        self._all[waiter] = None
        if waiter.urgent:
            self._urgent[waiter] = None
        elif self._crowded is None and len(self._all) - len(self._urgent) > MAX_BACKGROUND:
            self._crowded = now
        if limited:
            self._limited[waiter] = None
        self._recompute()
        return waiter

    def drop(self, waiter: IdleWaiter[J]) -> bool:
        """Removes a job. Returns False if it is not queued."""
        if waiter not in self._all:
            return False
        del self._all[waiter]
        self._urgent.pop(waiter, None)
        self._limited.pop(waiter, None)
        if len(self._all) - len(self._urgent) <= MAX_BACKGROUND:
            self._crowded = None
        self._recompute()
        return True

    def _recompute(self) -> None:
        first = next(iter(self._urgent), None)
        self.urgent_since = self._crowded
        if first is not None:
            self.urgent_since = at_most(first.queued_at, self._crowded)

    # ---- loads ----

    def expired(self, now: float, limit: float) -> list[IdleWaiter[J]]:
        """Returns the loads that have waited for `limit` seconds and are not excused. `limit` 0: no limit."""
        return [waiter for waiter in self._waited(now, limit or math.inf) if now >= waiter.not_before]

    def unlogged(self, now: float) -> list[IdleWaiter[J]]:
        """Returns the late loads that have not been logged; each load is returned once."""
        late = [waiter for waiter in self._waited(now, LOG_AFTER_S) if not waiter.logged]
        for waiter in late:
            waiter.logged = True
        return late

    def _waited(self, now: float, seconds: float) -> Iterator[IdleWaiter[J]]:
        for waiter in self._limited:
            if now < waiter.queued_at + seconds:
                return
            yield waiter

    def wake(self, now: float, limit: float) -> float | None:
        """Returns the seconds until the next load expires or is to be logged; None if none will."""
        if not self._limited:
            return None
        delay = self._next_expiry(limit) - now if limit else None
        waiter = next((unlogged for unlogged in self._limited if not unlogged.logged), None)
        if waiter is not None:
            delay = at_most(waiter.queued_at + LOG_AFTER_S - now, delay)
        return None if delay is None else max(0.0, delay)

    def _next_expiry(self, limit: float) -> float:
        expiry = math.inf
        for waiter in self._limited:
            if waiter.queued_at + limit >= expiry:
                break
            expiry = min(expiry, max(waiter.queued_at + limit, waiter.not_before))
        return expiry


def holding(waited: float) -> tuple[bool, float]:
    """Returns True if launches are held back for idle work after `waited` seconds, and the seconds until that changes.

    At first, launches are not held back, because a device that is not always busy becomes idle by itself. Then they are
    held back and let through in intervals of equal length, and the length doubles each time, up to `LONGEST_S`. The
    submitted work is finite, so the device becomes idle in one of these intervals, while other sessions keep at least
    half of the device if a kernel keeps running.
    """
    end = GRACE_S
    if waited < end:
        return False, end - waited
    length = FIRST_S
    while True:
        for is_held in (True, False):
            end += length
            if waited < end:
                return is_held, end - waited
        if length == LONGEST_S:
            elapsed = (waited - end) % (2 * length)
            return elapsed < length, length - elapsed % length
        length = min(2 * length, LONGEST_S)
