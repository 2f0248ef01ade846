"""Queue of outgoing commands, without I/O: runs of launches, batches, and limits of the queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.codec import batch
from hearth.errors import HearthError

if TYPE_CHECKING:
    from hearth.session.callers import CallerLog

BATCH_BYTES = 1 << 20
"""Size, in bytes, at which a batch is closed: large enough to justify a message, small enough to overlap with the next
batch."""
BATCH_COMMANDS = 512
BATCH_LAUNCHES = 4096
RUN_BYTES = 128 << 10
"""Maximum size, in bytes, of a command that consecutive launches share."""
COUNT_MAX = 2**64 - 1
QUEUE_BYTES = 64 << 20
QUEUE_COMMANDS = 20_000


class Limits(NamedTuple):
    """Limits that the daemon has announced; sizes in bytes."""

    max_inline_bytes: int = 1 << 20
    max_chunk_bytes: int = 1 << 20
    max_batch_bytes: int = 4 << 20
    max_batches_in_flight: int = 8
    max_code_bytes: int = 64 << 20
    max_unacked_bytes: int = 32 << 20
    converts_integers: bool = False
    """True if the daemon converts the integers of a launch to the types of the kernel's parameters."""
    premultiplies: bool = False
    """True if the daemon's collectives have premultiplied sums."""
    struct_pointers: bool = False
    """True if the daemon takes device pointers in structs, and arrays of pointers."""
    composes_graphs: bool = False
    """True if the daemon captures events and launches of graphs: a graph may consist of several streams and graphs."""
    graph_memory: bool = False
    """True if the daemon captures copies from and to pinned memory, and allocates memory during a capture."""
    graph_conditionals: bool = False
    """True if the daemon captures conditional nodes, provided that the device has them."""
    graph_branches: bool = False
    """True if the daemon captures conditional nodes with several bodies, provided that the device has them."""
    dispatch_options: bool = False
    """True if the daemon's dispatches have modes, clusters and cooperative launches."""
    launch_attributes: bool = False
    """True if the daemon takes attributes of launches."""
    links: bool = False
    """True if the daemon links modules of several inputs."""
    publishes_events: bool = False
    """True if sessions of a tenant share events by name."""


class _Counted(NamedTuple):
    """The last command that `count_up` added; its count can grow while it is the last command in the queue."""

    key: Any
    n: int
    command: bytes


class QueueMark(NamedTuple):
    """State of the queue after the gathered commands have been moved to a batch."""

    entries: int
    queued: int
    queued_bytes: int


EMPTY_MARK = QueueMark(0, 0, 0)


