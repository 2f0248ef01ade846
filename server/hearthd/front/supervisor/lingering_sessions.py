"""Lingering sessions: closed sessions whose work in a device process has not ended.

Decides when the process is ended because of them. Pure: times are passed in.

A running kernel cannot be cancelled; only its process can be ended. A closed session reads no more results, so a
process that no other session uses is ended soon afterwards, with everything that the closed session held. A process
that other sessions use is never ended for this reason: they continue, and the memory stays allocated until the kernel
ends or the last of those sessions has left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GRACE = 2.0
"""Time, in seconds, for the work of a closed session to end. A client's close waits as long, so work that ends within
this time is an ordinary close. A longer time would keep the device's memory, and would delay the next session for
results that no client can read."""
CLEANUP_GRACE = 10.0
"""Time, in seconds, for a session whose work has ended and whose memory is freed piece by piece. That ends by itself,
and keeping the running process is better than starting a new one."""
MAX_NAMES = 4
"""Maximum number of kernels named for each session."""


@dataclass(eq=False)
class LingeringSession:
    """A session that was closed at the monotonic time `since`."""

    session: str
    tenant: str
    since: float
    busy: bool = True
    """True if the device still works for the session, as far as is known."""
    kernels: tuple[str, ...] = ()
    """Kernels that have not ended, oldest first. Empty if they are not known, or if they ran as a graph."""
    queried_at: float = float("-inf")
    """Time at which the process was last asked for the session's running work."""
    logged: bool = False
    """True once a log line was written about the session."""
    grace: float = GRACE
    """Seconds that its work may run on."""

    @property
    def deadline(self) -> float:
        """Time at which the grace period of the session ends."""
        return self.since + (self.grace if self.busy else CLEANUP_GRACE)

    @property
    def description(self) -> str:
        """Describes the work that does not end, for people."""
        if not self.busy:
            return f"the resources of session {self.session}"
        names = ", ".join(self.kernels[:MAX_NAMES]) + (", ..." if len(self.kernels) > MAX_NAMES else "")
        return f"{f'kernel {names}' if names else 'work'} of session {self.session}"


class LingeringSessions:
    """The lingering sessions of one process, by the number of the channel that each session had there."""

    def __init__(self, grace: float = GRACE) -> None:
        """Creates the set. `grace`: seconds that work of a closed session may run on."""
        self._grace = grace
        self._sessions: dict[int, LingeringSession] = {}

    def __iter__(self) -> Iterator[LingeringSession]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- events ----

    def add(self, channel: int, session: str, tenant: str, now: float) -> None:
        """Adds a session that was closed in this process."""
        self._sessions.setdefault(channel, LingeringSession(session, tenant, now, grace=self._grace))

    def remove(self, channel: int) -> None:
        """Removes a session whose work has ended and whose memory has been freed."""
        self._sessions.pop(channel, None)

    def mark_queried(self, now: float) -> None:
        """Notes that the process is being asked for the work that still runs."""
        for session in self:
            session.queried_at = now

    def on_answer(self, leaving: Any) -> None:
        """Takes the process's answer: running work by channel number (a string, because JSON keys are strings).

        Without an answer, or if the process does not know a session, the session counts as busy.
        """
        states: Mapping[str, Any] = leaving if isinstance(leaving, dict) else {}
        for channel, session in self._sessions.items():
            state = states.get(str(channel))
            if isinstance(state, dict):
                session.busy = bool(state.get("busy", True))
                session.kernels = tuple(str(name) for name in state.get("kernels", ()))
            else:
                session.busy = True

    # ---- decisions ----

    def is_exclusive(self, channels: Collection[int]) -> bool:
        """Returns True if no other session uses the process.

        `channels`: all channels of the process, including those of lingering sessions.
        """
        return bool(self._sessions) and all(channel in self._sessions for channel in channels)

    def must_drain(self, channels: Collection[int]) -> bool:
        """Returns True if a new session must wait.

        In a process whose work may never end, a new session would keep the process from being ended.
        """
        return self.is_exclusive(channels) and any(session.busy for session in self)

    def must_query(self, now: float) -> bool:
        """Returns True if the grace period of a session has ended and the process has not been asked since."""
        return any(session.queried_at < session.deadline <= now for session in self)

    def must_end(self, channels: Collection[int], now: float) -> bool:
        """Returns True if the process must be ended."""
        return self.is_exclusive(channels) and all(session.deadline <= now for session in self)

    def overdue(self, now: float) -> list[LingeringSession]:
        """Returns the sessions whose grace period has ended, oldest first."""
        return sorted((session for session in self if session.deadline <= now), key=lambda session: session.since)

    def next_deadline(self, now: float) -> float | None:
        """Returns the time at which the next grace period ends; None: there is none."""
        return min((session.deadline for session in self if session.deadline > now), default=None)
