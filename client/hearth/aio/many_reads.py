"""Reads of several arrays of one device, for asyncio: `hearth.arrays.many_reads` with an awaited wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from hearth import base_stream as streams
from hearth.arrays.many_reads import ManyReads
from hearth.errors import HearthError, TimeoutError

if TYPE_CHECKING:
    import numpy as np

    from hearth.aio.array import DeviceArray
    from hearth.aio.connection import LoopConnection
    from hearth.aio.stream import Stream


async def read_all(
    connection: LoopConnection, arrays: Any, on: Stream | None, out: Any, timeout: float | None
) -> list[np.ndarray[Any, Any]]:
    """Reads several arrays; see `Device.get`.

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
    await connection.opened()
    reads = ManyReads(connection, arrays, out)
    if not reads.arrays:
        return []
    connection.raise_deferred()
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout

    def left() -> float | None:
        return None if deadline is None else max(0.0, deadline - loop.time())

    async def take() -> None:
        index, pending = reads.sent[0]
        try:
            await connection.home.asked(pending, left())
        except HearthError as error:
            if isinstance(error, TimeoutError):  # it concerns all arrays
                raise
            reads.failed(index, error)
        reads.sent.popleft()
        reads.taken(index)

    async def read(index: int) -> None:
        array = cast("DeviceArray", reads.arrays[index])
        try:
            host = await array.get(None if out is None else out[index], on, timeout=left())
            reads.hosts[index] = reads.buffers[index] = host
        except HearthError as error:
            if isinstance(error, TimeoutError):
                raise
            reads.failed(index, error)

    stream = streams.resolve(on, connection, reads.arrays[0]._usable())
    try:
        for index in range(len(reads.arrays)):
            while reads.crowded:
                await take()
            reads.begin(index, stream, on)
        for index in reads.large:
            await read(index)
        while reads.sent:
            await take()
    except BaseException:  # a timeout or a cancelled await
        reads.abandon()
        raise
    return reads.results()
