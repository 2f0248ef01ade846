"""Reads of several arrays of one device that are sent together, so that the caller waits once.

Covers the checks of the arrays, the reads that are sent ahead and the errors of single arrays. Does not cover the wait
for each answer: threads wait in `read_all`, an event loop in `hearth.aio.many_reads`. A read of at most `AHEAD_BYTES`
travels in its answer and is sent ahead of the wait; a larger array takes the route of a single `get`, whose duration
its bytes determine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hearth import base_stream as streams
from hearth.arrays import host_copy
from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError, DtypeError, HearthError, TimeoutError
from hearth.session.late_errors import NO_STREAM
from hearth.transfer import plan, router

if TYPE_CHECKING:
    import numpy as np

    from hearth.base_stream import BaseStream
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult

AHEAD_BYTES = plan.MIN_SHARED_BYTES
"""Maximum size in bytes of an array whose read is sent ahead."""
_MAX_READS_AHEAD = 1024
"""Maximum number of reads without an answer; further reads are sent after the oldest answers."""
_MAX_BYTES_AHEAD = 8 << 20
"""Maximum number of bytes of those reads."""


class ManyReads:
    """The reads of one `Device.get` call, in the order of its arrays."""

    def __init__(self, connection: Connection, arrays: Any, out: Any, timeout: float | None) -> None:
        """Checks the arrays and makes the host arrays. Nothing is sent.

        Args:
            connection: Connection to the device of the arrays.
            arrays: Arrays of that device.
            out: For each array a host array to fill, or None for a new one; None: new ones.
            timeout: Seconds to wait at most for all arrays together; None: no limit.

        Raises:
            ArgumentError: `arrays` is one array, an array belongs to another device, or `out` does not match.
            DtypeError: `arrays` is no sequence, or contains an object that is no device array.
            HearthError: An array cannot be used, because it was freed or lost.
        """
        self._connection = connection
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.arrays = _checked(connection, arrays)
        outs = _outs(out, len(self.arrays))
        self.hosts: list[np.ndarray[Any, Any]] = []
        """Results of the call."""
        self.buffers: list[np.ndarray[Any, Any]] = []
        """Contiguous arrays that receive the bytes; each may be the result itself."""
        for index, (array, host) in enumerate(zip(self.arrays, outs, strict=True)):
            try:
                array._usable()
                result, buffer = host_copy.destination(array, host)
            except HearthError as error:
                error.add_note(f"{_named(index, array)} cannot be read")
                raise
            self.hosts.append(result)
            self.buffers.append(buffer)
        self._sent: deque[tuple[int, PendingResult[None]]] = deque()
        """Reads that were sent and whose answers have not been taken, oldest first, with the index of the array."""
        self._bytes_sent = 0
        self._failed: list[tuple[int, HearthError]] = []

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None: there is none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def steps(self, on: BaseStream | None) -> Iterator[tuple[int, PendingResult[None] | None]]:
        """Sends the reads, and yields one step at a time, each with the answer for which the caller must wait.

        Args:
            on: Stream that orders the reads; None: the current one.

        Returns:
            For each step the index of an array, and the pending answer to its read; None: the caller reads the array.
        """
        if not self.arrays:
            return
        stream = streams.resolve(on, self._connection, self.arrays[0]._usable())
        large: list[int] = []
        for index in range(len(self.arrays)):
            while len(self._sent) >= _MAX_READS_AHEAD or self._bytes_sent >= _MAX_BYTES_AHEAD:
                yield self._sent[0]
                self._drop_oldest()
            if not self._send_ahead(index, stream, on):
                large.append(index)
        for index in large:
            yield index, None
        while self._sent:
            yield self._sent[0]
            self._drop_oldest()

    def _send_ahead(self, index: int, stream: int, on: BaseStream | None) -> bool:
        """Sends the read of an array. Returns False, without sending it, if the array is too large for that."""
        array, data = self.arrays[index], plan.host_bytes(self.buffers[index])
        size = len(data)
        if size == 0:
            return True
        attachment = array._usable()
        if size > AHEAD_BYTES or not plan.inline(size, attachment.session.limits):
            return False
        try:
            array = host_copy.contiguous(array, on)
            rows = None if array._rows is None else array._as_rows()
            region = plan.BufferRegion(stream, array._memory.handle, array._offset, rows)
            pending = router.reading(self._connection, attachment, region, data)
        except HearthError as error:  # a deferred error of the stream, or the end of the attachment
            self._failed.append((index, error))
            return True
        self._bytes_sent += size
        self._sent.append((index, pending))
        return True

    def _drop_oldest(self) -> None:
        index, _ = self._sent.popleft()
        self._bytes_sent -= self.buffers[index].nbytes

    def failed(self, index: int, error: HearthError) -> None:
        """Records that an array could not be read. Raises a `TimeoutError`, which concerns all arrays.

        Args:
            index: Index of the array.
            error: The error.
        """
        if isinstance(error, TimeoutError):
            raise error
        self._failed.append((index, error))

    def abandon(self) -> None:
        """Abandons the reads whose answers have not been taken; their host arrays stay unchanged.

        A later wait raises the errors of the other reads, which may be those of earlier work.
        """
        for _, pending in self._sent:
            pending.reply.abandon()
        self._sent.clear()
        for _, error in self._failed:
            self._connection.defer(error)
        self._failed.clear()

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Returns the host arrays, or raises the first error with a note for each array that could not be read."""
        if self._failed:
            self._failed.sort(key=lambda failure: failure[0])
            error = self._failed[0][1]
            for index, array_error in self._failed:
                same = array_error is error
                error.add_note(f"{_named(index, self.arrays[index])} was not read{'' if same else f': {array_error}'}")
            raise error
        for host, buffer in zip(self.hosts, self.buffers, strict=True):
            if host is not buffer:
                host[...] = buffer
        return self.hosts


