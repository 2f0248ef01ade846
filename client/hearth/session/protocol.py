"""Protocol state of an attachment, without I/O: sequence numbers, window, pending replies, retransmission.

The driver passes commands in (`launch`, `add`) and takes requests out (`next_request`). It passes responses in
(`receive`), which complete the replies. When the stream breaks (`suspend`), batches that were not acknowledged are
kept, and the next stream continues from the position that both sides exchange in `attach`: every command runs once, and
every response is processed once. Nothing here blocks, locks or reads a clock: `attachment.py` drives it with threads,
and an event loop can do the same. The caller serializes all calls.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hearth.codec import batch, decode, encode
from hearth.errors import ConnectError, DeviceLostError, HearthError, from_status
from hearth.session.acks import Receipts
from hearth.session.send_queue import BATCH_COMMANDS, EMPTY_MARK, Limits, QueueMark, SendQueue
from hearth_proto import later
from hearth_proto.later import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.session.reply import ReplyLike
    from hearth.session.views import SessionView


_LARGE = 32 << 10
"""Minimum size, in bytes, of a response that is decoded without protobuf. Protobuf copies the data that it read a
second time, which takes longer for such responses."""


class Session:
    """Protocol state of one attachment.

    Requests with numbers below `first_request` belong to an earlier attachment, whose answers may still arrive.
    """

    def __init__(self, limits: Limits, first_request: int = 0) -> None:
        self.limits = limits
        self.queue = SendQueue(limits)
        """Commands that are not part of a batch yet."""
        self.error: HearthError | None = None
        """Set once the attachment has ended: nothing more is sent or received."""
        self.fail_later: HearthError | None = None
        """Error of a received response that ends the attachment; the driver calls `fail` with it."""
        self.device_lost = False
        self.draining = False
        self.on_output: Callable[[str], None] = lambda text: None
        """Receives the text that kernels of the session printed."""
        self.receipts = Receipts()
        self._first_request = first_request
        self._replies: dict[int, ReplyLike] = {}
        self._completed = 0
        """Number of the request that was answered last."""
        self._settled = 0
        # request number of a device-wide sync -> count of the one-way work that it covers
        self._barriers: dict[int, int] = {}
        self.generation = 0
        self.attached = False
        self.reverts: Callable[[], bool] = lambda: False
        """Returns True if a loss of the device would revert some state even though no work is in flight."""
        self.durable: list[int] = []
        """Handles of buffers of lost generations that had been restored when this attachment began."""
        self.next_seq = 1
        self.acked = 0
        self._unacked: deque[tuple[int, bytes]] = deque()  # sequence number, serialized request
        self._unacked_bytes = 0
        self._batch_in_transition: tuple[tuple[int, bytes], QueueMark, int] | None = None
        """The batch that is being taken from the queue, the queue's state without it, and `_unacked_bytes` with it."""
        # the batches of `_unacked` that must be sent, perhaps for the second time
        self.resend: deque[tuple[int, bytes]] = deque()
        self._answers_due: set[int] = set()  # requests that the daemon had received when the stream broke
        self._last_received = 0
        self._broken_by: HearthError | None = None

    def inspect(self) -> SessionView:
        """Returns the number and size of the batches and requests in flight."""
        from hearth.session.views import SessionView

        return SessionView(len(self._unacked), self._unacked_bytes, len(self._barriers))

    # ---- input: commands ----

    def add(
        self,
        command: bytes,
        request: int = 0,
        reply: ReplyLike | None = None,
        *,
        barrier: bool = False,
        worth: int = 1,
    ) -> None:
        """Queues one serialized command.

        Args:
            command: Serialized command, which carries `request` if it has a reply.
            request: Number of the request; 0 without a reply.
            reply: Receives the answer; None: the command is one-way.
            barrier: True if the success of the command proves that everything added before it is done (a sync of all
                streams).
            worth: Relative cost of the command; see `SendQueue.put`.
        """
        queue = self.queue
        if reply is None:
            queue.put(command, worth)
            queue.submitted += 1
            return
        try:
            # before the command is queued: an answer without a reply would end the attachment
            self._replies[request] = reply
            if barrier:
                self._barriers[request] = queue.submitted
            queue.put(command, worth)
        except BaseException:
            if not queue.ends_with(command):
                self._replies.pop(request, None)
                self._barriers.pop(request, None)
            raise

    @property
    def outstanding(self) -> int:
        """Number of pending replies."""
        return len(self._replies)

    @property
    def unreported(self) -> bool:
        """True if one-way work was added that no sync of all streams has covered since."""
        return self.queue.submitted > self._settled

    @property
    def idle(self) -> bool:
        """True if nothing is queued and everything sent was acknowledged."""
        return not self.queue.queued and self.acked == self.next_seq - 1

    # ---- output: requests ----

    @property
    def sendable(self) -> bool:
        """True if a batch can be sent, or sent again."""
        if not self.attached or self.error is not None:
            return False
        if self.resend:
            return True
        limits = self.limits
        return (
            self.queue.queued > 0
            and self.next_seq - 1 - self.acked < limits.max_batches_in_flight
            and self._unacked_bytes < limits.max_unacked_bytes
        )

    @property
    def receipt_due(self) -> bool:
        """True if a receipt should be sent now."""
        if not self.attached or self.error is not None:
            return False
        return self.receipts.due

    def attach(self, token: str, device: int) -> bytes:
        """Returns the first request of a stream, which begins or resumes the attachment.

        Args:
            token: Token of the session.
            device: Ordinal of the device.
        """
        has_begun = self.generation > 0
        self.receipts.record_attach()
        return encode.attach(
            token, device, self.acked, resume=has_begun, generation=self.generation, received=self.receipts.responses
        )

    @property
    def caught_up(self) -> bool:
        """True if all commands that the daemon had received before a break have been answered."""
        return self.acked >= self._last_received and self._answers_due.isdisjoint(self._replies)

    def next_request(self, idle: bool = False) -> bytes | None:
        """Returns the next serialized request: a receipt if one is due, otherwise a batch.

        Args:
            idle: True if nothing was sent for a while, so that a receipt that is not urgent may be returned too.

        Returns:
            The request, or None if there is nothing to send or the window is full.
        """
        return None if (numbered := self.next_numbered(idle)) is None else numbered[1]

    def next_numbered(self, idle: bool = False) -> tuple[int, bytes] | None:
        """Returns `next_request` together with the sequence number of its batch, or 0 if it is not a batch.

        Args:
            idle: True if nothing was sent for a while, so that a receipt that is not urgent may be returned too.
        """
        if not self.attached or self.error is not None:
            return None
        receipts = self.receipts
        if receipts.due or (idle and receipts.has_unreported_downloads):
            return 0, receipts.take_request()
        return self._next_batch()

    def next_with(self, command: bytes, request: int, reply: ReplyLike, barrier: bool) -> tuple[int, bytes] | None:
        """Combines `add` and `next_numbered` for the usual case.

        In that case, all that is queued fits one batch together with `command`, the window is open, and no log of
        callers is kept.

        Args:
            command: Serialized command that carries `request`.
            request: Number of the request.
            reply: Receives the answer.
            barrier: True if the command's success covers all earlier work; see `add`.

        Returns:
            Sequence number and batch, or None, with nothing changed, in any other case.
        """
        queue, unacked_bytes, limits = self.queue, self._unacked_bytes, self.limits
        entries, run, size = queue.entries, queue.run, queue.run_bytes
        count = len(entries)
        if (
            queue.closing is not None or queue.callers is not None
            or self.resend or self.receipts.due
            or not self.attached or self.error is not None
            or self.next_seq - self.acked > limits.max_batches_in_flight
            or (total := queue.queued_bytes + len(command) + (count + 3) * batch.FRAMING) > queue.room
            or total > limits.max_unacked_bytes - unacked_bytes
            or (count and queue.queued >= BATCH_COMMANDS)
        ):  # fmt: skip
            return None
        seq = self.next_seq
        try:
            self._replies[request] = reply  # registered before the batch is made, as in `add`
            if barrier:
                self._barriers[request] = queue.submitted
            if not count:
                request_bytes = batch.run_request(seq, run, size, command)
            else:
                commands = [entry for entry, _ in entries]
                if run:
                    commands.append(batch.launches_command(run, size))
                commands.append(command)
                request_bytes = batch.batch_request(seq, commands)
            numbered = seq, request_bytes
            transition = numbered, EMPTY_MARK, unacked_bytes + len(numbered[1])
            # One statement without a call, as in `SendQueue._close_run`: after a Ctrl-C, `interrupted` completes the
            # step.
            self._batch_in_transition, queue.run, queue.run_bytes = transition, [], 0
        except BaseException:
            if self._batch_in_transition is None:
                self._replies.pop(request, None)
                self._barriers.pop(request, None)
            raise
        self._unacked.append(numbered)
        if count:
            entries.clear()
        queue.queued = queue.queued_bytes = queue.extra_cost = 0
        self._unacked_bytes, self.next_seq, self._batch_in_transition = transition[2], seq + 1, None
        return numbered

    def add_ready(self, command: bytes, request: int, reply: ReplyLike, barrier: bool) -> bool:
        """Adds a command like `add`, and builds its batch immediately, so that the sender only needs to take it.

        Args:
            command: Serialized command that carries `request`.
            request: Number of the request.
            reply: Receives the answer.
            barrier: True if the command's success covers all earlier work; see `add`.

        Returns:
            False, with nothing added, if `next_with` cannot build the batch, because other work must be sent first.
        """
        previous_seq = self.next_seq
        try:
            numbered = self.next_with(command, request, reply, barrier)
            if numbered is None:
                return False
            self.resend.append(numbered)
        except BaseException:  # a Ctrl-C: a numbered batch must be sent, because its number must not be missing
            self.interrupted()
            if self.next_seq != previous_seq and not self.resend:
                self.resend.append(self._unacked[-1])
            raise
        return True

    def _next_batch(self) -> tuple[int, bytes] | None:
        """Returns the next batch: one that must be sent again, otherwise as much of the queue as fits."""
        if not self.sendable:
            return None
        if self.resend:
            return self.resend.popleft()
        room = self.limits.max_unacked_bytes - self._unacked_bytes
        queue = self.queue
        commands, mark = queue.gather(min(queue.room, room), alone=room >= queue.room or not self._unacked)
        if not commands:
            return None
        seq = self.next_seq
        numbered = seq, batch.batch_request(seq, commands)
        self._batch_in_transition = transition = numbered, mark, self._unacked_bytes + len(numbered[1])
        self._move(*transition)
        return numbered

    def _move(self, numbered: tuple[int, bytes], mark: QueueMark, unacked_bytes: int) -> None:
        unacked = self._unacked
        if not unacked or unacked[-1] is not numbered:
            unacked.append(numbered)
        if self.queue.callers is not None:
            self.queue.callers.record_batch(numbered[0], self.queue.queued - mark.queued, mark.queued)
        self.queue.move(mark)
        self._unacked_bytes = unacked_bytes
        self.next_seq = numbered[0] + 1
        self._batch_in_transition = None

    def interrupted(self) -> None:
        """Completes `next_numbered` after a Ctrl-C interrupted it.

        The request that it was about to return counts as sent, so the caller must drop the stream or lane, after
        which the request is sent again.
        """
        if self._batch_in_transition is not None:
            self._move(*self._batch_in_transition)

    # ---- input: responses ----

    def receive(self, response: device_pb2.ExecuteResponse) -> None:
        """Processes one response. A response that violates the protocol sets `fail_later`.

        Args:
            response: Response of the daemon.
        """
        if self.error is not None:
            return
        kind = response.WhichOneof("kind")
        if kind == "result":
            self._complete(response.result)
        elif kind == "ack":
            self.acknowledge(response.ack.seq)
        elif kind == "attached":
            self._attach(response.attached)
        elif kind == "event":
            self.receipts.add_size(len(response.event.output.text))
            self._event(response.event)
            self.receipts.count_response()

    def suspend(self, error: HearthError) -> None:
        """Stops output until another stream is attached.

        Args:
            error: Error with which the stream broke.
        """
        self.attached = False
        self._broken_by = error
        self.resend.clear()

    def fail(self, error: HearthError) -> bool:
        """Ends the attachment: every pending reply gets `error`, and the queue is dropped. A second call does nothing.

        Args:
            error: Error that the attachment's uses raise from now on.

        Returns:
            True if the caller must still report the error: one-way work is lost or some state is reverted, and no
            pending reply reports the loss.
        """
        if self.error is not None:
            return False
        self.error = error
        replies = list(self._replies.values())
        self._replies.clear()
        self._barriers.clear()
        is_reported = any(reply.reports and not reply.abandoned for reply in replies)
        self.queue.drop()
        self._unacked.clear()
        self.resend.clear()
        self._batch_in_transition = None
        self._unacked_bytes = 0
        for reply in replies:
            reply.set_error(error)
        reverts = self.generation > 0 and self.reverts()
        return (self.unreported or reverts) and not is_reported

    def forked(self, error: HearthError) -> list[ReplyLike]:
        """Ends the attachment in the child process of a fork. Returns the replies, whose answers the parent receives.

        Args:
            error: Error that the attachment's uses raise in this process.
        """
        self.error = error
        return list(self._replies.values())

    def _attach(self, attached: device_pb2.Attached) -> None:
        if self.attached:
            self._broken("the daemon sent a second Attached message")
        elif self._broken_by is None:
            self.attached = True
            self.generation = attached.generation
            self.durable = list(attached.durable)
            self.next_seq = attached.last_seq + 1
            self.acked = attached.last_seq
            limits = self.limits
            self.limits = limits._replace(
                max_batch_bytes=attached.max_batch_bytes or limits.max_batch_bytes,
                max_batches_in_flight=attached.max_batches_in_flight or limits.max_batches_in_flight,
                max_unacked_bytes=attached.max_unacked_bytes or limits.max_unacked_bytes,
            )
            self.queue.set_limits(self.limits)
        elif not attached.resumed or attached.generation != self.generation:
            self.fail_later = ConnectError(
                f"the connection broke, and the daemon could not resume it: {self._broken_by.message}",
                reason=self._broken_by.reason,
                fix="synchronize, and check which work was completed; the rest of the work in progress is lost.",
            )
        elif not self.acked <= attached.last_seq < self.next_seq:
            self._broken(
                f"batch {attached.last_seq} is reported as received, but batch {self.next_seq - 1} was the "
                "last one sent"
            )
        else:
            self.attached = True
            self._broken_by = None
            self.resend.extend(numbered for numbered in self._unacked if numbered[0] > attached.last_seq)
            self._last_received = attached.last_seq
            self._answers_due = set(self._replies).difference(self._not_received())

    def _not_received(self) -> set[int]:
        """Returns the numbers of the requests that the daemon has not received."""
        batches = (device_pb2.ExecuteRequest.FromString(request).batch for _, request in self.resend)
        queued = (commands_pb2.Command.FromString(command) for command, _ in self.queue.entries)
        return {
            command.request
            for command in itertools.chain(*(request_batch.commands for request_batch in batches), queued)
        }

    def acknowledge(self, seq: int) -> None:
        """Records that every batch up to `seq` has been executed.

        Args:
            seq: Sequence number of a batch.
        """
        if seq >= self.next_seq:
            self._broken(f"batch {seq} is acknowledged, but batch {self.next_seq - 1} was the last one sent")
        elif seq > self.acked:
            unacked = self._unacked
            while unacked and unacked[0][0] <= seq:
                self._unacked_bytes -= len(unacked.popleft()[1])
            if not unacked:
                self._unacked_bytes = 0
            self.acked = seq

    def receive_other(self, data: bytes) -> None:
        """Processes a serialized response for which `receive_done` returned False.

        Args:
            data: Serialized `ExecuteResponse`.
        """
        # Protobuf decodes small responses faster, once it is imported.
        answer = decode.read_answer(data) if len(data) > _LARGE or not later.are_loaded() else None
        if answer is None:
            self.receive(device_pb2.ExecuteResponse.FromString(data))
        elif self.error is None:
            self._complete(answer)

    def receive_done(self, data: bytes) -> bool:
        """Processes an empty or an expected result of a pending request, without building a protobuf message.

        Args:
            data: Serialized `ExecuteResponse`.

        Returns:
            False, with nothing done, for any other response.
        """
        request, payload = batch.parse_answer(data)
        reply = self._replies.get(request)
        if reply is None or self.error is not None:
            return False
        result = decode.DONE
        if payload != batch.DONE:
            expected = reply.expected
            if expected is None or payload != expected[0]:
                return False
            result = expected[1]
        covered = self._barriers.get(request)
        if covered is not None and covered > self._settled:
            self._settled = covered
        reply.set_result(result)
        self._completed = request
        if covered is not None:
            self._barriers.pop(request, None)
        self._replies.pop(request, None)
        receipts = self.receipts
        receipts.responses = count = receipts.responses + 1
        if count >= receipts.responses_due:
            receipts.due = True
        return True

    def _complete(self, result: commands_pb2.Result) -> None:
        """Delivers a result.

        Counts the response last: after an interrupt, the daemon sends it again, and each step may be repeated.
        """
        request = result.request
        reply = self._replies.get(request)
        if reply is None:
            if request >= self._first_request and request != self._completed:
                self._broken(f"request {request} is answered, but it was not sent or has been answered before")
            self.receipts.count_response()
            return
        covered = self._barriers.get(request) if self._barriers else None
        if covered is not None:  # the sync reported any error, so that the work before it is settled in either case
            self._settled = max(self._settled, covered)
        kind = result.WhichOneof("kind")
        if result.HasField("error"):
            error = from_status(result.error)
            if self.queue.callers is not None:
                self.queue.callers.add_callers(error, result.error, request)
            reply.set_error(error)
        else:
            if kind == "read":
                read: Any = result.read  # of an answer that `hearth.codec.decode` read, the data is a memoryview
                self.receipts.add_size(len(read.data))
            elif kind == "dispatch":
                self.receipts.add_size(sum(map(len, result.dispatch.outputs)))
            reply.set_result(result)
        self._completed = request
        self._barriers.pop(request, None)
        self._replies.pop(request, None)
        self.receipts.count_response()

    def _event(self, event: device_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "output":
            self.on_output(event.output.text)
        elif kind == "draining":
            self.draining = True
        elif kind == "protocol_error":
            self.fail_later = from_status(event.protocol_error)
        elif kind == "device_lost":
            lost = from_status(event.device_lost.status)
            if not isinstance(lost, DeviceLostError):
                lost = DeviceLostError(lost.message or "the device process ended.", reason="DEVICE_LOST", fix=lost.fix)
            if event.device_lost.in_flight:
                lost.details.setdefault("in_flight", ", ".join(event.device_lost.in_flight))
            if self.queue.callers is not None:
                self.queue.callers.add_kernel_callers(lost, self._settled)
            self.device_lost = True
            self.fail_later = lost

    def _broken(self, violation: str) -> None:
        self.fail_later = HearthError(
            f"the daemon violated the protocol: {violation}.", reason="MALFORMED_MESSAGE",
            fix="update client and daemon to the same version.",
        )  # fmt: skip
