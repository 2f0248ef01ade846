"""Which thread receives from a lane: one that waits for an answer, else one in the background.

To hand an answer from thread to thread costs more than all else that a client does for it. So who waits receives
itself, whatever comes, until its own answer is there; then the next of those that wait is called. Only while nobody
waits does the background receive: at once where something depends on what comes (work that an ack takes along, a thread
that waits for room), else a moment later, for in a loop of launch and synchronize the next wait follows soon, and to
wake a thread each time would cost what was to be saved.

The background waits for the socket to be readable without having the role, so that it can be taken from it without a
word: it finds that out when something comes, and stays away then until nobody has received for a tick.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.session.reply import Reply

TICK_S = 1e-3
"""How often the background looks whether it is needed, once somebody has received in its place."""

SLOW_TICK_S = 20e-3
"""The same, while one waits that has waited for a tick already, as for each of a row of large copies: to be woken by
who leaves would cost that one a turn at the interpreter each time."""


class ReceiverRole:
    """Of the thread that receives. All but `await_turn` is called with the lock held."""

    def __init__(
        self, lock: threading.Lock, sleepers: list[Reply], needed: Callable[[], bool], tick: Callable[[bool], None]
    ) -> None:
        """`tick` is called when one has passed, and with False when one begins that nobody had expected."""
        self.holder = 0
        """The thread that receives now; 0: none."""
        self.parked = False
        """Whether the background stays away."""
        self.over = False
        self._lock = lock
        self._sleepers = sleepers
        self._needed = needed
        self._tick = tick
        self.taken = 0
        """How often a thread that waits took it."""
        self._pause = TICK_S
        """How long the background stays away at a time; -1: until it is called."""
        self._summoned = False
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def ticking(self) -> bool:
        """Whether the background looks again soon."""
        return self.parked and self._pause == TICK_S

    def tick_soon(self) -> bool:
        """The same; where it would look later, it begins anew with looking soon."""
        if self.parked and self._pause == SLOW_TICK_S:
            self._unpark()
            return True
        return self.ticking

    @property
    def watching(self) -> bool:
        """True while the background sleeps until it is called: one thread has received for long."""
        return self.parked and self._pause < 0

    def leave(self, thread: int) -> None:
        """It receives no more; somebody else does where that is needed."""
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
        """The background should receive now, unless one does who waits."""
        if self.parked and not self.holder:
            self._summoned = True
            self._unpark()

    def end(self) -> None:
        """Nobody receives any more."""
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
                self._pause = (TICK_S, SLOW_TICK_S, -1)[min(still, 2)]
                seen = self.taken
                self.parked = True
                called = self._park() and not self._summoned
                if called:  # one that received for long and has left comes again soon: another tick
                    seen = -1
                self._tick(not called)

    def _park(self) -> bool:
        """Until the next tick, or until it is called; whether it was."""
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