class SendQueue:
    """Submitted commands that are not part of a batch yet, in order."""

    def __init__(self, limits: Limits) -> None:
        self.max_commands = QUEUE_COMMANDS
        self.max_bytes = QUEUE_BYTES
        """Bounds beyond which submitting threads wait."""
        self.queued_bytes = 0
        self.queued = 0
        self.extra_cost = 0
        """Upper bound of the queued commands' cost beyond their number; see `put`."""
        self.submitted = 0
        """Total number of one-way commands and launches submitted."""
        self.entries: deque[tuple[bytes, int]] = deque()
        """Serialized commands, each with the number of launches that it carries (or 1)."""
        self.run: list[bytes] = []
        """Consecutive launches after the entries, which will share one command."""
        self.run_bytes = 0
        self.closing: tuple[bytes, int] | None = None
        """The run that is being added to the entries; None: no run is."""
        self.callers: CallerLog | None = None
        """Log of the lines that submitted the commands; None: no log is kept."""
        self.set_limits(limits)
        self._counted: _Counted | None = None

    def launch(self, record: bytes) -> None:
        """Queues one packed launch.

        Args:
            record: Launch as `hearth_proto.launches` packs it.

        Raises:
            HearthError: The launch does not fit into a batch (reason MESSAGE_TOO_LARGE).
        """
        size = len(record)
        total = self.run_bytes + size
        if total > self._run_limit:
            self._make_room(size)
            total = size
        if self.callers is not None:
            self.callers.record_launch(record, self.submitted)
        self.run_bytes = total
        self.queued_bytes += size
        self.queued += 1
        self.submitted += 1
        self.run.append(record)  # the only call, and last: a Ctrl-C comes before all of this or after it

    def put(self, command: bytes, worth: int = 1) -> None:
        """Queues one serialized command of relative cost `worth`; the batch threshold counts cost, not commands.

        Args:
            command: Serialized command.
            worth: Cost of the command in launches, at least 1.

        Raises:
            HearthError: The command does not fit into a batch (reason MESSAGE_TOO_LARGE).
        """
        size = len(command)
        if size > self._command_limit:
            raise self._too_large(size)
        if self.run or self.closing is not None:
            self._close_run()
        if self.callers is not None:
            self.callers.record_command(command, self.submitted)
        self.queued_bytes += size
        self.queued += 1
        self.extra_cost += worth - 1
        self.entries.append((command, 1))  # last, as in `launch`

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """Queues the one-way command `command(n)`, which does something `n` times.

        If the last command in the queue has the same `key`, the count of that command grows instead, unless a log of
        callers is kept, because each call may have another caller.

        Args:
            key: Identifies the action; compared with ``==``.
            n: Number of repetitions to add.
            command: Returns the serialized command for a given number of repetitions.
        """
        if self.closing is not None:
            self._close_run()
        if self.callers is not None:
            self.callers.record_command(b"", self.submitted)
            self._counted = None
        last, queue = self._counted, self.entries
        unsent = last is not None and not self.run and queue and queue[-1][0] is last.command
        if last is not None and unsent and last.key == key and last.n + n <= COUNT_MAX:
            n += last.n
            data, calls = command(n), queue.pop()[1] + 1
            self.queued_bytes -= len(last.command)
        else:
            if self.run:
                self._close_run()
            data, calls = command(n), 1
        queue.append((data, calls))
        self._counted = _Counted(key, n, data)
        self.queued_bytes += len(data)
        self.queued += 1
        self.submitted += 1

    def ends_with(self, command: bytes) -> bool:
        """True if the last entry is this very `command` object.

        Args:
            command: Serialized command.
        """
        return bool(self.entries) and self.entries[-1][0] is command

    @property
    def full(self) -> bool:
        """True if submitting threads must wait, because the daemon does not keep up."""
        return self.queued >= self.max_commands or self.queued_bytes >= self.max_bytes

    def gather(self, room: int, alone: bool) -> tuple[list[bytes], QueueMark]:
        """Returns as many of the oldest commands as fit a batch. They stay in the queue until `move`.

        Args:
            room: Maximum total size of the commands, in bytes.
            alone: True if the first command is returned even if it does not fit.

        Returns:
            The commands, and the state of the queue after they have been moved.
        """
        if self.run or self.closing is not None:
            self._close_run()
        commands: list[bytes] = []
        size = launches = command_bytes = 0
        queue = self.entries
        for command, count in queue:
            needed = len(command) + batch.FRAMING
            if size + needed > room and (commands or not alone):
                break
            commands.append(command)
            size += needed
            launches += count
            command_bytes += len(command)
            if len(commands) >= BATCH_COMMANDS or launches >= BATCH_LAUNCHES:
                break
        return commands, QueueMark(
            len(queue) - len(commands), self.queued - launches, self.queued_bytes - command_bytes
        )

    def move(self, mark: QueueMark) -> None:
        """Removes the gathered commands from the queue. A second call completes one that was interrupted.

        Args:
            mark: State of the queue after the move, as `gather` returned it.
        """
        queue = self.entries
        while len(queue) > mark.entries:
            queue.popleft()
        self.queued, self.queued_bytes = mark.queued, mark.queued_bytes
        if not queue:
            self.extra_cost = 0

    def drop(self) -> None:
        """Drops all commands."""
        self.entries.clear()
        self.run.clear()
        self.closing = None
        self.run_bytes = self.queued = self.queued_bytes = self.extra_cost = 0

    def set_limits(self, limits: Limits) -> None:
        """Adopts the limits that the daemon has announced.

        Args:
            limits: Limits; the maximum size of a batch and the size of shared launches follow from them.
        """
        self._command_limit = limits.max_batch_bytes - 2 * batch.FRAMING
        """Maximum size, in bytes, of one command."""
        self._run_limit = min(RUN_BYTES, limits.max_batch_bytes - 3 * batch.FRAMING)
        self.room = min(BATCH_BYTES, limits.max_batch_bytes) - batch.FRAMING
        """Maximum total size, in bytes, of the commands of one batch."""

    def _make_room(self, size: int) -> None:
        if size > self._command_limit:
            raise self._too_large(size)
        if self.run:
            self._close_run()

    def _too_large(self, size: int) -> HearthError:
        return HearthError(
            f"a command of {size} bytes does not fit into a batch; the daemon accepts at most "
            f"{self._command_limit} bytes.",
            reason="MESSAGE_TOO_LARGE",
            fix="use fewer or shorter headers, code, options or arguments.",
        )

    def _close_run(self) -> None:
        """Turns the run into one command. A Ctrl-C at any point neither loses nor duplicates it."""
        if self.closing is not None:
            self._finish_run(self.closing)
        run, size = self.run, self.run_bytes
        if run:
            command = batch.launches_command(run, size)
            entry, queued_bytes = (command, len(run)), self.queued_bytes + len(command) - size
            # One statement without a call: a Ctrl-C comes before it or after it.
            self.closing, self.run, self.run_bytes, self.queued_bytes = entry, [], 0, queued_bytes
            self._finish_run(entry)

    def _finish_run(self, entry: tuple[bytes, int]) -> None:
        if not self.entries or self.entries[-1] is not entry:
            self.entries.append(entry)
        self.closing = None
