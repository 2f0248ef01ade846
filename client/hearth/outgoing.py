"""Commands on their way out, without I/O: runs of launches, batches, and how much may wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hearth import wire
from hearth.errors import HearthError

BATCH_BYTES = 1 << 20
"""A batch is closed at this size: long enough to be worth a message, short enough to overlap with the next one."""
BATCH_COMMANDS = 512
BATCH_LAUNCHES = 4096
RUN_BYTES = 128 << 10
"""Consecutive launches share a command up to this size."""
COUNT_MAX = 2**64 - 1
QUEUE_BYTES = 64 << 20
QUEUE_COMMANDS = 20_000


class Limits(NamedTuple):
    """What the daemon accepts; sizes in bytes."""

    max_inline_bytes: int = 1 << 20
    max_chunk_bytes: int = 1 << 20
    max_batch_bytes: int = 4 << 20
    max_batches_in_flight: int = 8
    max_code_bytes: int = 64 << 20
    max_unacked_bytes: int = 32 << 20


class _Counted(NamedTuple):
    """The last command that `count_up` added; it can grow while it is the last in the queue."""

    key: object
    n: int
    command: bytes


class Outgoing:
    """The commands that were submitted and have not been put in a batch, in order."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queued_bytes = 0
        self.queued = 0
        self.extra = 0
        """What the commands that are queued are worth beyond their number, at most; see `put`."""
        self.submitted = 0
        """One-way commands and launches so far."""
        self._queue: deque[tuple[bytes, int]] = deque()  # serialized command, how many launches it carries (or 1)
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._run_limit = self._limit_of_run()
        self._counted: _Counted | None = None

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

    def put(self, command: bytes, worth: int = 1) -> None:
        """One serialized command; it takes the daemon as long as `worth` others, so that fewer are worth a batch."""
        self._check_size(len(command))
        if self._run:
            self._close_run()
        self._queue.append((command, 1))
        self.queued_bytes += len(command)
        self.queued += 1
        self.extra += max(worth - 1, 0)

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

    def gather(self, room: int, alone: bool) -> list[bytes]:
        """As many of the oldest commands as fit a batch of `room` bytes; with `alone`, the first one in any case."""
        if self._run:
            self._close_run()
        commands: list[bytes] = []
        size = launches = 0
        queue = self._queue
        while queue and len(commands) < BATCH_COMMANDS and launches < BATCH_LAUNCHES:
            command, count = queue[0]
            needed = len(command) + wire.FRAMING
            if size + needed > room and (commands or not alone):
                break
            queue.popleft()
            commands.append(command)
            size += needed
            launches += count
            self.queued -= count
            self.queued_bytes -= len(command)
        if not queue:
            self.extra = 0
        return commands

    def drop(self) -> None:
        """Forgets all of them."""
        self._queue.clear()
        self._run.clear()
        self._run_bytes = self.queued = self.queued_bytes = self.extra = 0

    def set_limits(self, limits: Limits) -> None:
        """What the daemon accepts, as it says now."""
        self.limits = limits
        self._run_limit = self._limit_of_run()

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
