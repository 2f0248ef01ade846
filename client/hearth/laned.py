"""An attachment's traffic over a lane, while it has one.

Who submits sends: at once what is waited for, and what is alone unless a request is about to follow, else when enough
has gathered. What it leaves behind is sent by a thread that does nothing else, or by the one that receives, with the
next ack.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from hearth.errors import HearthError, broken
from hearth_proto.frames import FrameError, Kind
from hearth_proto.v1 import device_pb2

if TYPE_CHECKING:
    from hearth.session import Session
    from hearth.transport.lane import Lane
    from hearth_proto.frames import Frame

GATHER = 32
"""So many commands are worth a message of their own; four times as many with each message that is under way."""
_SOON_S = 0.2e-3
"""Lone work whose sender waits for something so soon after is better sent with that, in one message."""
_IDLE_S = 1.0


class Owner(Protocol):
    """The attachment. All but `changed`, which is called with it, are called without its lock."""

    session: Session

    def bury(self) -> None:
        """Queues what was freed; with the lock held."""

    def changed(self) -> None:
        """Something came, with the lock held."""


class Laned:
    """One live lane. Methods that say nothing else are called with the attachment's lock held."""

    def __init__(self, lane: Lane, owner: Owner, lock: threading.Lock, on_end: Callable[[], None]) -> None:
        self.error: HearthError | None = None
        """Why it ended, where it ended by itself."""
        self.fruitful = False
        """Whether anything has come over it."""
        self._lane = lane
        self._owner = owner
        self._session = owner.session
        self._lock = lock
        self._on_end = on_end
        self._left = threading.Condition(lock)  # the sender waits for what others leave behind
        self._sender_waits = False
        self._soon = False
        """Whether lone work was followed, the last time, by something that is waited for, which may take it along."""
        self._pushed_alone = 0.0
        self._awaited = False
        """Whether the queue holds something that is waited for, and that the window had no room for."""
        self._over = False
        self._users = 2

    def start(self, name: str) -> None:
        """Begins to receive."""
        for run, suffix in ((self._receive, "receive"), (self._send, "send")):
            threading.Thread(target=self._use, args=(run,), name=f"{name}-{suffix}", daemon=True).start()

    def close(self) -> None:
        """Nothing goes out or comes in any more."""
        self._over = True
        self._lane.close()
        self._left.notify_all()

    def forked(self) -> None:
        """In the child of a fork, without the lock."""
        self._lane.release()

    # ---- out ----

    def push_work(self) -> None:
        """One-way work was queued."""
        session = self._session
        under_way = session.next_seq - 1 - session.acked
        if session.queued + session.extra >= GATHER << 2 * under_way:
            self.push()
        elif under_way:
            return  # it goes with an ack at the latest
        elif not self._soon:
            self.push()
            self._pushed_alone = time.monotonic()
        elif self._sender_waits:
            self.nudge()

    def push_awaited(self) -> None:
        """A request was queued that somebody waits for."""
        if not self._soon and time.monotonic() - self._pushed_alone < _SOON_S:
            self._soon = True
        self.push()
        self._awaited = self._session.queued > 0

    def _push_on(self) -> None:
        """Something came: goes on with what was left behind."""
        session = self._session
        under_way = session.next_seq - 1 - session.acked
        if (
            session.again or session.receipt_due
            or (session.queued and (self._awaited or not under_way
                or session.queued + session.extra >= GATHER << 2 * under_way))
        ):  # fmt: skip
            self.push()
            self._awaited = self._awaited and session.queued > 0

    def push(self, idle: bool = False) -> None:
        """Sends what may go, as far as the lane takes it. Never waits."""
        session, lane, taking = self._session, self._lane, False
        try:
            while not (self._over or lane.blocked):
                taking = True
                request = session.next_numbered(idle)
                taking = False
                if request is None:
                    return
                lane.send(*request)
        except OSError as error:
            self._break(_broken(error))
        except BaseException as error:  # KeyboardInterrupt: a part of a frame, or of what was queued, may be gone
            self._break(_interrupted(error) if taking else _broken(error))
            raise
        if self._sender_waits:
            self.nudge()  # it waits until the lane takes more

    def nudge(self) -> None:
        """The sending thread should look."""
        self._sender_waits = False
        self._left.notify()

    def _break(self, error: HearthError) -> None:
        if not self._over:
            self.error = error
            self.close()

    # ---- threads, without the lock ----

    def _use(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._lane.release()

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
            self._break(_broken(error))

    def _receive(self) -> None:
        try:
            while self._take(self._lane.receive()):
                pass
        except (OSError, FrameError, DecodeError) as error:
            ended: HearthError = _broken(error)
        except Exception as unexpected:  # a receiver that dies silently would leave every waiter waiting
            ended = HearthError(f"the lane failed: {unexpected!r}.", reason="INTERNAL")
        else:
            ended = _broken("it was given up")
        with self._lock:
            self._break(ended)
        self._on_end()

    def _take(self, came: list[Frame]) -> bool:
        """Whether more is wanted."""
        responses = [_response(frame) for frame in came]
        session = self._session
        with self._lock:
            for response in responses:
                if self._over:
                    return False
                session.receive(response)
                if session.fail_later is not None:
                    self._break(session.fail_later)
                    return False
            self.fruitful = True
            self._push_on()
            self._owner.changed()
        return True


def _response(frame: Frame) -> device_pb2.ExecuteResponse:
    if frame.kind == Kind.RESPONSE:
        return device_pb2.ExecuteResponse.FromString(frame.payload)
    if frame.kind == Kind.ACK:
        return device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=frame.id))
    raise FrameError(f"frame {frame.kind} came over a lane")


def _broken(cause: object) -> HearthError:
    return broken(f"the lane to the device broke ({cause}).")


def _interrupted(cause: object) -> HearthError:
    return HearthError(
        f"sending was interrupted ({cause!r}); what was queued may be lost.",
        reason="CANCELLED",
        fix="synchronize, and look what has been done.",
    )
