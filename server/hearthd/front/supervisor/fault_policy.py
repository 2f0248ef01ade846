"""Attribution of a lost device process to a session, and quarantine of sessions with too many attributed losses. Pure.

A process that exits because of a device fault names the sessions whose kernels were in flight. A process that crashes
leaves a record of the kernel that caused the crash, or of the kernels that ran (`hearthd.shared.crash_record`). Without
such a record, any session with work in the process may have caused the crash. A loss is attributed only if exactly one
session remains; otherwise no session is blamed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from hearth_proto.reasons import Reason, Refusal

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"})
"""Signals that a process causes itself. Other signals are sent from outside, and are attributed to no session."""


def culprit(label: str, details: Mapping[str, str], working: Collection[str]) -> str | None:
    """Returns the session to which the loss of a process is attributed, or None.

    `label` is that of the cause; `working` are the sessions with work in the process.
    """
    if label == "fault":
        suspects = named_sessions(details)
    elif label == "signal" and details.get("signal") in CRASHES and "sender" not in details:
        suspects = named_sessions(details) or set(working)
    else:
        return None
    return next(iter(suspects)) if len(suspects) == 1 else None


def named_sessions(details: Mapping[str, str]) -> set[str]:
    """Returns the sessions that a process named in the details of its end."""
    return {name.strip() for name in details.get("sessions", "").split(",") if name.strip()}


class FaultQuarantine:
    """Counts faults by session.

    After more than `max_faults` faults within `window` seconds, a session may share no process.
    """

    def __init__(self, max_faults: int, window: float) -> None:
        self._max_faults = max_faults
        self._window = window
        self._faults: dict[str, deque[float]] = {}
        self._quarantined: dict[str, int] = {}

    def record_fault(self, session: str, now: float) -> bool:
        """Attributes the loss of a process to the session. Returns True if the session is quarantined by this loss."""
        faults = self._faults.setdefault(session, deque())
        faults.append(now)
        while now - faults[0] > self._window:
            faults.popleft()
        if len(faults) <= self._max_faults or session in self._quarantined:
            return False
        self._quarantined[session] = len(faults)
        return True

    def refusal(self, session: str) -> Refusal | None:
        """Returns the reason why the session may share no process; None: it may."""
        faults = self._quarantined.get(session)
        if faults is None:
            return None
        return Refusal(
            Reason.SESSION_BARRED,
            f"Session {session} has ended {faults} device processes within {self._window:g} s; "
            f"the maximum is {self._max_faults}. It may no longer share a process with other sessions, and its "
            f"resources were released.",
            fix='Connect with isolation="dedicated", which gives a session separate processes, or correct its '
            "kernels, which the errors named.",
            details={
                "faults": faults,
                "allowed": self._max_faults,
                "window_seconds": self._window,
            },
        )

    def forget(self, session: str) -> None:
        """Removes a session that has ended."""
        self._faults.pop(session, None)
        self._quarantined.pop(session, None)

    def lift_quarantine(self) -> None:
        """Lifts the quarantine of all sessions. For operators."""
        self._faults.clear()
        self._quarantined.clear()