def read_all(
    connection: Connection, arrays: Any, on: BaseStream | None, out: Any, timeout: float | None
) -> list[np.ndarray[Any, Any]]:
    """Reads several arrays, and blocks until their contents have arrived; see `Device.get`.

    Args:
        connection: Connection to the device of the arrays.
        arrays: Arrays of that device.
        on: Stream that orders the reads; None: the current one.
        out: For each array a host array to fill, or None for a new one; None: new ones.
        timeout: Seconds to wait at most for all arrays together; None: no limit.

    Returns:
        The host arrays.

    Raises:
        TimeoutError: The contents have not arrived in time.
        HearthError: The error of the first array that could not be read.
    """
    reads = ManyReads(connection, arrays, out, timeout)
    if reads.arrays:
        connection.raise_deferred(NO_STREAM)
    try:
        for index, pending in reads.steps(on):
            try:
                if pending is not None:
                    pending.wait(reads.remaining)
                else:
                    array, buffer = reads.arrays[index], reads.buffers[index]
                    host_copy.read(array, array._usable(), on, buffer, reads.remaining, None, True)
            except HearthError as error:
                reads.failed(index, error)
    except BaseException:  # a timeout or KeyboardInterrupt
        reads.abandon()
        raise
    return reads.results()


def _named(index: int, array: BaseArray) -> str:
    return f"arrays[{index}], {array!r},"


def _checked(connection: Connection, arrays: Any) -> list[BaseArray]:
    if isinstance(arrays, BaseArray):
        raise ArgumentError(
            "gpu.get takes a list of arrays, not one array.",
            fix="use x.get(), or gpu.get([x]).",
        )
    if not isinstance(arrays, Sequence):
        raise DtypeError(
            f"gpu.get takes a list of arrays, not a {type(arrays).__name__}.",
            fix="use gpu.get([x, y, z]).",
        )
    for index, array in enumerate(arrays):
        if not isinstance(array, BaseArray):
            raise DtypeError(
                f"arrays[{index}] is a {type(array).__name__}; it must be a device array.",
                fix="leave host arrays out of the list.",
            )
        if array._connection is not connection:
            raise ArgumentError(
                f"{_named(index, array)} belongs to another device or session than this device {connection.ordinal}.",
                fix="call get once for each device, with its arrays.",
            )
    return list(arrays)


def _outs(out: Any, count: int) -> Sequence[Any]:
    if out is None:
        return [None] * count
    if not isinstance(out, list | tuple) or len(out) != count:
        description = f"has {len(out)} entries" if isinstance(out, list | tuple) else f"is a {type(out).__name__}"
        raise ArgumentError(
            f"out {description}; {count} arrays are read.",
            fix="pass out=[array or None for each array].",
        )
    return out
