"""Attribution of a lost device process to a session, and quarantine of sessions to which too many are attributed. Pure.

A process that gives up its device names the sessions whose kernels were in flight. One that crashes leaves behind whose
kernel did it, or whose kernels ran (`hearthd.shared.crash_record`); where it does not, any session with work there may
have caused it. A loss is attributed only if that leaves a single session: the others share its fate, not its guilt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hearth_proto.reasons import Reason, Refusal

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"})
"""Signals that a process brings on itself; others are sent from outside, by no session."""


def culprit(label: str, details: dict[str, str], working: Collection[str]) -> str | None:
    """Returns the session to which the loss of a process is attributed, or None. `working`: sessions with work there;
    `label`: of the cause."""
    if label == "fault":
        suspects = named(details)
    elif label == "signal" and details.get("signal") in CRASHES and "sender" not in details:
        suspects = named(details) or set(working)
    else:
        return None
    return next(iter(suspects)) if len(suspects) == 1 else None


def named(details: dict[str, str]) -> set[str]:
    """Returns the sessions that a process named when it gave up its device."""
    return {name.strip() for name in details.get("sessions", "").split(",") if name.strip()}


class FaultQuarantine:
    """Counts faults by session. After more than `most` within `window` seconds, a session shares no process any
    more."""

    def __init__(self, most: int, window: float) -> None:
        self._most = most
        self._window = window
        self._faults: dict[str, deque[float]] = {}
        self._quarantined: dict[str, int] = {}

    def record_fault(self, session: str, now: float) -> bool:
        """Attributes the loss of a process to the session; returns True if that quarantines it from now on."""
        faults = self._faults.setdefault(session, deque())
        faults.append(now)
        while now - faults[0] > self._window:
            faults.popleft()
        if len(faults) <= self._most or session in self._quarantined:
            return False
        self._quarantined[session] = len(faults)
        return True

    def quarantined(self, session: str) -> bool:
        return session in self._quarantined

    def refusal(self, session: str) -> Refusal:
        """Returns the refusal of a quarantined session."""
        faults = self._quarantined.get(session, 0)
        return Refusal(
            Reason.SESSION_BARRED,
            f"Session {session} has ended {faults} device processes within {self._window:g} s; "
            f"the most is {self._most}. It may share none with others any more, and what it held is free.",
            fix='Connect with isolation="dedicated", which gives a session separate processes, or correct its '
            "kernels: the errors named them.",
            details={
                "faults": faults,
                "allowed": self._most,
                "window_seconds": self._window,
            },
        )

    def forget(self, session: str) -> None:
        """Forgets a session that has ended."""
        self._faults.pop(session, None)
        self._quarantined.pop(session, None)

    def lift_quarantine(self) -> None:
        """Readmits all sessions; for operators."""
        self._faults.clear()
        self._quarantined.clear()
