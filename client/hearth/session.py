"""One attachment to a device, without I/O: batching, sequence numbers, window, and who waits for which answer.

Commands go in (`launch`, `add`), requests for the wire come out (`next_batch`), responses go in (`receive`), replies
are completed. Nothing here blocks, locks or reads a clock: `attachment.py` drives it with threads, an event loop can do
the same. The caller serializes all calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hearth import wire
from hearth.errors import DeviceLostError, HearthError, from_status

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2, device_pb2

BATCH_BYTES = 1 << 20
"""A batch is closed at this size: long enough to be worth a message, short enough to overlap with the next one."""
BATCH_COMMANDS = 512
BATCH_LAUNCHES = 4096
RUN_BYTES = 128 << 10
"""Consecutive launches share a command up to this size."""
COUNT_MAX = 2**64 - 1
QUEUE_BYTES = 64 << 20
QUEUE_COMMANDS = 20_000


class ReplyLike(Protocol):
    """What the session completes: a thread's `Reply`, an event loop's future."""

    @property
    def reports(self) -> bool: ...
    @property
    def abandoned(self) -> bool: ...
    def set_result(self, result: commands_pb2.Result) -> None: ...
    def set_error(self, error: HearthError) -> None: ...


@dataclass(frozen=True)
class Limits:
    """What the daemon accepts; sizes in bytes."""

    max_inline_bytes: int = 1 << 20
    max_chunk_bytes: int = 1 << 20
    max_batch_bytes: int = 4 << 20
    max_batches_in_flight: int = 8
    max_code_bytes: int = 64 << 20


class _Counted(NamedTuple):
    """The last command that `Session.count_up` added; it can grow while it is the last in the queue."""

    key: object
    n: int
    command: bytes


class Session:
    """One attachment's protocol state."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.generation = 0
        self.attached = False
        self.error: HearthError | None = None
        """Set once the attachment is over: nothing more goes in or out."""
        self.device_lost = False
        self.draining = False
        self.on_output: Callable[[str], None] = lambda text: None
        """Takes what kernels of the session printed."""
        self.next_seq = 1
        self.acked = 0
        self.queued_bytes = 0
        self.queued = 0
        self._queue: deque[tuple[bytes, int]] = deque()  # serialized command, how many launches it carries (or 1)
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._run_limit = self._limit_of_run()
        self._counted: _Counted | None = None
        self._replies: dict[int, ReplyLike] = {}
        self.submitted = 0
        """One-way commands and launches so far."""
        self._settled = 0
        self._barriers: dict[int, int] = {}  # request of a device-wide sync -> one-way work that it covers

    # ---- in: commands ----

    def launch(self, record: bytes) -> None:
        """One packed launch."""
        size = len(record)
        if self._run_bytes + size > self._run_limit:
            self._make_room(size)
        self._run.append(record)
        self._run_bytes += size
        self.queued_bytes += size
        self.queued += 1
        self.submitted += 1

    def add(self, command: bytes, request: int = 0, reply: ReplyLike | None = None, *, barrier: bool = False) -> None:
        """One serialized command; with `request`, `reply` gets its answer.

        `barrier`: its success says that everything added before is done (a sync of all streams).
        """
        self._check_size(len(command))
        if self._run:
            self._close_run()
        self._queue.append((command, 1))
        self.queued_bytes += len(command)
        self.queued += 1
        if reply is None:
            self.submitted += 1
            return
        self._replies[request] = reply
        if barrier:
            self._barriers[request] = self.submitted

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """One-way `command(n)`, which does something n times. Behind one of the same `key` that has not been sent, that
        one's count grows instead."""
        last, queue = self._counted, self._queue
        unsent = last is not None and not self._run and queue and queue[-1][0] is last.command
        if last is not None and unsent and last.key == key and last.n + n <= COUNT_MAX:
            n += last.n
            data, calls = command(n), queue.pop()[1] + 1
            self.queued_bytes -= len(last.command)
        else:
            if self._run:
                self._close_run()
            data, calls = command(n), 1
        queue.append((data, calls))
        self._counted = _Counted(key, n, data)
        self.queued_bytes += len(data)
        self.queued += 1
        self.submitted += 1

    @property
    def full(self) -> bool:
        """Whether who submits should wait: the daemon does not keep up."""
        return self.queued >= QUEUE_COMMANDS or self.queued_bytes >= QUEUE_BYTES

    @property
    def idle(self) -> bool:
        """Nothing queued, everything sent was acknowledged."""
        return not self.queued and self.acked == self.next_seq - 1

    @property
    def outstanding(self) -> int:
        """How many replies are waited for."""
        return len(self._replies)

    @property
    def unreported(self) -> bool:
        """Whether one-way work was added that no sync of all streams has covered since."""
        return self.submitted > self._settled

    # ---- out: batches ----

    @property
    def sendable(self) -> bool:
        """Whether `next_batch` has something to send now."""
        if not self.queued or not self.attached or self.error is not None:
            return False
        return self.next_seq - 1 - self.acked < self.limits.max_batches_in_flight

    def next_batch(self) -> bytes | None:
        """The next request: as much of the queue as fits one batch; None while there is none or the window is full."""
        if not self.sendable:
            return None
        if self._run:
            self._close_run()
        room = min(BATCH_BYTES, self.limits.max_batch_bytes) - wire.FRAMING
        commands: list[bytes] = []
        size = launches = 0
        queue = self._queue
        while queue and len(commands) < BATCH_COMMANDS and launches < BATCH_LAUNCHES:
            command, count = queue[0]
            needed = len(command) + wire.FRAMING
            if commands and size + needed > room:
                break
            queue.popleft()
            commands.append(command)
            size += needed
            launches += count
            self.queued -= count
            self.queued_bytes -= len(command)
        seq = self.next_seq
        self.next_seq += 1
        return wire.batch_request(seq, commands)

    # ---- in: responses ----

    def receive(self, response: device_pb2.ExecuteResponse) -> None:
        """Takes one response. A response that breaks the protocol fails the attachment."""
        if self.error is not None:
            return
        kind = response.WhichOneof("kind")
        if kind == "result":
            self._complete(response.result)
        elif kind == "ack":
            self._acknowledge(response.ack.seq)
        elif kind == "attached":
            self._attach(response.attached)
        elif kind == "event":
            self._event(response.event)

    def fail(self, error: HearthError) -> bool:
        """Ends the attachment: every reply gets `error`, the queue is dropped. A second call does nothing.

        Returns whether the error still has to be reported to somebody: one-way work is lost with it, and no reply
        that reports such work was waiting.
        """
        if self.error is not None:
            return False
        self.error = error
        replies = list(self._replies.values())
        self._replies.clear()
        self._barriers.clear()
        told = any(reply.reports and not reply.abandoned for reply in replies)
        self._queue.clear()
        self._run.clear()
        self._run_bytes = self.queued = self.queued_bytes = 0
        for reply in replies:
            reply.set_error(error)
        return self.unreported and not told

    def _attach(self, attached: device_pb2.Attached) -> None:
        if self.attached:
            self._broken("the daemon attached twice")
            return
        self.attached = True
        self.generation = attached.generation
        self.next_seq = attached.last_seq + 1
        self.acked = attached.last_seq
        self.limits = Limits(
            self.limits.max_inline_bytes,
            self.limits.max_chunk_bytes,
            attached.max_batch_bytes or self.limits.max_batch_bytes,
            attached.max_batches_in_flight or self.limits.max_batches_in_flight,
            self.limits.max_code_bytes,
        )
        self._run_limit = self._limit_of_run()

    def _acknowledge(self, seq: int) -> None:
        if seq >= self.next_seq:
            self._broken(f"batch {seq} is acknowledged, {self.next_seq - 1} is the last that was sent")
        elif seq > self.acked:
            self.acked = seq

    def _complete(self, result: commands_pb2.Result) -> None:
        reply = self._replies.pop(result.request, None)
        if reply is None:
            self._broken(f"request {result.request} is answered, which was not asked or was answered before")
            return
        covered = self._barriers.pop(result.request, None)
        if covered is not None:  # an error was reported with it, so that the work before is settled either way
            self._settled = max(self._settled, covered)
        if result.HasField("error"):
            reply.set_error(from_status(result.error))
        else:
            reply.set_result(result)

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
            self.device_lost = True
            self.fail_later = lost

    fail_later: HearthError | None = None
    """The response that was received ends the attachment; the driver calls `fail` with this."""

    def _broken(self, what: str) -> None:
        self.fail_later = HearthError(
            f"the daemon broke the protocol: {what}.", reason="MALFORMED_MESSAGE",
            fix="update client and daemon to the same version.",
        )  # fmt: skip

    def _limit_of_run(self) -> int:
        return min(RUN_BYTES, self.limits.max_batch_bytes - 3 * wire.FRAMING)

    def _make_room(self, size: int) -> None:
        if size > self._run_limit:
            self._check_size(size)
        if self._run:
            self._close_run()

    def _check_size(self, size: int) -> None:
        if size + 2 * wire.FRAMING > self.limits.max_batch_bytes:
            raise HearthError(
                f"a command of {size} bytes does not fit a batch; "
                f"the daemon takes {self.limits.max_batch_bytes} bytes.",
                reason="MESSAGE_TOO_LARGE",
                fix="make it smaller: fewer or shorter headers, code, options or arguments.",
            )

    def _close_run(self) -> None:
        command = wire.launches_command(self._run, self._run_bytes)
        self._queue.append((command, len(self._run)))
        self.queued_bytes += len(command) - self._run_bytes
        self._run = []
        self._run_bytes = 0
