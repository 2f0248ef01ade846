"""Reads of several arrays of one device that are sent together, so that the caller waits once.

Covers the checks of the arrays, the reads that are sent ahead and the errors of single arrays. Does not cover the wait:
threads wait in `ManyReads.run`, an event loop in `hearth.aio.many_reads`. A read of at most `AHEAD_BYTES` travels in
its answer and is sent ahead of the wait; a larger array takes the route of a single `get`, whose duration its bytes
determine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
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

AHEAD_BYTES = plan.SHARED_LEAST
"""Maximum size in bytes of an array whose read is sent ahead."""
_MOST_AHEAD = 1024
"""Maximum number of reads without an answer; further reads are sent after the oldest answers."""
_MOST_BYTES_AHEAD = 8 << 20
"""Maximum number of bytes of those reads."""


class ManyReads:
    """The reads of one `Device.get` call, in the order of its arrays."""

    def __init__(self, connection: Connection, arrays: Any, out: Any) -> None:
        """Checks the arrays and makes the host arrays. Nothing is sent.

        Args:
            connection: Connection to the device of the arrays.
            arrays: Arrays of that device.
            out: For each array a host array to fill, or None for a new one; None: new ones.

        Raises:
            ArgumentError: `arrays` is one array, an array belongs to another device, or `out` does not match.
            DtypeError: `arrays` is no sequence, or contains an object that is no device array.
            HearthError: An array cannot be used, because it was freed or lost.
        """
        self._connection = connection
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
        self.large: list[int] = []
        """Indices of the arrays that are read one at a time."""
        self.sent: deque[tuple[int, PendingResult[None]]] = deque()
        """Reads that were sent and whose answers have not been taken, oldest first, with the index of the array."""
        self._bytes_sent = 0
        self._failed: list[tuple[int, HearthError]] = []

    @property
    def crowded(self) -> bool:
        """True if the oldest answer has to be taken before another read is sent."""
        return len(self.sent) >= _MOST_AHEAD or self._bytes_sent >= _MOST_BYTES_AHEAD

    def begin(self, index: int, stream: int, on: BaseStream | None) -> None:
        """Sends the read of an array, or adds the array to `large`. An empty array needs no read.

        Args:
            index: Index of the array.
            stream: Handle of the stream.
            on: The stream; None: the current one.
        """
        array, data = self.arrays[index], plan.host_bytes(self.buffers[index])
        size = len(data)
        if size == 0:
            return
        attachment = array._usable()
        if size > AHEAD_BYTES or not plan.inline(size, attachment.session.limits):
            self.large.append(index)
            return
        try:
            array = host_copy.contiguous(array, on)
            rows = None if array._rows is None else array._as_rows()
            part = plan.BufferPart(stream, array._memory.handle, array._offset, rows)
            pending = router.reading(self._connection, attachment, part, data)
        except HearthError as error:  # a deferred error of the stream, or the end of the attachment
            self.failed(index, error)
            return
        self._bytes_sent += size
        self.sent.append((index, pending))

    def taken(self, index: int) -> None:
        """Records that the answer of a read that was sent has been taken.

        Args:
            index: Index of the array.
        """
        self._bytes_sent -= self.buffers[index].nbytes

    def failed(self, index: int, error: HearthError) -> None:
        """Records that an array could not be read.

        Args:
            index: Index of the array.
            error: The error.
        """
        self._failed.append((index, error))

    def abandon(self) -> None:
        """Abandons the reads whose answers have not been taken; their host arrays stay unchanged."""
        for _, pending in self.sent:
            pending.reply.abandon()
        self.sent.clear()

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Returns the host arrays, or raises the first error with a note for each array that could not be read."""
        if self._failed:
            self._failed.sort(key=lambda failed: failed[0])
            error = self._failed[0][1]
            for index, each in self._failed:
                same = each is error
                error.add_note(f"{_named(index, self.arrays[index])} was not read{'' if same else f': {each}'}")
            raise error
        for host, buffer in zip(self.hosts, self.buffers, strict=True):
            if host is not buffer:
                host[...] = buffer
        return self.hosts

    def run(self, on: BaseStream | None, timeout: float | None) -> list[np.ndarray[Any, Any]]:
        """Reads all arrays, and blocks until their contents have arrived.

        Args:
            on: Stream that orders the reads; None: the current one.
            timeout: Seconds to wait at most for all arrays together; None: no limit.

        Returns:
            The host arrays.

        Raises:
            TimeoutError: The contents have not arrived in time.
            HearthError: The error of the first array that could not be read.
        """
        if not self.arrays:
            return []
        connection = self._connection
        connection.raise_deferred(NO_STREAM)
        deadline = None if timeout is None else time.monotonic() + timeout
        stream = streams.resolve(on, connection, self.arrays[0]._usable())
        try:
            for index in range(len(self.arrays)):
                while self.crowded:
                    self._take(deadline)
                self.begin(index, stream, on)
            for index in self.large:
                self._read(index, on, deadline)
            while self.sent:
                self._take(deadline)
        except BaseException:  # a timeout or KeyboardInterrupt
            self.abandon()
            raise
        return self.results()

    def _take(self, deadline: float | None) -> None:
        index, pending = self.sent[0]
        try:
            pending.wait(_left(deadline))
        except HearthError as error:
            if isinstance(error, TimeoutError):  # it concerns all arrays
                raise
            self.failed(index, error)
        self.sent.popleft()
        self.taken(index)

    def _read(self, index: int, on: BaseStream | None, deadline: float | None) -> None:
        array, buffer = self.arrays[index], self.buffers[index]
        try:
            host_copy.read(array, array._usable(), on, buffer, _left(deadline), None, True)
        except HearthError as error:
            if isinstance(error, TimeoutError):  # it concerns all arrays
                raise
            self.failed(index, error)


def _named(index: int, array: BaseArray) -> str:
    return f"arrays[{index}], {array!r},"


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _checked(connection: Connection, arrays: Any) -> list[BaseArray]:
    if isinstance(arrays, BaseArray):
        raise ArgumentError(
            "gpu.get takes a list of arrays, not one array.",
            reason="INVALID_ARGUMENT",
            fix="use x.get(), or gpu.get([x]).",
        )
    if not isinstance(arrays, Sequence):
        raise DtypeError(
            f"gpu.get takes a list of arrays, not a {type(arrays).__name__}.",
            reason="INVALID_ARGUMENT",
            fix="use gpu.get([x, y, z]).",
        )
    for index, array in enumerate(arrays):
        if not isinstance(array, BaseArray):
            raise DtypeError(
                f"arrays[{index}] is a {type(array).__name__}; it must be a device array.",
                reason="INVALID_ARGUMENT",
                fix="leave host arrays out of the list.",
            )
        if array._connection is not connection:
            raise ArgumentError(
                f"{_named(index, array)} belongs to another device or session than this device {connection.ordinal}.",
                reason="INVALID_ARGUMENT",
                fix="call get once for each device, with its arrays.",
            )
    return list(arrays)


def _outs(out: Any, count: int) -> Sequence[Any]:
    if out is None:
        return [None] * count
    if not isinstance(out, list | tuple) or len(out) != count:
        what = f"has {len(out)} entries" if isinstance(out, list | tuple) else f"is a {type(out).__name__}"
        raise ArgumentError(
            f"out {what}; {count} arrays are read.",
            reason="INVALID_ARGUMENT",
            fix="pass out=[array or None for each array].",
        )
    return out
