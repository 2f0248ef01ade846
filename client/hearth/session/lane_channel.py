"""The channel of one attachment over a lane.

The submitting thread sends a request immediately if a thread waits for its answer, and a lone one-way command unless a
request is likely to follow soon; otherwise it sends when enough commands have gathered. The receiving thread sends the
remaining commands with the next ack, or a dedicated sending thread does. `hearth.session.receiver_role` selects the
thread that receives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from hearth.errors import HearthError, broken
from hearth.session.receiver_role import ReceiverRole
from hearth.session.timing import Timing
from hearth_proto.frames import FrameError, Kind

if TYPE_CHECKING:
    from typing import Protocol

    from hearth.session.protocol import Session
    from hearth.session.reply import Reply, ReplyLike
    from hearth.session.views import LaneChannelView
    from hearth.transport.lane import Lane, ReceivedFrame
    from hearth.transport.memory_segments import Signals

    class Waiting(Protocol):
        """The threads and event loops that wait for answers: `hearth.session.waiters.Waiters`."""

        lock: threading.Lock
        """The attachment's lock."""
        sleepers: list[Reply]
        """Replies for which sleeping threads wait."""
        watchers: list[SimpleQueue[None]]
        """Queues that wake the threads which wait for a change of the attachment."""
        listeners: int
        """Number of answers that event loops expect."""

        def changed(self) -> None:
            """Wakes the threads that wait for a change of the attachment."""

    class Owner(Protocol):
        """The attachment. Its methods are called with its lock held."""

        session: Session

        signals: Signals | None
        """Completion signals of copies, written by the device."""

        def queue_frees(self) -> None:
            """Queues commands that free the released handles."""


_RESPONSE, _ACK = int(Kind.RESPONSE), int(Kind.ACK)  # looked up once: each time costs 0.3 us (Python 3.11)

GATHER = 32
"""Number of commands that justify a separate message. The threshold quadruples with each message in flight."""


