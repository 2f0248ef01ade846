"""The attachment to a device, driven by threads: those that submit, one that sends, one that receives.

A lone command goes at once; while a batch is on its way further commands gather, so that batches form by themselves
under load. The receiving thread never waits; what submits, `hearth.session.submitting` has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from hearth.errors import ClosedError, HearthError, TimeoutError, broken
from hearth.session.execute_stream import Execute
from hearth.session.lane_user import HELD_S
from hearth.session.submitting import Submitting
from hearth.session.watchdog import Point, Watchdog
from hearth_proto.later import device_pb2

if TYPE_CHECKING:
    from hearth.session.kernel_output import Prints
    from hearth.session.memory import Space
    from hearth.session.send_queue import Limits
    from hearth.transport.base import Transport

_IDLE_S = 1.0
"""How late a buffer may be given back in the one race that `nudge` loses: it takes no lock."""
_AWAY_S = 1.0
"""How long who closes waits for a connection that broke."""


class Attachment(Submitting):
    """A session's work on one device, from one attach to the loss of the device or the close of the session; where the
    connection breaks, it goes on over the next."""

    def __init__(
        self,
        limits: Limits,
        on_end: Callable[[Attachment, HearthError, bool], None],
        on_late_error: Callable[[HearthError], None],
        prints: Prints | None = None,
        requests: Iterator[int] | None = None,
    ) -> None:
        super().__init__(limits, on_late_error, requests)
        if prints is not None:
            self.session.on_output = prints.add
            self._before = prints.deliver
        self.alive = False
        self.over = threading.Event()
        self.space: Space | None = None
        """Set by the connection once the generation is known."""
        self._on_end = on_end
        self._stream = 0
        self.execute: Execute | None = None
        self._watchdog: Watchdog | None = None

    # ---- life ----

    def open(self, transport: Transport, token: str, device: int, timeout: float, lease: float = 30.0) -> None:
        """Attaches; `lease`: how long, in seconds, it may be away when the connection breaks. Raises what the daemon
        answers, or `TimeoutError`."""
        self.execute = execute = Execute(self, transport, token, device, lease)
        self._watchdog = Watchdog(self._point, execute.status, self._take_up_again)
        execute.open()
        with self._lock:
            self._await(lambda: self.session.attached or self.session.error is not None, timeout)
            error = self.session.error
            self.alive = self.session.attached and error is None
        if self.alive:
            return
        if error is None:
            error = TimeoutError(
                f"device {device} did not answer within {timeout:g} s.", reason="DEADLINE_EXCEEDED",
                fix="see `hearth status`, or connect with a longer timeout.",
            )  # fmt: skip
            self.end(error)
        raise error.again()

    def adopt(self, space: Space) -> None:
        """Works for `space` from now on, and empties its graveyard."""
        self.space = space
        self._dead = space.graveyard.dead
        space.graveyard.nudge = self._nudge

    def _nudge(self) -> None:
        # Called by the garbage collector, perhaps in a thread that holds the lock: it must not wait for it.
        if self._lock.acquire(blocking=False):
            try:
                if self._laned is not None:
                    self._laned.nudge()
                if self._sender_waits:
                    self._call_sender()
            finally:
                self._lock.release()

    def end(self, error: HearthError) -> None:
        """Fails all that is outstanding with `error` and drops the stream."""
        with self._lock:
            was_alive = self.session.error is None
            self.alive = False
            report = self.session.fail(error)
            self.over.set()
            self._leave_lane()
            self._call_sender()
            self._change.notify_all()
        if self.execute is not None:
            self.execute.cancel()
        if was_alive:
            self._on_end(self, error, report)

    def settle(self, timeout: float) -> None:
        """Waits until everything queued was sent and acknowledged, `timeout` seconds at most, and not long for a
        connection that broke."""
        session, deadline = self.session, time.monotonic() + timeout
        with self._lock:
            self.bury()
            self._wake_sender()
            while not session.idle and session.error is None and (left := deadline - time.monotonic()) > 0:
                if session.attached:
                    self._await(lambda: session.idle or session.error is not None or not session.attached, left)
                else:
                    self._await(lambda: session.attached or session.error is not None, min(left, _AWAY_S))
                    if not session.attached:
                        return

    def arrived(self, transfer: int, size: int) -> None:
        """So many bytes of a download have come: the daemon is told."""
        with self._lock:
            self.session.receipts.arrived(transfer, size)
            self._wake_sender()

    # ---- called by the sending and the receiving thread ----

    def begin(self) -> int:
        with self._lock:
            self._stream += 1
            self._call_sender()  # of the stream before, which ends
            self._calls = SimpleQueue()
            return self._stream

    def take(self, stream: int) -> bytes | None:
        session, idle = self.session, False
        while True:
            with self._lock:
                if session.error is not None or stream != self._stream:
                    return None
                self._sender_waits = away = False
                if self._held_until or self._laned is not None:
                    if self._receipt_opens:
                        return session.receipts.request()
                    away = self._away
                if not away:
                    if self._dead and session.attached:
                        self.bury()
                    request = session.next_request(idle)
                    if request is not None:
                        self.changed()
                        return request
                    self._sender_waits = True
                calls = self._calls
            try:
                calls.get(timeout=HELD_S if away else _IDLE_S)
                idle = False
            except Empty:
                idle = not away
                if self._watchdog is not None:
                    self._watchdog.tick()

    def deliver(self, response: device_pb2.ExecuteResponse) -> HearthError | None:
        with self._lock:
            self.session.receive(response)
            if self.session.fail_later is None:
                self._wake_sender()
                self.changed()
            return self.session.fail_later

    def early(self, response: bytes) -> bool:
        session = self.session
        with self._lock:
            if not session.receive_done(response):
                return False
            if self._sender_waits and session.receipts.due:
                self._wake_sender()
            self.changed()
        return True

    def _point(self) -> Point | None:
        """Where it stands; None while nothing is waited for, or no stream has it."""
        session = self.session
        with self._lock:
            if not session.attached or session.error is not None or self._held:
                return None
            if not session.outstanding and session.acked == session.next_seq - 1:
                return None
            sent = session.next_seq - 1 if not session.again else session.again[0][0] - 1
            return Point(session.acked, sent, session.receipts.responses, self._laned is not None)

    def _take_up_again(self, why: str) -> None:
        """Drops lane and stream, so that another stream goes on with what is missing."""
        with self._lock:
            laned = self._laned
            if laned is not None:
                laned.give_up(broken(f"{why}."))
        if laned is None and self.execute is not None:
            self.execute.reopen()

    def suspend(self, error: HearthError) -> None:
        with self._lock:
            self._leave_lane()
            self.session.suspend(error)
            self._change.notify_all()


def closed() -> ClosedError:
    """What every use of a closed node raises."""
    return ClosedError("this node is closed.", reason="CANCELLED", fix="connect again with hearth.connect().")
