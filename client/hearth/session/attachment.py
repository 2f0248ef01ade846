"""The attachment to a device, driven by threads: those that submit, one that sends, one that receives.

A lone command is sent immediately. While a batch is in flight, further commands gather, so that batches form under
load. The receiving thread never blocks on the daemon; a thread that submits faster than the daemon executes does.
The work goes over a lane (`hearth.session.lane_channel`), is held back for a lane, or goes over the Execute stream.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from hearth.codec import batch
from hearth.errors import HearthError, broken
from hearth.session.lane_channel import LaneChannel
from hearth.session.memory import free_commands
from hearth.session.protocol import Session
from hearth.session.reply import Reply
from hearth.session.timing import Timing
from hearth.session.waiters import Waiters
from hearth.session.watchdog import ClientPosition, Watchdog
from hearth.transport.spin_wait import SpinWait
from hearth_proto.cores import cores
from hearth_proto.later import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.codec.encode import Plain
    from hearth.session.kernel_output import KernelOutput
    from hearth.session.memory import Kind, Space
    from hearth.session.reply import ReplyLike
    from hearth.session.send_queue import Limits
    from hearth.session.views import AttachmentView
    from hearth.session.watchdog import ExecuteStreamLike
    from hearth.transport.lane import Lane
    from hearth.transport.memory_segments import Signals


_DEBUG = "HEARTH_DEBUG"
"""Environment variable that makes late errors name the callers of the failed commands, unless it is empty or 0."""
_AWAY_S = 1.0
"""Seconds for which `settle` waits for a broken connection to be resumed."""


class Attachment:
    """Abstract attachment: a session's work on one device; a subclass opens it.

    The attachment lasts from the first attach to the loss of the device or the close of the session. If the connection
    breaks, the attachment continues over the next one.
    """

    def __init__(
        self,
        limits: Limits,
        on_end: Callable[[Attachment, HearthError, bool], None],
        on_late_error: Callable[[HearthError], None],
        kernel_output: KernelOutput,
        requests: Iterator[int],
        timing: Timing,
    ) -> None:
        """Stores the callbacks.

        `requests` yields the request numbers, so that consecutive attachments of a connection share one numbering.
        `on_end` is called with the attachment, its final error and True if that error must be reported.
        """
        self._timing = timing
        self._yield_interval = timing.yield_interval
        self._requests_minted = requests
        self.session = Session(limits, next(requests))
        if os.environ.get(_DEBUG, "") not in ("", "0"):
            from hearth.session.callers import CallerLog

            self.session.queue.callers = CallerLog()
        self.queue = self.session.queue
        """Queue of outgoing commands: the queue of `session`."""
        self.session.on_output = kernel_output.add
        self._before_return = kernel_output.deliver
        """Called by a waiting thread before its wait for an answer returns."""
        self.alive = False
        self.over = threading.Event()
        self.space: Space | None = None
        """Set by the connection once the generation is known."""
        self.execute: ExecuteStreamLike | None = None
        self.spin_wait = SpinWait(cores())
        """Adaptive spin-wait of threads at a lane."""
        self.signals: Signals | None = None
        """Completion signals of copies, which the device writes; None: there are none."""
        self._on_end = on_end
        self._on_late_error = on_late_error
        self._stream = 0
        self._watchdog: Watchdog | None = None
        self._lock = threading.Lock()
        self.waiters = Waiters(self._lock)
        self._calls: SimpleQueue[None] = SimpleQueue()
        """Queue that wakes the stream's idle sender; each stream has a separate one."""
        self._sender_waits = False
        """True if the sender must be woken when there is something to send. Accessed with the lock held."""
        self.channel: LaneChannel | None = None
        """The live lane that carries the work; None: the Execute stream carries it."""
        self._hold_deadline = 0.0
        """Monotonic time before which nothing is sent unless a lane goes live; 0: nothing is held back."""
        self._freed: deque[tuple[Kind, int]] = deque()
        """Handles that were freed here and are not yet reported to the daemon."""
        self._waiting_since = 0.0
        """Monotonic time of the first submission to the empty queue."""

    def inspect(self) -> AttachmentView:
        """Returns the state of the sending thread. Takes no lock."""
        from hearth.session.views import AttachmentView

        return AttachmentView(self._sender_waits, self._calls.qsize())

    # ---- life ----

    def adopt(self, space: Space) -> None:
        """Makes `space` the attachment's space, whose released handles it frees from now on.

        Args:
            space: Device memory of the attachment's generation.
        """
        self.space = space
        self._freed = space.deferred_frees.handles
        space.deferred_frees.on_add = self._handle_freed

    def _handle_freed(self) -> None:
        # Called by the garbage collector, perhaps in a thread that holds the lock, and during a Ctrl-C: takes no lock.
        channel = self.channel
        calls = self._calls if channel is None else channel.calls
        if calls.empty():  # otherwise the sender is about to continue, and finds the handle
            calls.put(None)

    def end(self, error: HearthError) -> None:
        """Ends the attachment: fails everything outstanding with `error` and drops the stream.

        Args:
            error: Error that pending replies and all later uses raise.
        """
        with self._lock:
            was_alive = self.session.error is None
            self.alive = False
            report = self.session.fail(error)
            self.over.set()
            self._leave_lane()
            self._call_sender()
            self.waiters.changed()
        if self.execute is not None:
            self.execute.cancel()
        if was_alive:
            self._on_end(self, error, report)

    def settle(self, timeout: float) -> None:
        """Waits until everything queued was sent and acknowledged, at most `timeout` seconds.

        Waits at most `_AWAY_S` for a broken connection.

        Args:
            timeout: Longest wait in seconds.
        """
        session, deadline = self.session, time.monotonic() + timeout
        with self._lock:
            self.queue_frees()
            self._wake_sender()
        wait_until = self.waiters.wait_until
        while not session.idle and session.error is None and (remaining := deadline - time.monotonic()) > 0:
            if session.attached:
                wait_until(lambda: session.idle or session.error is not None or not session.attached, remaining)
            else:
                wait_until(lambda: session.attached or session.error is not None, min(remaining, _AWAY_S))
                if not session.attached:
                    return

    def report_received(self, transfer: int, size: int) -> None:
        """Records for the receipts that the first `size` bytes of a download have arrived.

        Args:
            transfer: Number of the transfer.
            size: Number of bytes received so far, from the beginning of the download.
        """
        with self._lock:
            self.session.receipts.record_download(transfer, size)
            self._wake_sender()

    # ---- threads that submit ----

    def launch(self, record: bytes) -> None:
        """Queues one packed launch. Blocks while the queue is full.

        Args:
            record: Launch as `hearth_proto.launches` packs it.

        Raises:
            HearthError: The attachment has ended, or the launch does not fit into a batch.
        """
        queue, session = self.queue, self.session
        if queue.queued >= queue.max_commands or queue.queued_bytes >= queue.max_bytes:  # `queue.full`, spelled out
            self._await_room()
        with self._lock:
            if session.error is not None:
                raise session.error.again()
            queue.launch(record)
            channel = self.channel
            if channel is not None:
                channel.push_work()
            elif self._sender_waits and session.sendable:
                self._call_sender()

    def submit(self, command: commands_pb2.Command | Plain, worth: int = 1) -> None:
        """Queues a one-way command. Blocks while the queue is full; raises like `launch`.

        Args:
            command: Command without a request number.
            worth: Relative cost of the command; see `SendQueue.put`.
        """
        self._add(command.SerializeToString(), 0, None, False, worth)

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """Queues a one-way command that does something `n` times. Blocks while the queue is full.

        Args:
            key: Identifies the action: consecutive calls with equal keys share one command.
            n: Number of repetitions to add.
            command: Returns the serialized command for a given number of repetitions.
        """
        if self.queue.full:
            self._await_room()
        with self._lock:
            self._make_ready()
            self.queue.count_up(key, n, command)
            self._wake_sender(False)

    def request(self, command: commands_pb2.Command | Plain, *, reports: bool = False, barrier: bool = False) -> Reply:
        """Queues a command and returns its reply. Blocks while the queue is full; raises like `launch`.

        Args:
            command: Command without a request number.
            reports: True if the command reports the errors of earlier commands; see `Reply`.
            barrier: True if its success covers all earlier work; see `Session.add`.
        """
        return self.request_serialized(command.SerializeToString(), reports=reports, barrier=barrier)

    def request_serialized(
        self,
        command: bytes,
        *,
        reports: bool = False,
        barrier: bool = False,
        on_error: Callable[[], None] | None = None,
    ) -> Reply:
        """Queues a serialized command without a request number, like `request`.

        Args:
            command: Serialized command without a request number.
            reports: True if the command reports the errors of earlier commands; see `Reply`.
            barrier: True if its success covers all earlier work; see `Session.add`.
            on_error: The reply's `on_error`; None: nothing is called.
        """
        request = next(self._requests_minted)
        reply = Reply(self.waiters, reports=reports)
        reply.before_return = self._before_return
        reply.request = request
        if on_error is not None:
            reply.on_error = on_error
        if reports:
            reply.on_late_error = self._on_late_error
        command = batch.with_request(request, command)
        try:
            queue, session = self.queue, self.session
            if queue.queued >= queue.max_commands or queue.queued_bytes >= queue.max_bytes:  # `queue.full`, spelled out
                self._await_room()
            with self._lock:
                if session.error is not None or self._freed:
                    self._make_ready()
                channel = self.channel
                if channel is not None:
                    channel.push_request(command, request, reply, barrier)
                    return reply
                if session.add_ready(command, request, reply, barrier):
                    self._wake_sender()
                    return reply
            self._add(command, request, reply, barrier)
            return reply
        except BaseException:  # KeyboardInterrupt: the command may have been sent; no thread takes the answer
            reply.abandon()
            raise

    def _make_ready(self) -> None:
        """Queues the frees of released handles, so that their memory is available to new allocations.

        Called with the lock held. Raises the error of an attachment that has ended.
        """
        if self.session.error is not None:
            raise self.session.error.again()
        if self._freed:
            self.queue_frees()

    def ask_in_order(self, command: commands_pb2.Command) -> Reply:
        """Queues a command, even if the queue is full, and returns its reply.

        Args:
            command: Command, which receives its request number here: the numbers have the order of the commands.
        """
        reply = Reply(self.waiters)
        try:
            with self._lock:
                if self.session.error is not None:
                    raise self.session.error.again()
                command.request = reply.request = next(self._requests_minted)
                self.session.add(command.SerializeToString(), command.request, reply)
                self._wake_sender()
            return reply
        except BaseException:  # KeyboardInterrupt: no thread takes the answer
            reply.abandon()
            raise

    def submit_serialized(self, command: bytes, reply: ReplyLike, *, one_way: bool) -> None:
        """Queues a serialized command whose `reply` need not be waited for. Blocks while the queue is full.

        Args:
            command: Serialized command without a request number.
            reply: Receives the answer in the receiving thread.
            one_way: True if the command counts as lost one-way work when the attachment ends before the answer.
        """
        request = next(self._requests_minted)
        data, session = batch.with_request(request, command), self.session
        with self._lock:
            if one_way:
                self.queue.submitted += 1
            if self.channel is not None and not (session.error is not None or self._freed or self.queue.full):
                self.channel.push_request(data, request, reply, False)
                return
        self._add(data, request, reply, False)

    def _add(self, data: bytes, request: int, reply: ReplyLike | None, barrier: bool, worth: int = 1) -> None:
        session = self.session
        if self.queue.full:
            self._await_room()
        with self._lock:
            self._make_ready()
            was_empty = not self.queue.queued
            session.add(data, request, reply, barrier=barrier, worth=worth)
            if self.channel is not None and reply is not None:
                self.channel.push_awaited()
                return
            self._wake_sender(reply is not None)
            now, next_seq = time.monotonic(), session.next_seq
            if was_empty:
                self._waiting_since = now
                return
            if now - self._waiting_since <= self._yield_interval or reply is not None or not session.sendable:
                return
        self._yield_to_sender(next_seq)

    def _yield_to_sender(self, next_seq: int) -> None:
        """Waits briefly until the sending thread takes batch `next_seq` from the queue.

        A thread that submits without a pause keeps the interpreter lock for 5 ms at a time (`sys.getswitchinterval`),
        and sending needs it several times.
        """
        session = self.session
        seconds = self._yield_interval if self.channel is None else self._timing.lane_yield
        try:
            self.waiters.wait_until(lambda: session.next_seq != next_seq or session.error is not None, seconds)
        finally:
            self._waiting_since = time.monotonic()

    def await_room(self, timeout: float | None) -> bool:
        """Waits until a command can be submitted without a wait, or the attachment has ended.

        Args:
            timeout: Longest wait in seconds; None: no limit.

        Returns:
            False if the queue is still full.
        """
        if self.queue.full:
            self.waiters.wait_until(lambda: not self.queue.full or self.session.error is not None, timeout)
        return not self.queue.full or self.session.error is not None

    def _await_room(self) -> None:
        """Waits until the queue has room. Raises the error of an attachment that has ended. Called without the lock."""
        self.await_room(None)
        if self.session.error is not None:
            raise self.session.error.again()

    def _wake_sender(self, awaited: bool = True) -> None:
        if self.channel is not None:
            self.channel.push_awaited() if awaited else self.channel.push_work()
        elif self._sender_waits and (self.session.sendable or self.session.receipt_due):
            self._call_sender()

    def queue_frees(self) -> None:
        """Queues commands that free the released handles. Called with the lock held."""
        if self.session.error is not None:
            return
        for command in free_commands(self._freed):
            self.session.add(command.SerializeToString())

    # ---- called by the sending and the receiving thread ----

    def begin(self) -> int:
        """Begins another stream, and wakes the sender of the previous one, which ends."""
        with self._lock:
            self._stream += 1
            self._call_sender()  # wakes the sender of the previous stream, which then ends
            self._calls = SimpleQueue()
            return self._stream

    def next_request(self, stream: int) -> bytes | None:
        """Returns the next request for gRPC's sending thread, which also drives the watchdog while it is idle.

        While a lane is in use or awaited, only a receipt that the opening lane waits for is returned.

        Args:
            stream: Number of the stream, as `begin` returned it.
        """
        session, idle = self.session, False
        while True:
            with self._lock:
                if session.error is not None or stream != self._stream:
                    return None
                self._sender_waits = uses_lane = False
                if self._hold_deadline or self.channel is not None:
                    if self._lane_needs_receipt:
                        return session.receipts.take_request()
                    uses_lane = self.channel is not None or self._holds_work
                if not uses_lane:
                    if self._freed and session.attached:
                        self.queue_frees()
                    request = session.next_request(idle)
                    if request is not None:
                        self.waiters.changed()
                        return request
                    self._sender_waits = True
                calls = self._calls
            try:
                calls.get(timeout=self._timing.lane_hold if uses_lane else self._timing.idle)
                idle = False
            except Empty:
                idle = not uses_lane
                if self._watchdog is not None:
                    self._watchdog.tick()

    def deliver(self, response: device_pb2.ExecuteResponse) -> HearthError | None:
        """Processes a response, and wakes the sender and the threads that wait for a change of the attachment.

        Args:
            response: Response of the daemon, received on the Execute stream.
        """
        with self._lock:
            self.session.receive(response)
            if self.session.fail_later is None:
                self._wake_sender()
                self.waiters.changed()
            return self.session.fail_later

    def process_early(self, response: bytes) -> bool:
        """Processes an empty or an expected result without decoding it.

        Args:
            response: Serialized response.

        Returns:
            False, with nothing done, for any other response.
        """
        session = self.session
        with self._lock:
            if not session.receive_done(response):
                return False
            if self._sender_waits and session.receipts.due:
                self._wake_sender()
            self.waiters.changed()
        return True

    def _position(self) -> ClientPosition | None:
        """Returns the client's position; None while no answer is expected, or no stream is attached."""
        session = self.session
        with self._lock:
            if not session.attached or session.error is not None or self._holds_work:
                return None
            if not session.outstanding and session.acked == session.next_seq - 1:
                return None
            sent = session.next_seq - 1 if not session.resend else session.resend[0][0] - 1
            return ClientPosition(session.acked, sent, session.receipts.responses, self.channel is not None)

    def _reconnect(self, reason: str) -> None:
        """Drops the lane, or else the stream; `reason` becomes the error's text.

        Another stream continues with the missing responses.
        """
        with self._lock:
            channel = self.channel
            if channel is not None:
                channel.abort(broken(f"{reason}."))
        if channel is None and self.execute is not None:
            self.execute.cancel()

    def suspend(self, error: HearthError) -> None:
        """Leaves the lane and stops output until another stream is attached.

        Batches that were not acknowledged are kept.

        Args:
            error: Error with which the stream broke.
        """
        with self._lock:
            self._leave_lane()
            self.session.suspend(error)
            self.waiters.changed()

    # ---- lanes ----

    def hold_work(self) -> None:
        """Holds work back for `Timing.lane_hold` seconds, because a lane is offered."""
        with self._lock:
            self._hold_deadline = time.monotonic() + self._timing.lane_hold

    def may_open_lane(self) -> bool:
        """True if a lane may be opened now, while work is held back for it.

        The daemon has then answered all commands that it had received before a break. If True, work is held back
        without a limit until `use_lane`, and the sender is woken to send the receipt that the daemon waits for.
        """
        with self._lock:
            if not (self._holds_work and self.session.attached and self.session.caught_up):
                return False
            self._hold_deadline = math.inf  # without a limit, because the opening of a lane has a timeout
            self._call_sender()  # the daemon waits for the receipt
            return True

    def idle(self) -> bool:
        """True if an attached stream has nothing queued, unacknowledged or unanswered."""
        with self._lock:
            session = self.session
            return session.attached and session.idle and not session.outstanding

    def use_lane(self, lane: Lane | None, on_end: Callable[[], None], name: str) -> LaneChannel | None:
        """Starts a channel over `lane`, which carries the work from now on.

        Releases the lane if the attachment has ended.

        Args:
            lane: Connected lane; None: the stream carries the work that was held back.
            on_end: Called by the lane's receiving thread as its last step.
            name: Prefix of the names of the lane's threads.

        Returns:
            The channel, or None if the stream carries the work.
        """
        with self._lock:
            self._hold_deadline = 0.0
            if lane is not None and self.session.error is None:
                lane.spin_wait = self.spin_wait
                self.channel = self.waiters.channel = LaneChannel(lane, self, self.waiters, on_end, self._timing)
                self.channel.start(name)
            elif lane is not None:
                lane.release()
            self._call_sender()
            return self.channel

    def forked(self, refusal: HearthError) -> None:
        """Releases the lane in the child process of a fork, and ends all waits with `refusal`. Takes no lock."""
        self.alive = False
        for reply in self.session.forked(refusal):
            if isinstance(reply, Reply):
                reply.forked(refusal)
        if self.channel is not None:
            self.channel.lane.release()

    @property
    def _holds_work(self) -> bool:
        return self._hold_deadline > 0 and self._hold_deadline > time.monotonic()

    @property
    def _lane_needs_receipt(self) -> bool:
        """True if a lane that is being opened waits for a receipt of the stream's responses."""
        return self.channel is None and self._hold_deadline == math.inf and self.session.receipts.unacknowledged

    def _call_sender(self) -> None:
        """Wakes the stream's sender. Called with the lock held."""
        self._calls.put(None)
        self._sender_waits = False  # last: after a Ctrl-C in between, the sender is woken a second time

    def _use_stream(self, execute: ExecuteStreamLike) -> None:
        """Makes `execute` the stream of the attachment, and has it watched for lost frames."""
        self.execute = execute
        self._watchdog = Watchdog(self._position, execute.status, self._reconnect, timing=self._timing)

    def _leave_lane(self) -> None:
        self._hold_deadline = 0.0
        channel = self.channel
        self.channel = self.waiters.channel = None
        if channel is not None:
            channel.close()