class LaneChannel:
    """Channel over a live lane. Methods are called with the attachment's lock held unless they say otherwise."""

    def __init__(self, lane: Lane, owner: Owner, waiters: Waiting, on_end: Callable[[], None], timing: Timing) -> None:
        self._timing = timing
        self._request_window_s = timing.request_window
        self.error: HearthError | None = None
        """Reason for which the lane ended, unless this side closed it."""
        self.lane = lane
        """The lane, which sends and receives frames over its socket."""
        self._owner = owner
        self._session = owner.session
        self._queue = owner.session.queue
        self._lock = waiters.lock
        self._waiters = waiters
        self.role = ReceiverRole(waiters.lock, waiters.sleepers, self._needed, self._tick, timing)
        """Selects the thread that receives."""
        self.calls: SimpleQueue[None] = SimpleQueue()
        """Queue that wakes the sender, which waits for commands that other threads left. Used without the lock, too."""
        self._sender_waits = False
        self._expects_request = False
        """True if the last lone command was followed soon by a request of a waiting thread. The next lone command is
        then held back, to be sent with its request."""
        self._pushed_alone = 0.0
        self._awaited = False
        """True if the queue holds a command that a thread waits for and that did not fit the window."""
        self._done = 0
        """Number of the last batch that the device has signalled as done; its ack may not have arrived yet."""
        self._ticked = 0
        """Number of the next batch at the time of the last tick."""
        self.over = False
        """True once nothing is sent or received any more."""
        self.received_any = False
        """True once a frame was received."""
        self._on_end = on_end
        self._is_delivering = False
        """True while frames that a waiting thread has received are being delivered."""
        self._nested = False
        """True if a signal handler waits for an answer while its thread already receives."""
        self._users = 2
        """Number of threads that use the socket's descriptor."""

    def start(self, name: str) -> None:
        """Sends queued commands, and starts the receiving and the sending thread.

        Args:
            name: Prefix of the threads' names.
        """
        self.send_queued()  # now: threads take a while to start
        for run, suffix in ((self._receive, "receive"), (self._send, "send")):
            threading.Thread(target=self._use, args=(run,), name=f"{name}-{suffix}", daemon=True).start()

    def inspect(self) -> LaneChannelView:
        """Returns the state of the channel. Takes no lock."""
        from hearth.session.views import LaneChannelView

        return LaneChannelView(self._sender_waits, self._expects_request, self._done)

    # ---- out ----

    def close(self) -> None:
        """Ends the channel: nothing is sent or received any more. Wakes the threads that receive or send."""
        self.over = True
        self.lane.close()
        self.role.end()
        self.calls.put(None)

    def push_work(self) -> None:
        """Called after one-way work was queued: sends it, or leaves it to be sent later."""
        session, queue = self._session, self._queue
        in_flight = session.next_seq - 1 - max(session.acked, self._done)
        if in_flight:
            if queue.queued + queue.extra_cost >= GATHER << 2 * in_flight:
                self.send_queued()
            elif self.role.parked:  # the work is sent with the next ack at the latest
                self.role.wake_thread()
        elif queue.queued + queue.extra_cost >= GATHER:
            self.send_queued()
        elif not self._expects_request:
            self.send_queued()
            self._pushed_alone = time.monotonic()
        elif self._sender_waits and not self.role.tick_soon():
            self.wake_sender()

    def push_awaited(self) -> None:
        """Called after a request was queued for whose answer a thread waits: sends it."""
        if not self._expects_request and time.monotonic() - self._pushed_alone < self._request_window_s:
            self._expects_request = True
        self.send_queued()
        self._awaited = self._queue.queued > 0

    def push_request(self, command: bytes, request: int, reply: ReplyLike, barrier: bool) -> None:
        """Queues a request for whose answer a thread waits, and sends it.

        The cost of this method dominates the cost of a lone command, so the usual case, in which the whole queue fits
        one message, is handled separately.

        Args:
            command: Serialized command that carries `request`.
            request: Number of the request.
            reply: Receives the answer.
            barrier: True if the command's success covers all earlier work; see `Session.add`.
        """
        session, lane = self._session, self.lane
        try:
            numbered = None
            if not (lane.blocked or self.over):
                numbered = session.next_with(command, request, reply, barrier)
            if numbered is not None:
                lane.send(*numbered)
        except OSError as error:
            self.abort(lane_lost(error))
        except BaseException as error:  # as in `send_queued`
            self.abort(lane_lost(error))
            session.interrupted()
            raise
        if numbered is None:
            session.add(command, request, reply, barrier=barrier)
            self.push_awaited()
            return
        self._awaited = False
        if lane.blocked and self._sender_waits:
            self.wake_sender()
        if not self._expects_request and time.monotonic() - self._pushed_alone < self._request_window_s:
            self._expects_request = True

    def _send_remaining(self) -> None:
        """Sends commands that were left in the queue, after a frame has been received."""
        session, queue = self._session, self._queue
        in_flight = session.next_seq - 1 - session.acked
        if (
            (
                queue.queued
                and (self._awaited or not in_flight or queue.queued + queue.extra_cost >= GATHER << 2 * in_flight)
            )
            or session.resend or session.receipts.due
        ):  # fmt: skip
            self.send_queued()
            self._awaited = self._awaited and queue.queued > 0

    def send_queued(self, idle: bool = False) -> None:
        """Sends as much as the window and the lane accept. Never blocks.

        Args:
            idle: True if nothing was sent for a while, so that a receipt that is not urgent may go out too.
        """
        session, queue, lane = self._session, self._queue, self.lane
        try:
            while not (self.over or lane.blocked):
                request = session.next_numbered(idle)
                if request is None:
                    break
                lane.send(*request)
                if not (queue.queued or session.resend):
                    break
        except OSError as error:
            self.abort(lane_lost(error))
        except BaseException as error:  # KeyboardInterrupt: a frame may be partly sent, or a batch not at all
            self.abort(lane_lost(error))  # unacknowledged batches are sent over the next lane
            session.interrupted()
            raise
        if lane.blocked and self._sender_waits:
            self.wake_sender()  # the sender waits until the lane accepts more
        if queue.queued and self.role.parked:
            self.role.wake_thread()  # the window is full until acks arrive

    def wake_sender(self) -> None:
        """Wakes the sending thread."""
        self.calls.put(None)
        self._sender_waits = False  # last: after a Ctrl-C in between, the sender is woken a second time

    def abort(self, error: HearthError) -> None:
        """Ends the lane with `error`; the attachment continues over another stream.

        Args:
            error: Error with which the lane ends, unless it has ended before.
        """
        if not self.over:
            self.error = error
            self.close()

    def _needed(self) -> bool:
        """True if something depends on the next response though no thread waits for an answer."""
        waiters = self._waiters
        return self._queue.queued > 0 or bool(waiters.watchers) or waiters.listeners > 0

    def _tick(self, timed_out: bool) -> None:
        """Sends commands that were held back for a request, if the request did not follow within a tick."""
        session = self._session
        if (
            timed_out
            and self._queue.queued
            and session.next_seq == self._ticked
            and session.acked == session.next_seq - 1
        ):
            self._expects_request = False
            self.send_queued()
        self._ticked = session.next_seq

    # ---- in: threads that wait ----

    def take_role(self, thread: int) -> bool:
        """Makes `thread`, which waits for an answer and then calls `receive_for`, the receiver.

        Args:
            thread: Identifier of the calling thread.

        Returns:
            False if another thread receives or the lane has ended.
        """
        if self.over:
            return False
        role = self.role
        if role.holder:
            if role.holder != thread:
                return False
            self._nested = True
        role.acquisitions += 1
        # One statement without a call: a Ctrl-C comes before it or after it, and `interrupted` returns what was taken.
        role.holder, self._users = thread, self._users + 1
        return True

    def receive_for(self, reply: Reply, deadline: float | None, thread: int) -> None:
        """Receives until `reply` is answered, `deadline` has passed, or the lane has ended.

        Called without the lock by the thread that holds the role; leaves the role.

        Args:
            reply: Reply for which the calling thread waits.
            deadline: Monotonic time in seconds; None: without a limit.
            thread: Identifier of the calling thread.
        """
        lane, lock = self.lane, self._lock
        signals = self._owner.signals if reply.signalled_result is not None else None
        try:
            while True:
                if signals is None:
                    polling_started = lane.spin(deadline)
                else:
                    word, number = signals.word, reply.request
                    polling_started = lane.spin(deadline, word, number)
                    if polling_started and word[0] == number:
                        self._complete_signalled(reply, polling_started, thread)
                        return
                if deadline is not None and not lane.readable(deadline - time.monotonic()):
                    with lock:
                        self._leave_role(thread)
                    return
                lane.receive()
                if polling_started:
                    lane.spin_wait.answer_arrived(time.monotonic() - polling_started)
                self._is_delivering = True
                frames = lane.frames()
                with lock:
                    more = self._process_frames(frames)
                    self._is_delivering = False
                    if not more or reply.answered:
                        self._leave_role(thread)
                        return
        except Exception as error:
            with lock:
                self.abort(_lane_error(error))
                self._leave_role(thread)

    def _complete_signalled(self, reply: Reply, polling_started: float, thread: int) -> None:
        """Completes a reply whose completion the device has signalled.

        Responses that the device sent before the signal have arrived, and are delivered first.
        """
        lane, now = self.lane, time.monotonic()
        lane.spin_wait.answer_arrived(now - polling_started)
        lane.spin_wait.signalled(now)
        frames: list[ReceivedFrame] = []
        if lane.ready:
            lane.receive()
            self._is_delivering = True
            frames = lane.frames()
        with self._lock:
            self._process_frames(frames)
            self._is_delivering = False
            reply.signalled()
            self._done = self._session.next_seq - 1
            self._leave_role(thread)

    def interrupted(self, thread: int) -> None:
        """Releases the role of a thread that left `receive_for` by an exception, or never entered it.

        The exception is, for example, KeyboardInterrupt.

        Args:
            thread: Identifier of the calling thread.
        """
        if self.role.holder == thread:
            if self._is_delivering:
                self.abort(lane_lost("receiving was interrupted"))  # the frames are sent again over the next lane
            self._leave_role(thread)
        self.role.wake_thread()  # also if the exception came while the role was left: perhaps no thread was woken

    def pass_role(self) -> None:
        """Called when a thread has stopped sleeping.

        It may have been woken to receive, so another thread is woken instead.
        """
        if self.role.parked and not self.role.holder:
            self.role.pass_on()

    def expect(self) -> None:
        """Wakes the background thread to receive if no thread does, because something depends on the next response."""
        self.role.wake_thread()

    def _leave_role(self, thread: int) -> None:
        self._is_delivering = False
        if self._nested:  # the handler may have received what its thread waits for, and no further frame may arrive
            self._nested = False
            self.abort(lane_lost("a signal handler waited for a response"))
        self.role.leave(thread)
        self._users -= 1
        if not self._users:
            self.lane.release()

    # ---- threads of the lane, without the lock ----

    def _use(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self.lane.release()

    def _receive(self) -> None:
        """Runs the background receiver. It ends with the lane, and then calls `on_end`."""
        lane, lock, role, thread = self.lane, self._lock, self.role, threading.get_ident()
        try:
            while True:
                role.wait_for_role()
                with lock:
                    if not role.holder and self._session.next_seq - 1 > self._session.acked:
                        role.holder = (
                            thread  # an ack is expected: saves a blocking call, which releases the interpreter lock
                        )
                if role.holder != thread:
                    lane.readable()
                with lock:
                    if self.over:
                        break
                    if role.holder not in (0, thread):
                        continue  # a waiting thread receives
                    role.holder = thread
                lane.receive()
                frames = lane.frames()
                with lock:
                    self._process_frames(frames)
                    role.holder = 0
        except Exception as error:
            with lock:
                self.abort(_lane_error(error))
        self._on_end()

    def _process_frames(self, frames: list[ReceivedFrame]) -> bool:
        """Processes received frames, with the lock held. Returns True if more frames are expected."""
        session = self._session
        for kind, number, payload in frames:
            if self.over:
                return False
            if kind == _RESPONSE:
                if not session.receive_done(payload):
                    session.receive_other(payload)
            elif kind == _ACK:
                session.acknowledge(number)
            else:
                raise FrameError(f"a frame of kind {kind} arrived on a lane")
            if session.fail_later is not None:
                self.abort(session.fail_later)
                return False
        self.received_any = True
        if self._queue.queued or session.resend or session.receipts.due:
            self._send_remaining()
        if self._waiters.watchers:
            self._waiters.changed()
        return not self.over

    def _send(self) -> None:
        idle = False
        while True:
            with self._lock:
                self._sender_waits = False
                if self.over:
                    return
                try:
                    if self.lane.blocked:
                        self.lane.flush()
                except OSError as error:
                    self.abort(lane_lost(error))
                if self._queue.queued:
                    self._expects_request = False  # no request followed the command
                self._owner.queue_frees()
                self.send_queued(idle)
                self._waiters.changed()
                blocked = self.lane.blocked
                self._sender_waits = not blocked
            if blocked:
                self.lane.writable()
                continue
            try:
                self.calls.get(timeout=self._timing.idle)
                idle = False
            except Empty:
                idle = True


def _lane_error(error: Exception) -> HearthError:
    from google.protobuf.message import DecodeError  # imported only after a failure

    if isinstance(error, OSError | FrameError | DecodeError):
        return lane_lost(error)
    # otherwise every waiting thread would wait forever
    return HearthError(f"the lane failed: {error!r}.", fix="connect again, and report the error.")


def lane_lost(cause: object) -> HearthError:
    """Returns the error of work that was in flight when the lane broke."""
    return broken(f"the lane to the device broke ({cause}).")
