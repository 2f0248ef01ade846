"""Receiver role of a lane (the Leader/Followers pattern): one waiting thread receives, otherwise a background thread.

Handing an answer from thread to thread costs more than all else that a client does for it. So a waiting thread receives
every frame itself until its own answer comes; then it wakes the next waiting thread. The background thread receives
only while no thread waits: at once where something depends on the frames (work that an ack takes along, a thread that
waits for room), else a moment later, because in a loop of launch and synchronize the next wait follows soon, and waking
a thread each time would cost what was to be saved.

The background thread waits for the socket to be readable without holding the role, so that a waiting thread can take it
silently: the background thread finds out when bytes come, and then stays away until no thread has received for a tick.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.session.timing import TIMING, Timing

if TYPE_CHECKING:
    from hearth.session.reply import Reply


class ReceiverRole:
    """Holds which thread receives. All methods but `await_turn` are called with the lock held."""

    def __init__(
        self,
        lock: threading.Lock,
        sleepers: list[Reply],
        needed: Callable[[], bool],
        tick: Callable[[bool], None],
        timing: Timing = TIMING,
    ) -> None:
        """Stores the callbacks. `tick` is called with True when a tick has passed, and with False when an unexpected
        one begins."""
        self.holder = 0
        """The thread that receives now; 0: none."""
        self.parked = False
        """True while the background thread stays away."""
        self.over = False
        self._lock = lock
        self._sleepers = sleepers
        self._needed = needed
        self._tick = tick
        self.taken = 0
        """Number of times that a waiting thread took the role."""
        self._tick_s, self._slow_tick_s = timing.tick, timing.slow_tick
        self._pause = self._tick_s
        """Seconds for which the background thread stays away at a time; -1: until it is woken."""
        self._summoned = False
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def ticking(self) -> bool:
        """True if the background thread checks again soon."""
        return self.parked and self._pause == self._tick_s

    def tick_soon(self) -> bool:
        """Returns `ticking`; if the next check would be a slow one, restarts with fast ones and returns True."""
        if self.parked and self._pause == self._slow_tick_s:
            self._unpark()
            return True
        return self.ticking

    @property
    def watching(self) -> bool:
        """True if the background thread no longer checks by itself: a thread has received for long, and wakes it on
        leaving."""
        return self.parked and self._pause < 0

    def leave(self, thread: int) -> None:
        """Gives up the role; another thread takes it where one is needed."""
        if self.holder != thread:
            return
        self.holder = 0
        if self._sleepers and self.call():
            return
        if self.parked:
            if self._needed():
                self.summon()
            elif self.watching:
                self._unpark()

    def call(self) -> bool:
        """Wakes one of those that wait, if there is any, so that it receives."""
        for reply in self._sleepers:
            if not (reply.answered or reply.abandoned):
                reply.call()
                return True
        return False

    def summon(self) -> None:
        """Wakes the background thread to receive, unless a waiting thread does."""
        if self.parked and not self.holder:
            self._summoned = True
            self._unpark()

    def end(self) -> None:
        """Ends the role: no thread receives any more."""
        self.over = True
        if self.parked:
            self._unpark()

    def _unpark(self) -> None:
        self.parked = False
        self._wake.release()

    # ---- the background, without the lock ----

    def await_turn(self) -> None:
        """Returns when it is the background's turn to look for what comes, or at the end."""
        with self._lock:
            if self.over or not self.holder:
                return
            seen, still = -1, 0
            while True:
                quiet = seen == self.taken
                if self.over or self._summoned or (quiet and not self.holder):
                    self._summoned = False
                    return
                still = still + 1 if quiet else 0
                self._pause = (self._tick_s, self._slow_tick_s, -1)[min(still, 2)]
                seen = self.taken
                self.parked = True
                called = self._park() and not self._summoned
                if called:  # one that received for long and has left comes again soon: another tick
                    seen = -1
                self._tick(not called)

    def _park(self) -> bool:
        """Waits for the next tick, or until it is woken; returns whether it was."""
        self._lock.release()
        try:
            woken = self._wake.acquire(timeout=self._pause)
        finally:
            self._lock.acquire()
        if self.parked:
            self.parked = False
            return False
        if not woken:
            self._wake.acquire()  # it came as the tick passed
        return True
