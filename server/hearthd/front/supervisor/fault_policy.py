"""Which session a lost device process is put down to, and who has done that too often to share one. Pure.

A process that gives up its device names the sessions whose kernels were in flight. One that crashes leaves behind whose
kernel did it, or whose kernels ran (`hearthd.shared.crash_record`); where it does not, those may have done it that had
work there. Only where that leaves a single session is anybody blamed: the others share its fate, not its guilt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hearth_proto.reasons import Reason, Refusal

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"})
"""Signals that a process brings on itself; whoever sends another one from outside is no session."""


def culprit(label: str, details: dict[str, str], working: Collection[str]) -> str | None:
    """The session that a process was lost to, or None. `working`: those that had work there; `label`: of the cause."""
    if label == "fault":
        suspects = named(details)
    elif label == "signal" and details.get("signal") in CRASHES and "sender" not in details:
        suspects = named(details) or set(working)
    else:
        return None
    return next(iter(suspects)) if len(suspects) == 1 else None


def named(details: dict[str, str]) -> set[str]:
    """The sessions that a process named when it gave up its device."""
    return {name.strip() for name in details.get("sessions", "").split(",") if name.strip()}


class FaultQuarantine:
    """`most`: faults of one session within `window` seconds; one more, and it shares no process any more."""

    def __init__(self, most: int, window: float) -> None:
        self._most = most
        self._window = window
        self._faults: dict[str, deque[float]] = {}
        self._quarantined: dict[str, int] = {}

    def record_fault(self, session: str, now: float) -> bool:
        """A process was lost to the session; whether that bars it from now on."""
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
            fix='Connect with isolation="dedicated", which gives a session processes of its own, or correct its '
            "kernels: the errors named them.",
            details={
                "faults": faults,
                "allowed": self._most,
                "window_seconds": self._window,
            },
        )

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._faults.pop(session, None)
        self._quarantined.pop(session, None)

    def lift_quarantine(self) -> None:
        """Everybody may come back; for operators."""
        self._faults.clear()
        self._quarantined.clear()
