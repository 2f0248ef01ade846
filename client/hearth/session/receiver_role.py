"""Receiver role of a lane (the Leader/Followers pattern): one waiting thread receives, otherwise a background thread.

Handing an answer from one thread to another costs more than everything else that a client does for it. So a waiting
thread receives every frame itself until its own answer arrives, and then wakes the next waiting thread. The background
thread receives only while no thread waits for an answer: immediately if something depends on the frames (queued work
that is sent with an ack, a thread that waits for room), otherwise a moment later. In a loop of launch and synchronize
the next wait follows soon, and waking the background thread each time would cost what this pattern saves.

The background thread waits for the socket to become readable without holding the role, so that a waiting thread can
take the role without a notification. The background thread notices that when bytes arrive, and then stays parked until
no thread has received for a tick.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.session.timing import TIMING, Timing

if TYPE_CHECKING:
    from hearth.session.reply import Reply


class ReceiverRole:
    """Decides which thread receives from a lane. All methods except `wait_for_role` are called with the lock held."""

    def __init__(
        self,
        lock: threading.Lock,
        sleepers: list[Reply],
        needed: Callable[[], bool],
        tick: Callable[[bool], None],
        timing: Timing = TIMING,
    ) -> None:
        """Stores the callbacks.

        `needed` returns True if something depends on the next response though no thread waits for an answer. `tick` is
        called in the background thread after each pause: with False if a thread that left the role ended the pause
        early, otherwise with True.
        """
        self.holder = 0
        """Identifier of the thread that receives now; 0: none."""
        self.parked = False
        """True while the background thread is parked."""
        self.over = False
        self._lock = lock
        self._sleepers = sleepers
        self._needed = needed
        self._tick = tick
        self.acquisitions = 0
        """Number of times that a waiting thread has taken the role."""
        self._tick_s, self._slow_tick_s = timing.tick, timing.slow_tick
        self._pause = self._tick_s
        """Seconds for which the background thread is parked at a time; -1: until it is woken."""
        self._wake_requested = False
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def ticking(self) -> bool:
        """True if the parked background thread checks again within `Timing.tick` seconds."""
        return self.parked and self._pause == self._tick_s

    def tick_soon(self) -> bool:
        """Returns `ticking`.

        If the next check would be a slow one, first wakes the background thread, so that it starts again with fast
        checks, and returns True.
        """
        if self.parked and self._pause == self._slow_tick_s:
            self._wake_parked()
            return True
        return self.ticking

    @property
    def parked_indefinitely(self) -> bool:
        """True if the background thread is parked without a timeout.

        Another thread has received for long, and wakes the background thread on leaving.
        """
        return self.parked and self._pause < 0

    def leave(self, thread: int) -> None:
        """Releases the role if `thread` holds it, and wakes another thread to take it.

        Args:
            thread: Identifier of the calling thread.
        """
        if self.holder == thread:
            self.holder = 0
            self.pass_on()

    def pass_on(self) -> None:
        """Wakes a waiting thread, or the background thread if it is needed, to take the role, which no thread holds."""
        for reply in self._sleepers:
            if not (reply.answered or reply.abandoned):
                reply.wake()
                return
        if self.parked:
            if self._needed():
                self.wake_thread()
            elif self.parked_indefinitely:
                self._wake_parked()

    def wake_thread(self) -> None:
        """Wakes the background thread to receive, unless another thread holds the role."""
        if self.parked and not self.holder:
            self._wake_requested = True
            self._wake_parked()

    def end(self) -> None:
        """Ends the role: no thread receives any more. Wakes the background thread."""
        self.over = True
        if self.parked:
            self._wake_parked()

    def _wake_parked(self) -> None:
        self.parked = False
        self._wake.release()

    # ---- the background, without the lock ----

    def wait_for_role(self) -> None:
        """Blocks until the background thread may receive, or until the role has ended."""
        with self._lock:
            if self.over or not self.holder:
                return
            last_acquisitions, idle_ticks = -1, 0
            while True:
                unchanged = last_acquisitions == self.acquisitions
                if self.over or self._wake_requested or (unchanged and not self.holder):
                    self._wake_requested = False
                    return
                idle_ticks = idle_ticks + 1 if unchanged else 0
                self._pause = (self._tick_s, self._slow_tick_s, -1)[min(idle_ticks, 2)]
                last_acquisitions = self.acquisitions
                self.parked = True
                woken = self._park() and not self._wake_requested
                if woken:  # a thread that received for long and has left may return soon: another tick
                    last_acquisitions = -1
                self._tick(not woken)

    def _park(self) -> bool:
        """Blocks for `_pause` seconds, without the lock, or until woken. Returns True if the thread was woken."""
        self._lock.release()
        try:
            woken = self._wake.acquire(timeout=self._pause)
        finally:
            self._lock.acquire()
        if self.parked:
            self.parked = False
            return False
        if not woken:
            self._wake.acquire()  # woken just after the timeout: consumes the wake-up
        return True
