"""Whether an attachment's work goes over a lane, waits for one, or goes over the Execute stream."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from hearth.session.lane_channel import Laned
from hearth.transport.spin_wait import Lookout
from hearth_proto.cores import cores

if TYPE_CHECKING:
    from hearth.session.protocol import Session
    from hearth.session.reply import Reply
    from hearth.transport.copy_signals import Signals
    from hearth.transport.lane import Lane

HELD_S = 0.25
"""How long work waits for a lane, where the daemon has to finish first what it had got before a break."""


class LaneUser:
    """What `Execute` asks of an attachment for the sake of lanes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._calls: SimpleQueue[None] = SimpleQueue()
        """Where the stream's sender sleeps while it has nothing to do, until it is called; each stream has its own."""
        self._sender_waits = False
        """Whether it has to be called when there is something to send; with the lock held."""
        self._laned: Laned | None = None
        self.sleepers: list[Reply] = []
        """What threads that sleep wait for; with the lock held."""
        self.watchers = 0
        """How many threads wait for `changed`; with the lock held."""
        self.listeners = 0
        """How many answers are expected by who is told of them (an event loop); with the lock held."""
        self.lookout = Lookout(cores())
        """For threads that wait at a lane."""
        self.signals: Signals | None = None
        """What the device writes as soon as copies are done; None: it does not."""
        self._held_until = 0.0
        """Nothing is sent before, unless a lane comes to life; 0: nothing is held back."""

    def hold(self) -> None:
        with self._lock:
            self._held_until = time.monotonic() + HELD_S

    def quiet(self) -> bool:
        with self._lock:
            if not (self._held and self.session.attached and self.session.quiet):
                return False
            self._held_until = math.inf  # to open a lane takes no longer than it may
            self._call_sender()  # the daemon waits for the receipt
            return True

    def at_rest(self) -> bool:
        with self._lock:
            session = self.session
            return session.attached and session.idle and not session.outstanding

    def carry(self, lane: Lane | None, on_end: Callable[[], None], name: str) -> Laned | None:
        with self._lock:
            self._held_until = 0.0
            if lane is not None and self.session.error is None:
                lane.lookout = self.lookout
                self._laned = Laned(lane, self, self._lock, on_end)
                self._laned.start(name)
            elif lane is not None:
                lane.release()
            self._call_sender()
            return self._laned

    # ---- waiting for answers ----

    def attend(self, reply: Reply, timeout: float | None) -> bool:
        """Waits for the answer, `timeout` seconds at most; whether it is there. Receives it itself, where it comes over
        a lane and nobody else receives."""
        thread = threading.get_ident()
        laned: Laned | None = None  # where it receives, or is about to
        deadline, left, slept = None, timeout, False
        try:
            if timeout is not None:
                deadline = time.monotonic() + timeout
            while True:
                with self._lock:
                    if slept:
                        self._slept(reply)
                    if reply.answered or (left is not None and left <= 0):
                        return reply.answered
                    laned = self._laned
                    slept = laned is None or not laned.take_role(thread)
                    if slept:
                        laned = None
                        self.sleepers.append(reply)
                if laned is None:
                    reply.sleep(left)
                else:
                    laned.receive_for(reply, deadline, thread)
                    if reply.answered:
                        return True
                if deadline is not None:
                    left = deadline - time.monotonic()
        except BaseException:  # KeyboardInterrupt, wherever it came
            over: list[bool] = []
            while not over:
                try:
                    self._give_back(reply, thread, laned, over)
                except KeyboardInterrupt:  # another one: the first is on its way already
                    continue
            raise

    def _give_back(self, reply: Reply, thread: int, laned: Laned | None, over: list[bool]) -> None:
        """What a thread that waits may still have; `over` is added to when that is done."""
        with self._lock:
            if reply in self.sleepers:
                self._slept(reply)
            if laned is not None:
                laned.interrupted(thread)
            over.append(True)

    def _slept(self, reply: Reply) -> None:
        self.sleepers.remove(reply)
        if self._laned is not None and self.sleepers:
            self._laned.pass_role()

    def expect(self) -> None:
        """Somebody depends on what comes, and does not wait for an answer."""
        with self._lock:
            if self._laned is not None:
                self._laned.expect()

    def listen(self, more: int) -> None:
        """See `Waiting`."""
        with self._lock:
            self.listeners += more
            if more > 0 and self._laned is not None:
                self._laned.expect()

    def bury(self) -> None:
        """Queues what was freed; with the lock held."""
        raise NotImplementedError

    def changed(self) -> None:
        """Something came over the lane; with the lock held."""
        raise NotImplementedError

    def forked(self) -> None:
        """In the child of a fork: takes no lock."""
        if self._laned is not None:
            self._laned.forked()

    @property
    def _held(self) -> bool:
        return self._held_until > 0 and self._held_until > time.monotonic()

    @property
    def _receipt_opens(self) -> bool:
        """Whether a lane that is being opened waits for the daemon to be told what has come over the stream."""
        return self._laned is None and self._held_until == math.inf and self.session.receipts.untold

    @property
    def _away(self) -> bool:
        """Whether the work goes another way than over the stream, or will."""
        return self._laned is not None or self._held

    def _call_sender(self) -> None:
        """The stream's sender has to look; with the lock held."""
        self._calls.put(None)
        self._sender_waits = False  # last: called twice, for a Ctrl-C in between, it looks twice

    def _leave_lane(self) -> None:
        self._held_until = 0.0
        laned, self._laned = self._laned, None
        if laned is not None:
            laned.close()
