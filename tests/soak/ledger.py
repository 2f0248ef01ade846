"""Ledger of a client of the soak: its work, and its errors."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

MOST_ERRORS = 20
"""Kept with their text; all are counted."""


class Ledger:
    """Counts of one client. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    def count(self, what: str, n: int = 1) -> None:
        """`what`: ``rounds``, ``checks``, ``lost``, ``duplicated``, ``wrong``, ``errors``, or a thing worth telling."""
        with self._lock:
            self.counts[what] += n

    def wrong(self, text: str, kind: str = "wrong") -> None:
        """A result that is not what it should be."""
        with self._lock:
            self.counts[kind] += 1
            if len(self.errors) < MOST_ERRORS:
                self.errors.append(f"{time.strftime('%H:%M:%S')} {kind}: {text}")

    def counted(self, has: int, wanted: int, what: str) -> None:
        """A number that every command has raised by one: fewer were lost, more ran twice."""
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
