"""How long, and in which steps, something that broke is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.errors import HearthError

FIRST_S = 0.005
MOST_S = 0.5


def may_go_on(error: HearthError) -> bool:
    """Whether another stream may go on for one that ended so: where its connection broke; where an earlier one of this
    client's, which an older connection brought late, has displaced it; and where an overloaded daemon refused it."""
    return error.broken or error.reason in ("HANDLE_IN_USE", "OVERLOADED")


class Patience:
    """Pauses that grow from none to half a second, until `seconds` have passed."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._pause = 0.0

    def pause(self, least: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt, `least` or more; None: there is no time for another."""
        left = self._deadline - self._clock()
        if left <= 0:
            return None
        import random  # not before something broke: it takes a while to import

        pause, self._pause = self._pause, min(MOST_S, max(FIRST_S, 2 * self._pause))
        # Many clients have lost the same daemon, or were told to come again at the same time.
        return min(left, max(pause * random.uniform(0.75, 1.25), least * random.uniform(1.0, 1.25)))
