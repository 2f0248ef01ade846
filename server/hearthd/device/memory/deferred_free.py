"""Deferred free: large amounts of memory are freed in pieces, so that other commands are not delayed.

Small amounts are freed at once. The queues of one session are processed in order, those of several sessions in turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from hearth_proto.reasons import Refusal
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

T = TypeVar("T")

STRETCH_S = 2e-4
"""Time, in seconds, for which one `pump` may occupy this thread."""

PIECE = 16
"""Number of items between two readings of the clock."""

FEW = 64
"""Largest number of items that are freed at once."""


class FreeQueue(Generic[T]):
    """Items to free, in order. `give` frees one item on the stream that `home` returns; `home` may return None."""

    __slots__ = ("_give", "_home", "_left", "_then", "failure", "over")

    def __init__(
        self, things: Iterable[T], home: Callable[[T], PooledStream | None], give: Callable[[T], None]
    ) -> None:
        self._left = deque(things)  # each item is dropped when it has been freed, instead of all at the end
        self._home = home
        self._give = give
        self._then: list[Callable[[], None]] = []
        self.over = False
        self.failure: Refusal | None = None
        """The first refusal of a free; None if there was none. The other items were freed nevertheless."""

    def __len__(self) -> int:
        return len(self._left)

    @property
    def blocked(self) -> bool:
        """True while the stream of the next item has no budget.

        The driver would block a thread that frees beyond the budget.
        """
        track = self._home(self._left[0]) if self._left else None
        return track is not None and track.budget <= 0

    def then(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when all items are freed."""
        if self.over:
            callback()
        else:
            self._then.append(callback)

    def advance(self, most: int, *, respect_budget: bool = True) -> bool:
        """Frees up to `most` items. Returns True if none is left. `respect_budget`: stops at a stream without it."""
        left, give = self._left, self._give
        for _ in range(min(most, len(left))):
            if respect_budget and self.blocked:
                return False
            try:
                give(left.popleft())
            except Refusal as refusal:
                self.failure = self.failure or refusal
        if left:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.over = True
        callbacks, self._then = self._then, []
        for callback in callbacks:
            callback()


class DeferredFree:
    """Free queues of all sessions. Device-handle thread only."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lines: dict[DeviceSession, deque[FreeQueue[Any]]] = {}

    def begin(
        self,
        session: DeviceSession,
        things: Collection[T],
        home: Callable[[T], PooledStream | None],
        give: Callable[[T], None],
    ) -> FreeQueue[T]:
        """Frees items behind those that the session is already freeing; a small number at once. Returns the queue."""
        free_queue = FreeQueue(things, home, give)
        if len(things) > FEW or not free_queue.advance(FEW, respect_budget=False):
            self._lines.setdefault(session, deque()).append(free_queue)
        return free_queue

    def latest(self, session: DeviceSession) -> FreeQueue[Any] | None:
        """Returns the last free queue of the session; None if everything is freed."""
        line = self._lines.get(session)
        return line[-1] if line else None

    def blocked(self, session: DeviceSession) -> bool:
        """True if the session has a queue whose next item waits for the device."""
        line = self._lines.get(session)
        return line is not None and line[0].blocked

    def after(self, session: DeviceSession, callback: Callable[[], None]) -> None:
        """Calls `callback` when all present queues of the session are empty; at once if there are none."""
        latest = self.latest(session)
        if latest is None:
            callback()
        else:
            latest.then(callback)

    def after_all(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` when the present queues of all sessions are empty.

        Returns False, without calling it, if there are none.
        """
        left = len(self._lines)
        if not left:
            return False

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback()

        for line in tuple(self._lines.values()):
            line[-1].then(one)
        return True

    @property
    def waiting(self) -> bool:
        """True if any queue has items."""
        return bool(self._lines)

    @property
    def more(self) -> bool:
        """True if an item could be freed immediately."""
        return bool(self._lines) and any(not line[0].blocked for line in self._lines.values())

    def pump(self) -> None:
        """Frees items for a bounded short time, `STRETCH_S`."""
        if not self._lines:
            return
        until = self._clock() + STRETCH_S
        while True:
            advanced = False
            for session in tuple(self._lines):
                line = self._lines[session]
                if line[0].blocked:
                    continue
                advanced = True
                if line[0].advance(PIECE):
                    line.popleft()
                    if not line:
                        del self._lines[session]
                if self._clock() > until:
                    self._rotate(session)
                    return
            if not advanced:
                return

    def _rotate(self, session: DeviceSession) -> None:
        """Moves the session that was served last behind the other sessions."""
        line = self._lines.pop(session, None)
        if line is not None:
            self._lines[session] = line
