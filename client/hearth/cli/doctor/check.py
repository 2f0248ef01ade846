"""A check of `hearth doctor`, bounded so that it never hangs or crashes the command."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from hearth.cli.format.complaint import one_line
from hearth.errors import HearthError

Status = Literal["failed", "warning", "ok", "skipped"]
"""Statuses of a check, the worst first."""


@dataclass(frozen=True)
class Check:
    """Result of one check: its subject, status, and remedy."""

    name: str
    status: Status
    detail: str
    fix: str = ""
    seconds: float = 0.0


@dataclass
class Findings:
    """The checks made so far; each is passed to `report` as soon as it is added."""

    report: Callable[[Sequence[Check]], None] = lambda checks: None
    checks: list[Check] = field(default_factory=list)

    def add(self, *checks: Check) -> bool:
        """Adds checks; returns True if none of them failed."""
        self.checks += checks
        self.report(checks)
        return all(check.status != "failed" for check in checks)

    def run(self, name: str, seconds: float, work: Callable[[], Check | Sequence[Check]]) -> bool:
        """Adds the results of `work`, bounded to `seconds`; returns True if none of them failed."""
        return self.add(*run_bounded(name, seconds, work))

    def skip(self, names: Sequence[str], reason: str) -> None:
        """Adds skipped checks, all with the same `reason`."""
        self.add(*(Check(name, "skipped", reason) for name in names))

    @property
    def healthy(self) -> bool:
        """True if no check failed."""
        return all(check.status != "failed" for check in self.checks)

    def counts(self) -> str:
        """Returns the number of checks of each status as text, the worst first."""
        numbers = Counter(check.status for check in self.checks)
        return ", ".join(f"{numbers[status]} {status}" for status in get_args(Status) if numbers[status])


def run_bounded(name: str, seconds: float, work: Callable[[], Check | Sequence[Check]]) -> list[Check]:
    """Returns the results of `work`.

    If `work` raises or takes longer than `seconds`, returns a failed check instead. Late work continues in a separate
    thread and blocks nothing.
    """
    results: list[Check] = []

    def run() -> None:
        try:
            result = work()
            results.extend([result] if isinstance(result, Check) else result)
        except Exception as error:
            results.append(failed_check(name, error))

    started = time.perf_counter()
    thread = threading.Thread(target=run, name=f"hearth-doctor-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        detail = f"the check did not finish within {seconds:g} s"
        return [
            Check(
                name,
                "failed",
                detail,
                "try again with a longer --timeout; if that helps, the connection or the daemon is slow",
                seconds,
            )
        ]
    elapsed = round(time.perf_counter() - started, 6)
    return [replace(check, seconds=check.seconds or elapsed) for check in results]


def failed_check(name: str, error: Exception) -> Check:
    """Returns a failed check for an error, in one line."""
    if isinstance(error, HearthError):
        return Check(name, "failed", one_line(error.message), one_line(error.fix))
    text = getattr(error, "strerror", None) or str(error) or "no message"
    return Check(
        name, "failed", one_line(f"{type(error).__name__}: {text}"), "check the daemon's log for the same time"
    )
