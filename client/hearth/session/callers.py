"""Callers of commands: the lines of the user's program that submitted them, kept until a late error needs one.

Covers the bounded log of an attachment, which exists only with ``HEARTH_DEBUG=1``, because the search for the calling
line (`hearth.calling_line`) takes several percent of a launch.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from types import CodeType
from typing import TYPE_CHECKING

from hearth.calling_line import PACKAGES, calling_frame
from hearth.codec import batch
from hearth_proto import launches
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.errors import HearthError
    from hearth_proto.v1 import status_pb2

MAX_SENT = 1 << 16
"""Number of sent commands whose callers are kept."""
_MAX_NAMED = 4
"""Number of lines that the error of a lost device names."""
_NO_CALLER = PACKAGES | frozenset({"asyncio", "concurrent", "threading"})
"""Packages that start threads and tasks: a command that such a thread or task of `hearth` submits has no known
caller."""
_FUNCTION = 3
"""Position of the function's handle among the fields of a record's header."""
_LONGEST_NAME = 64 << 10
"""Length in bytes beyond which a command is not searched for the name of a function."""
_PREFIX_BYTES = 12
"""Length that is enough for the request number at the beginning of a serialized command."""


_Entry = tuple[CodeType | None, int, int, bytes, bool]
"""Caller of a command: code object of the calling function (None: unknown), offset of the call in its bytecode in
bytes, number of one-way commands submitted before this one, packed launch or first bytes of the serialized command,
and True for a launch. A plain tuple, because one is made for every launch. The line number is looked up for errors
only."""


class CallerLog:
    """Callers of the commands of one attachment, in the order of their submission. Not thread-safe."""

    def __init__(self, max_sent: int = MAX_SENT) -> None:
        """Creates an empty log.

        Args:
            max_sent: Number of sent commands whose callers are kept.
        """
        self._max_sent = max_sent
        self._queued: deque[_Entry] = deque()
        """Callers of the commands that are not part of a batch yet."""
        self._batches: dict[int, list[_Entry]] = {}
        """Callers of the commands of each batch, by its sequence number; oldest first."""
        self._sent = 0
        self._functions: dict[int, str] = {}
        """Names of functions by their handles."""

    # ---- the queue ----

    def record_launch(self, record: bytes, submitted: int) -> None:
        """Notes the calling line as the caller of a launch that is about to be queued.

        Args:
            record: Launch as `hearth_proto.launches` packs it.
            submitted: Number of one-way commands submitted so far.
        """
        self._queued.append((*_caller(), submitted, record, True))

    def record_command(self, data: bytes, submitted: int) -> None:
        """Notes the calling line as the caller of a command that is about to be queued.

        Args:
            data: Serialized command; may be empty if it has no request number.
            submitted: Number of one-way commands submitted so far.
        """
        self._queued.append((*_caller(), submitted, bytes(data[:_PREFIX_BYTES]), False))
        if len(data) <= _LONGEST_NAME:
            command = commands_pb2.Command.FromString(data)
            if command.WhichOneof("kind") == "get_function":
                self._functions[command.get_function.function] = command.get_function.name

    def record_batch(self, seq: int, count: int, remaining: int) -> None:
        """Notes that the oldest queued commands have become a batch. A second call for the same batch does nothing.

        Args:
            seq: Sequence number of the batch.
            count: Number of commands in the batch; each packed launch counts.
            remaining: Number of commands that remain queued.
        """
        if seq in self._batches:
            return
        while len(self._queued) > count + remaining:  # a Ctrl-C came before a command was queued
            self._queued.popleft()
        self._batches[seq] = [self._queued.popleft() for _ in range(min(count, len(self._queued)))]
        self._sent += len(self._batches[seq])
        while self._sent > self._max_sent and len(self._batches) > 1:
            self._sent -= len(self._batches.pop(next(iter(self._batches))))

    # ---- errors ----

    def find(self, seq: int, index: int) -> str:
        """Returns the caller of a sent command; empty if it is unknown or no longer kept.

        Args:
            seq: Sequence number of the batch.
            index: Index of the command in the batch; each packed launch counts.
        """
        callers = self._batches.get(seq, ())
        return _text(callers[index]) if index < len(callers) else ""

    def find_by_request(self, request: int) -> str:
        """Returns the caller of the command with a request number; empty if it is unknown or no longer kept.

        Args:
            request: Number of the request.
        """
        head = batch.with_request(request, b"")
        for callers in reversed(self._batches.values()):
            for entry in callers:
                if not entry[4] and entry[3].startswith(head):
                    return _text(entry)
        return ""

    def add_callers(self, error: HearthError, status: status_pb2.Status, request: int) -> None:
        """Adds callers to the error of a request: to each listed failure, and as the detail ``caller``.

        The detail is the caller of the first failure. If the error lists none, it is the caller of the request.

        Args:
            error: Error that `status` describes; changed in place.
            status: Status that the daemon sent, whose failed commands are those of ``error.failures``, in their order.
            request: Number of the request.
        """
        from hearth_proto.reasons import stream_failures

        failed = stream_failures(status)
        if failed:
            error.failures = [
                dataclasses.replace(failure, caller=self.find(failed_command.seq, failed_command.index))
                for failure, failed_command in zip(error.failures, failed, strict=True)
            ]
            caller = error.failures[0].caller
        else:
            caller = self.find_by_request(request)
        if caller:
            error.details["caller"] = caller

    def add_kernel_callers(self, error: HearthError, settled: int) -> None:
        """Adds the callers of the kernels that a lost device was running, as the detail ``caller``.

        The daemon names the kernels and not their launches, so that each line that launched one of them since the last
        completed synchronization may be the cause. The latest lines are named first.

        Args:
            error: Error of the lost device; changed in place.
            settled: Number of one-way commands that are known to be done.
        """
        details = error.details
        kernels = f", {details.get('kernel') or details.get('kernels') or details.get('in_flight', '')},"
        running = {handle for handle, name in self._functions.items() if f", {name}," in kernels}
        launched = [
            entry for entry in self._all() if entry[2] >= settled and entry[4] and _function(entry[3]) in running
        ]
        lines = dict.fromkeys(text for entry in reversed(launched) if (text := _text(entry)))
        if lines:
            error.details["caller"] = ", or ".join(list(lines)[:_MAX_NAMED])

    def _all(self) -> Iterable[_Entry]:
        for callers in self._batches.values():
            yield from callers
        yield from self._queued


def _caller() -> tuple[CodeType | None, int]:
    """Returns the code object of the innermost frame outside `hearth`, and the offset of its call in bytes."""
    frame, package = calling_frame(3)
    return (None, 0) if package in _NO_CALLER else (frame.f_code, frame.f_lasti)


def _text(entry: _Entry) -> str:
    """Returns the file, line and function, e.g. ``train.py:12 in step``; empty if the caller is unknown."""
    code, instruction = entry[:2]
    if code is None:
        return ""
    lines = [line for begin, end, line in code.co_lines() if begin <= instruction < end]
    line = lines[0] if lines and lines[0] is not None else code.co_firstlineno
    return f"{code.co_filename}:{line} in {code.co_qualname}"


def _function(record: bytes) -> int:
    """Returns the handle of the launched function."""
    return int(launches.HEADER.unpack_from(record)[_FUNCTION])
