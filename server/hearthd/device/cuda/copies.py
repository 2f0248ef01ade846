"""Copies and fills: between host and device, and within the device; ranges, and rows at a pitch.

Rows are one 2-D copy for the driver, with three exceptions: contiguous rows are copied as a range; rows farther apart
than the device's maximum pitch are copied one by one (there cannot be many); a very large number of rows is split into
several 2-D copies.

The driver fills with 1, 2 and 4-byte values. A longer pattern is written as interleaved 4-byte columns (2-D memsets
that are one value wide, with the pattern's length as pitch) over the first `MEMSET_BYTES`. The filled bytes are then
copied to the bytes after them, which doubles the filled part each time, at the speed of a copy. No kernel needs to be
compiled.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearthd.device.cuda.errors import CudaError, checked, translate, translated
from hearthd.device.cuda.streams import Stream
from hearthd.device.resources.host_pool import PinnedBuffer

MAX_ROWS = 1 << 20
"""Largest number of rows of one 2-D copy. The driver refuses very tall copies, and does not document the limit."""

MEMSET_BYTES = 32 << 10
"""Number of bytes that are filled with a long pattern by memsets; copies fill the following bytes."""

TO_DEVICE = runtime.memcpyHostToDevice
TO_HOST = runtime.memcpyDeviceToHost
WITHIN = runtime.memcpyDeviceToDevice


class CudaCopies:
    """Enqueues copies and fills on streams, and copies ordinary host memory synchronously."""

    def __init__(self, device: int) -> None:
        self._max_pitch = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxPitch, device)
        """Maximum pitch of the device in bytes."""
        self._stream = 0
        """The stream of `write_now` and `read_now`; 0 before their first call."""

    def upload(self, destination: int, source: PinnedBuffer, offset: int, size: int, stream: Stream) -> None:
        _copy(destination, source.address + offset, size, TO_DEVICE, stream.pointer)

    def download(self, destination: PinnedBuffer, offset: int, source: int, size: int, stream: Stream) -> None:
        _copy(destination.address + offset, source, size, TO_HOST, stream.pointer)

    def copy(self, destination: int, source: int, size: int, stream: Stream) -> None:
        _copy(destination, source, size, WITHIN, stream.pointer)

    def upload_rows(
        self, destination: int, pitch: int, source: PinnedBuffer, offset: int, width: int, rows: int, stream: Stream
    ) -> None:
        start = source.address + offset
        self._copy_rows(destination, pitch, start, width, width, rows, TO_DEVICE, stream.pointer)

    def download_rows(
        self, destination: PinnedBuffer, offset: int, source: int, pitch: int, width: int, rows: int, stream: Stream
    ) -> None:
        start = destination.address + offset
        self._copy_rows(start, width, source, pitch, width, rows, TO_HOST, stream.pointer)

    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: Stream,
    ) -> None:
        self._copy_rows(destination, destination_pitch, source, source_pitch, width, rows, WITHIN, stream.pointer)

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        """Copies on a separate stream that has no other work, so that the copy does not wait for other streams."""
        self._copy_rows(destination, pitch, _address(data), width, width, rows, TO_DEVICE, self._separate_stream())
        self._synchronize()

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        self._copy_rows(_address(into), width, source, pitch, width, rows, TO_HOST, self._separate_stream())
        self._synchronize()

    def fill(self, address: int, pattern: bytes, size: int, stream: Stream) -> None:
        try:
            _fill(address, pattern, size, stream.pointer)
        except CudaError as error:
            raise translate(error, f"filling {size} bytes") from error

    def _copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        kind: int,
        stream: int,
    ) -> None:
        if rows <= 1 or width in (0, max(destination_pitch, source_pitch)):
            _copy(destination, source, width * rows, kind, stream)
            return
        if max(destination_pitch, source_pitch) > self._max_pitch:
            for row in range(rows):
                _copy(destination + row * destination_pitch, source + row * source_pitch, width, kind, stream)
            return
        try:
            for row in range(0, rows, MAX_ROWS):
                count = min(MAX_ROWS, rows - row)
                runtime.memcpy2DAsync(
                    destination + row * destination_pitch,
                    destination_pitch,
                    source + row * source_pitch,
                    source_pitch,
                    width,
                    count,
                    kind,
                    stream,
                )
        except CudaError as error:
            raise translate(
                error,
                f"copying {rows} rows of {width} bytes",
                details={
                    "width": width,
                    "rows": rows,
                    "destination_pitch": destination_pitch,
                    "source_pitch": source_pitch,
                },
            ) from error

    def _separate_stream(self) -> int:
        """Returns the separate stream, which is created at the first use and never destroyed."""
        if not self._stream:
            with translated("creating a stream"):
                self._stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        return self._stream

    def _synchronize(self) -> None:
        """Waits for the copy, which goes through page-locked memory of the driver: about 0.1 ms for each chunk."""
        try:
            runtime.streamSynchronize(self._stream)
        except CudaError as error:
            raise translate(error, "copying from or to ordinary memory") from error


def _copy(destination: int, source: int, size: int, kind: int, stream: int) -> None:
    if size:
        try:
            runtime.memcpyAsync(destination, source, size, kind, stream)
        except CudaError as error:
            raise translate(error, f"copying {size} bytes") from error


def _address(memory: memoryview) -> int:
    """Returns the address of the bytes, which may belong to an immutable object."""
    import numpy as np  # needed only for copies of ordinary memory

    data: Any = np.frombuffer(memory, np.uint8)
    return int(data.ctypes.data)


def _shortest_pattern(pattern: bytes) -> bytes:
    """Returns the shortest pattern of 1, 2, 4, ... bytes whose repetition is `pattern`."""
    while len(pattern) > 1 and pattern[: len(pattern) // 2] == pattern[len(pattern) // 2 :]:
        pattern = pattern[: len(pattern) // 2]
    return pattern


def _fill(address: int, pattern: bytes, size: int, stream: int) -> None:
    """Enqueues a fill. `size` and `address` must be multiples of the pattern's length. Raises CudaError."""
    if not size:
        return
    unit = _shortest_pattern(pattern)
    width = len(unit)
    value = int.from_bytes(unit[:4], "little")
    if width == 1:
        runtime.memsetAsync(address, value, size, stream)
    elif width == 2:
        checked(driver.cuMemsetD16Async(address, value, size // 2, stream))
    elif width == 4:
        checked(driver.cuMemsetD32Async(address, value, size // 4, stream))
    else:
        filled = min(size, MEMSET_BYTES)
        for column in range(0, width, 4):
            value = int.from_bytes(unit[column : column + 4], "little")
            checked(driver.cuMemsetD2D32Async(address + column, width, value, 1, filled // width, stream))
        while filled < size:
            chunk = min(filled, size - filled)
            runtime.memcpyAsync(address + filled, address, chunk, WITHIN, stream)
            filled += chunk
