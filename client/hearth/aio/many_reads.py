"""Reads of several arrays of one device, for asyncio: `hearth.arrays.many_reads` with an awaited wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hearth.arrays.many_reads import ManyReads
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from hearth.aio.array import DeviceArray
    from hearth.aio.connection import LoopConnection
    from hearth.aio.stream import Stream


async def read_all(
    connection: LoopConnection, arrays: Sequence[DeviceArray], on: Stream | None, out: Any, timeout: float | None
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
    timeout = await connection.opened(timeout)
    reads = ManyReads(connection, arrays, out, timeout)
    if reads.arrays:
        connection.raise_deferred()
    try:
        for index, pending in reads.steps(on):
            try:
                if pending is not None:
                    await connection.home.result_of(pending, reads.remaining)
                else:
                    array = cast("DeviceArray", reads.arrays[index])
                    host = await array.get(None if out is None else out[index], on, timeout=reads.remaining)
                    reads.hosts[index] = reads.buffers[index] = host
            except HearthError as error:
                reads.failed(index, error)
    except BaseException:  # a timeout or a cancelled await
        reads.abandon()
        raise
    return reads.results()
