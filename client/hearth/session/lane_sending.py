"""What goes out over a lane, and when.

Who submits sends: at once what is waited for, and what is alone unless a request is about to follow, else when enough
has gathered. What it leaves behind is sent by whoever receives, with the next ack, or by a thread that does nothing
else.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from hearth.errors import HearthError, broken
from hearth.session.receiver_role import Role

if TYPE_CHECKING:
    from hearth.session.protocol import Session
    from hearth.session.reply import Reply, ReplyLike
    from hearth.transport.copy_signals import Signals
    from hearth.transport.lane import Lane

GATHER = 32
"""So many commands are worth a message of their own; four times as many with each message that is under way."""
_SOON_S = 0.2e-3
"""Lone work whose sender waits for something so soon after is better sent with that, in one message."""
_IDLE_S = 1.0


class Owner(Protocol):
    """The attachment. All but `changed`, which is called with it, are called without its lock."""

    session: Session
    sleepers: list[Reply]
    """What threads that sleep wait for."""

    watchers: int
    """How many threads wait for `changed`."""

    listeners: int
    """How many answers are expected that no thread waits for."""

    signals: Signals | None
    """What the device writes as soon as copies are done."""

    def bury(self) -> None:
        """Queues what was freed; with the lock held."""

    def changed(self) -> None:
        """Something came, with the lock held."""


class Sending:
    """The way out of one live lane. Methods that say nothing else are called with the attachment's lock held."""

    def __init__(self, lane: Lane, owner: Owner, lock: threading.Lock) -> None:
        self.error: HearthError | None = None
        """Why the lane ended, where it ended by itself."""
        self._lane = lane
        self._owner = owner
        self._session = owner.session
        self._lock = lock
        self._role = Role(lock, owner.sleepers, self._needed, self._tick)
        self._left = threading.Condition(lock)  # the sender waits for what others leave behind
        self._sender_waits = False
        self._soon = False
        """Whether lone work was followed, the last time, by something that is waited for, which may take it along."""
        self._pushed_alone = 0.0
        self._awaited = False
        """Whether the queue holds something that is waited for, and that the window had no room for."""
        self._done = 0
        """The last batch that the device has said it is done with: its ack is on its way."""
        self._ticked = 0
        """The next batch's number as of the last tick."""
        self._over = False

    def close(self) -> None:
        """Nothing goes out or comes in any more."""
        self._over = True
        self._lane.close()
        self._role.end()
        self._left.notify_all()

    def push_work(self) -> None:
        """One-way work was queued."""
        session = self._session
        under_way = session.next_seq - 1 - max(session.acked, self._done)
        if under_way:
            if session.queued + session.extra >= GATHER << 2 * under_way:
                self.push()
            elif self._role.parked:  # it goes with an ack at the latest
                self._role.summon()
        elif session.queued + session.extra >= GATHER:
            self.push()
        elif not self._soon:
            self.push()
            self._pushed_alone = time.monotonic()
        elif self._sender_waits and not self._role.tick_soon():
            self.nudge()

    def push_awaited(self) -> None:
        """A request was queued that somebody waits for."""
        if not self._soon and time.monotonic() - self._pushed_alone < _SOON_S:
            self._soon = True
        self.push()
        self._awaited = self._session.queued > 0

    def push_request(self, command: bytes, request: int, reply: ReplyLike, barrier: bool) -> None:
        """Queues a request that somebody waits for, and sends it. It is what a lone command costs most, so that the
        rule goes a way of its own: all that is queued fits one message."""
        session, lane = self._session, self._lane
        try:
            numbered = None
            if not (lane.blocked or self._over):
                numbered = session.next_with(command, request, reply, barrier)
            if numbered is not None:
                lane.send(*numbered)
        except OSError as error:
            self._break(lane_broke(error))
        except BaseException as error:  # as in `push`
            self._break(lane_broke(error))
            session.interrupted()
            raise
        if numbered is None:
            session.add(command, request, reply, barrier=barrier)
            self.push_awaited()
            return
        self._awaited = False
        if lane.blocked and self._sender_waits:
            self.nudge()
        if not self._soon and time.monotonic() - self._pushed_alone < _SOON_S:
            self._soon = True

    def _push_on(self) -> None:
        """Something came: goes on with what was left behind."""
        session = self._session
        under_way = session.next_seq - 1 - session.acked
        if (
            (
                session.queued
                and (self._awaited or not under_way or session.queued + session.extra >= GATHER << 2 * under_way)
            )
            or session.again or session.receipts.due
        ):  # fmt: skip
            self.push()
            self._awaited = self._awaited and session.queued > 0

    def push(self, idle: bool = False) -> None:
        """Sends what may go, as far as the lane takes it. Never waits."""
        session, lane = self._session, self._lane
        try:
            while not (self._over or lane.blocked):
                request = session.next_numbered(idle)
                if request is None:
                    break
                lane.send(*request)
                if not (session.queued or session.again):
                    break
        except OSError as error:
            self._break(lane_broke(error))
        except BaseException as error:  # KeyboardInterrupt: a part of a frame may be gone, or a batch never sent
            self._break(lane_broke(error))  # what is not acknowledged goes over the next lane
            session.interrupted()
            raise
        if lane.blocked and self._sender_waits:
            self.nudge()  # it waits until the lane takes more
        if session.queued and self._role.parked:
            self._role.summon()  # the window has no room: acks make some

    def nudge(self) -> None:
        """The sending thread should look."""
        self._sender_waits = False
        self._left.notify()

    def give_up(self, error: HearthError) -> None:
        """The lane is of no more use, for this reason: what was under way goes on without it."""
        self._break(error)

    def _break(self, error: HearthError) -> None:
        if not self._over:
            self.error = error
            self.close()

    def _needed(self) -> bool:
        """Whether somebody depends on what comes, though nobody waits for an answer."""
        owner = self._owner
        return self._session.queued > 0 or owner.watchers > 0 or owner.listeners > 0

    def _tick(self, passed: bool) -> None:
        """Sends what was left behind for a request that did not follow, as long as a tick."""
        session = self._session
        if passed and session.queued and session.next_seq == self._ticked and session.acked == session.next_seq - 1:
            self._soon = False
            self.push()
        self._ticked = session.next_seq

    # ---- the thread that sends, without the lock ----

    def _send(self) -> None:
        idle = False
        while True:
            with self._lock:
                if self._over:
                    return
                self._flush()
                if self._session.queued:
                    self._soon = False  # who left it behind has gone on to something else
                self._owner.bury()
                self.push(idle)
                self._owner.changed()
                blocked = self._lane.blocked
                if not (blocked or self._over):
                    self._sender_waits = True
                    idle = not self._left.wait(_IDLE_S)
                    self._sender_waits = False
            if blocked:
                self._lane.writable()

    def _flush(self) -> None:
        try:
            if self._lane.blocked:
                self._lane.flush()
        except OSError as error:
            self._break(lane_broke(error))


def lane_broke(cause: object) -> HearthError:
    """The error of what was under way."""
    return broken(f"the lane to the device broke ({cause}).")
