"""An attachment's traffic over a lane, while it has one.

Who sends, `hearth.session.lane_sending` says; who receives, `hearth.session.receiver_role`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.errors import HearthError
from hearth.session.lane_sending import Owner, Sending, lane_broke
from hearth_proto.frames import FrameError, Kind

if TYPE_CHECKING:
    from hearth.session.reply import Reply
    from hearth.transport.lane import Came, Lane

_RESPONSE, _ACK = int(Kind.RESPONSE), int(Kind.ACK)  # looked up once: each time costs 0.3 us (Python 3.11)


class Laned(Sending):
    """One live lane. Methods that say nothing else are called with the attachment's lock held."""

    def __init__(self, lane: Lane, owner: Owner, lock: threading.Lock, on_end: Callable[[], None]) -> None:
        super().__init__(lane, owner, lock)
        self.fruitful = False
        """Whether anything has come over it."""
        self._on_end = on_end
        self._taking = False
        """What a thread that waits has received is not yet where it belongs."""
        self._nested = False
        """A signal handler waits inside of a wait of its thread."""
        self._users = 2
        """Threads that use the descriptor."""

    def start(self, name: str) -> None:
        """Sends what waits for it, and begins to receive."""
        self.push()  # now: threads take a while to start
        for run, suffix in ((self._receive, "receive"), (self._send, "send")):
            threading.Thread(target=self._use, args=(run,), name=f"{name}-{suffix}", daemon=True).start()

    def forked(self) -> None:
        """In the child of a fork, without the lock."""
        self._lane.release()

    # ---- in: threads that wait ----

    def take_role(self, thread: int) -> bool:
        """A thread that waits for an answer is to receive, by `receive_for`; False where another does, or nobody any
        more."""
        if self._over:
            return False
        role = self._role
        if role.holder:
            if role.holder != thread:
                return False
            self._nested = True
        role.taken += 1
        # One statement that calls nothing: a Ctrl-C comes before it or after, and what is given back was taken.
        role.holder, self._users = thread, self._users + 1
        return True

    def receive_for(self, reply: Reply, deadline: float | None, thread: int) -> None:
        """Receives until `reply` is answered, `deadline` has come, or the lane is over. Without the lock, and with the
        role, which it leaves."""
        lane, lock = self._lane, self._lock
        signals = self._owner.signals if reply.foretold is not None else None
        try:
            while True:
                if signals is None:
                    began = lane.look(deadline)
                else:
                    word, number = signals.word, reply.request
                    began = lane.look(deadline, word, number)
                    if began and word[0] == number:
                        self._signalled(reply, began, thread)
                        return
                if deadline is not None and not lane.readable(deadline - time.monotonic()):
                    with lock:
                        self._leave_role(thread)
                    return
                lane.receive()
                if began:
                    lane.lookout.came(time.monotonic() - began)
                self._taking = True
                came = lane.frames()
                with lock:
                    more = self._take(came)
                    self._taking = False
                    if not more or reply.answered:
                        self._leave_role(thread)
                        return
        except Exception as error:
            with lock:
                self._break(_ended(error))
                self._leave_role(thread)

    def _signalled(self, reply: Reply, began: float, thread: int) -> None:
        """The device has said that it is done. What was said before that has come."""
        lane, now = self._lane, time.monotonic()
        lane.lookout.came(now - began)
        lane.lookout.signalled(now)
        came: list[Came] = []
        if lane.ready:
            lane.receive()
            self._taking = True
            came = lane.frames()
        with self._lock:
            self._take(came)
            self._taking = False
            reply.signalled()
            self._done = self._session.next_seq - 1
            self._leave_role(thread)

    def interrupted(self, thread: int) -> None:
        """The thread left `receive_for` by an exception such as KeyboardInterrupt, or never came to it."""
        if self._role.holder == thread:
            if self._taking:
                self._break(lane_broke("what came was interrupted"))  # it comes again over the next lane
            self._leave_role(thread)
        self._role.summon()  # also where it came while the role was left: perhaps nobody was called

    def pass_role(self) -> None:
        """One that slept does so no more: perhaps it was called to receive."""
        if self._role.parked and not self._role.holder:
            self._role.call()

    def expect(self) -> None:
        """Somebody depends on what comes, and does not receive."""
        if self._role.parked:
            self._role.summon()

    def _leave_role(self, thread: int) -> None:
        self._taking = False
        if self._nested:  # what the handler's thread waits for may have come meanwhile, and nothing more would come
            self._nested = False
            self._break(lane_broke("a signal handler waited"))
        self._role.leave(thread)
        self._users -= 1
        if not self._users:
            self._lane.release()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._lane.release()

    # ---- threads of the lane, without the lock ----

    def _use(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            with self._lock:
                self._leave()

    def _receive(self) -> None:
        """In the background; it ends with the lane, and says so."""
        lane, lock, role, thread = self._lane, self._lock, self._role, threading.get_ident()
        try:
            while True:
                role.await_turn()
                with lock:
                    if not role.holder and self._session.next_seq - 1 > self._session.acked:
                        role.holder = thread  # an ack is to come: each call that waits costs a turn at the interpreter
                if role.holder != thread:
                    lane.readable()
                with lock:
                    if self._over:
                        break
                    if role.holder not in (0, thread):
                        continue  # one that waits
                    role.holder = thread
                lane.receive()
                came = lane.frames()
                with lock:
                    self._take(came)
                    role.holder = 0
        except Exception as error:
            with lock:
                self._break(_ended(error))
        self._on_end()

    def _take(self, came: list[Came]) -> bool:
        """Takes what has come, with the lock held. Whether more is wanted."""
        session = self._session
        for kind, number, payload in came:
            if self._over:
                return False
            if kind == _RESPONSE:
                if not session.receive_done(payload):
                    session.receive_other(payload)
            elif kind == _ACK:
                session.acknowledge(number)
            else:
                raise FrameError(f"frame {kind} came over a lane")
            if session.fail_later is not None:
                self._break(session.fail_later)
                return False
        self.fruitful = True
        if session.queued or session.again or session.receipts.due:
            self._push_on()
        if self._owner.watchers:
            self._owner.changed()
        return not self._over


def _ended(error: Exception) -> HearthError:
    from google.protobuf.message import DecodeError  # not before something fails

    if isinstance(error, OSError | FrameError | DecodeError):
        return lane_broke(error)
    return HearthError(f"the lane failed: {error!r}.", reason="INTERNAL")  # else every waiter would wait for ever
