"""Deferred free: large amounts of memory are freed in pieces, so that other commands are not delayed.

Small amounts are freed immediately. The queues of one session are processed in order, those of several sessions in
turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from hearth_proto.reasons import Refusal
from hearthd.device.platform.event_loop import countdown
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

T = TypeVar("T")

STRETCH_S = 2e-4
"""Time, in seconds, for which one `pump` may occupy this thread."""

PIECE_ITEMS = 16
"""Number of items between two readings of the clock."""

FEW = 64
"""Largest number of items that are freed immediately."""


class FreeQueue(Generic[T]):
    """Items to free, in order. `free_item` frees one item on the track that `track_of` returns, or on none."""

    __slots__ = ("_free_item", "_items", "_then", "_track_of", "failure", "over")

    def __init__(
        self, items: Iterable[T], track_of: Callable[[T], PooledStream | None], free_item: Callable[[T], None]
    ) -> None:
        self._items = deque(items)  # each item is dropped when it has been freed, instead of all at the end
        self._track_of = track_of
        self._free_item = free_item
        self._then: list[Callable[[], None]] = []
        self.over = False
        self.failure: Refusal | None = None
        """The first refusal of a free; None if there was none. The other items were freed nevertheless."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def blocked(self) -> bool:
        """True while the stream of the next item has no budget.

        The driver would block a thread that frees beyond the budget.
        """
        track = self._track_of(self._items[0]) if self._items else None
        return track is not None and track.budget <= 0

    def then(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when all items are freed."""
        if self.over:
            callback()
        else:
            self._then.append(callback)

    def advance(self, limit: int, *, respect_budget: bool = True) -> bool:
        """Frees up to `limit` items. Returns True if none is left. `respect_budget`: stops at a stream without it."""
        items, free_item = self._items, self._free_item
        for _ in range(min(limit, len(items))):
            if respect_budget and self.blocked:
                return False
            try:
                free_item(items.popleft())
            except Refusal as refusal:
                self.failure = self.failure or refusal
        if items:
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
        self.queues: dict[DeviceSession, deque[FreeQueue[Any]]] = {}
        """The queues of each session that have items, oldest first. Callers only test whether it is empty."""

    def begin(
        self,
        session: DeviceSession,
        items: Collection[T],
        track_of: Callable[[T], PooledStream | None],
        free_item: Callable[[T], None],
    ) -> FreeQueue[T]:
        """Frees items after those that the session is already freeing; a few immediately. Returns the queue."""
        free_queue = FreeQueue(items, track_of, free_item)
        if len(items) > FEW or not free_queue.advance(FEW, respect_budget=False):
            self.queues.setdefault(session, deque()).append(free_queue)
        return free_queue

    def latest(self, session: DeviceSession) -> FreeQueue[Any] | None:
        """Returns the last free queue of the session; None if everything is freed."""
        queues = self.queues.get(session)
        return queues[-1] if queues else None

    def blocked(self, session: DeviceSession) -> bool:
        """True if the session has a queue whose next item waits for the device."""
        queues = self.queues.get(session)
        return queues is not None and queues[0].blocked

    def after(self, session: DeviceSession, callback: Callable[[], None]) -> None:
        """Calls `callback` when all present queues of the session are empty; immediately if there are none."""
        latest = self.latest(session)
        if latest is None:
            callback()
        else:
            latest.then(callback)

    def after_all(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` when the present queues of all sessions are empty.

        Returns False, without calling it, if there are none.
        """
        if not self.queues:
            return False
        complete_one = countdown(len(self.queues), callback)
        for queues in tuple(self.queues.values()):
            queues[-1].then(complete_one)
        return True

    @property
    def more(self) -> bool:
        """True if an item could be freed immediately."""
        return bool(self.queues) and any(not queues[0].blocked for queues in self.queues.values())

    def pump(self) -> None:
        """Frees items for a bounded short time, `STRETCH_S`."""
        if not self.queues:
            return
        until = self._clock() + STRETCH_S
        while True:
            advanced = False
            for session in tuple(self.queues):
                queues = self.queues[session]
                if queues[0].blocked:
                    continue
                advanced = True
                if queues[0].advance(PIECE_ITEMS):
                    queues.popleft()
                    if not queues:
                        del self.queues[session]
                if self._clock() > until:
                    self._rotate(session)
                    return
            if not advanced:
                return

    def _rotate(self, session: DeviceSession) -> None:
        """Moves the session that was served last after the other sessions."""
        queues = self.queues.pop(session, None)
        if queues is not None:
            self.queues[session] = queues
