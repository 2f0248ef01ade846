"""Counts of the work and the errors of a client of the soak test."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

MOST_ERRORS = 20
"""Maximum number of errors whose text is kept; all errors are counted."""


class Ledger:
    """Counts of one client. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    def count(self, what: str, n: int = 1) -> None:
        """Counts `what`: ``rounds``, ``checks``, ``lost``, ``duplicated``, ``wrong``, ``errors``, or any other event
        for the report."""
        with self._lock:
            self.counts[what] += n

    def wrong(self, text: str, kind: str = "wrong") -> None:
        """Records a wrong result."""
        with self._lock:
            self.counts[kind] += 1
            if len(self.errors) < MOST_ERRORS:
                self.errors.append(f"{time.strftime('%H:%M:%S')} {kind}: {text}")

    def counted(self, has: int, wanted: int, what: str) -> None:
        """Checks a number that every command has incremented: a smaller number means lost commands, a larger one
        repeated commands."""
        self.count("checks")
        if has < wanted:
            self.wrong(f"{what}: {has} of {wanted}", "lost")
        elif has > wanted:
            self.wrong(f"{what}: {has} instead of {wanted}", "duplicated")

    def check(self, good: bool, what: str) -> None:
        self.count("checks")
        if not good:
            self.wrong(what)

    def line(self) -> str:
        """Returns the line for the parent, as JSON."""
        with self._lock:
            body: dict[str, Any] = {"counts": dict(self.counts), "errors": self.errors}
        return json.dumps(body)
