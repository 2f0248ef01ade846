"""Progress of long transfers, for those who ask: a bar on a terminal or in a notebook, or a callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, from whichever thread moves them."""

_WIDTH = 30
_INTERVAL_S = 0.1


def reporter(progress: bool | Progress | None, label: str) -> Progress | None:
    """What to call as bytes move. True draws on stderr where a person watches, and nowhere else."""
    if callable(progress):
        return progress
    if progress and _watched():
        return _Bar(label)
    return None


def _watched() -> bool:
    stderr = sys.stderr
    if stderr is None:
        return False
    return stderr.isatty() or type(stderr).__module__.startswith("ipykernel.")


class _Bar:
    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._drawn < _INTERVAL_S:
            return
        self._drawn = now
        share = done / total if total else 1.0
        filled = int(share * _WIDTH)
        rate = done / max(now - self._started, 1e-9)
        bar = "#" * filled + "." * (_WIDTH - filled)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{self._label} [{bar}] {share:4.0%} {_size(done)} of {_size(total)}, {_size(rate)}/s {end}")
        sys.stderr.flush()


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
