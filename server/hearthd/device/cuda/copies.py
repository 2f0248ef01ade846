"""Copies between host and device, and within the device: ranges, and rows at a pitch.

Rows go to the driver as one 2-D copy, unless they are dense (then it is a range), farther apart than the device's
greatest pitch (then each is a copy of its own: there cannot be many), or very many (then it is several 2-D copies).
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import HostInfo
from hearthd.device.cuda.errors import CudaError, checked, translate
from hearthd.device.cuda.fill import fill
from hearthd.device.cuda.host import CudaHostPool, PinnedBuffer
from hearthd.device.cuda.streams import Stream

MAX_ROWS = 1 << 20
"""Rows of one 2-D copy. The driver refuses very tall ones without documenting where it begins to."""

PORTABLE = 1
"""cudaHostRegisterPortable."""

_SIGNALS = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS

TO_DEVICE = runtime.memcpyHostToDevice
TO_HOST = runtime.memcpyDeviceToHost
WITHIN = runtime.memcpyDeviceToDevice


class CudaCopyOperations:
    """The part of CudaServer that moves bytes."""

    host: CudaHostPool
    _index: int
    _max_pitch = 0
    _signals: bool | None = None
    """Whether streams write 64-bit values; None: nobody has asked."""
    _side = 0

    def allocate_host(self, size: int) -> PinnedBuffer | None:
        return self.host.take(size)

    def host_grown(self) -> bool:
        return self.host.grown()

    def host_refusal(self, size: int) -> Refusal | None:
        return self.host.refusal(size)

    def host_info(self) -> HostInfo:
        return self.host.info()

    def free_host(self, buffer: PinnedBuffer) -> None:
        self.host.give(buffer)

    def register_host(self, address: int, size: int) -> None:
        runtime.setDevice(self._index)  # a thread of its own would have a context made on device 0
        runtime.hostRegister(address, size, PORTABLE)

    def unregister_host(self, address: int, size: int) -> None:
        runtime.setDevice(self._index)
        runtime.hostUnregister(address)

    def signal_address(self, address: int) -> int:
        try:
            if self._signals is None:
                (device,) = checked(driver.cuCtxGetDevice())
                (able,) = checked(driver.cuDeviceGetAttribute(_SIGNALS, device))
                self._signals = bool(able)
            if not self._signals:
                return 0
            pointer: Any = checked(driver.cuMemHostGetDevicePointer(address, 0))[0]
        except CudaError as error:
            raise translate(error, "looking for the address of signals") from error
        return int(pointer)

    def signal(self, address: int, value: int, stream: Stream) -> None:
        try:
            checked(driver.cuStreamWriteValue64(stream.pointer, address, value, 0))  # 0: behind a memory barrier
        except CudaError as error:
            raise translate(error, "writing a signal") from error

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
        self._rows(destination, pitch, start, width, width, rows, TO_DEVICE, stream.pointer)

    def download_rows(
        self, destination: PinnedBuffer, offset: int, source: int, pitch: int, width: int, rows: int, stream: Stream
    ) -> None:
        start = destination.address + offset
        self._rows(start, width, source, pitch, width, rows, TO_HOST, stream.pointer)

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
        self._rows(destination, destination_pitch, source, source_pitch, width, rows, WITHIN, stream.pointer)

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        """On a stream of its own, which nothing else uses: what other streams are doing is not waited for."""
        self._rows(destination, pitch, _address(data), width, width, rows, TO_DEVICE, self._own_stream())
        self._settle()

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        self._rows(_address(into), width, source, pitch, width, rows, TO_HOST, self._own_stream())
        self._settle()

    def fill(self, address: int, pattern: bytes, size: int, stream: Stream) -> None:
        try:
            fill(address, pattern, size, stream.pointer)
        except CudaError as error:
            raise translate(error, f"filling {size} bytes") from error

    def _rows(
        self, to: int, to_pitch: int, since: int, from_pitch: int, width: int, rows: int, kind: int, stream: int
    ) -> None:
        if rows <= 1 or width in (0, max(to_pitch, from_pitch)):
            _copy(to, since, width * rows, kind, stream)
            return
        if not self._max_pitch:
            self._max_pitch = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxPitch, runtime.getDevice())
        if max(to_pitch, from_pitch) > self._max_pitch:
            for row in range(rows):
                _copy(to + row * to_pitch, since + row * from_pitch, width, kind, stream)
            return
        try:
            for row in range(0, rows, MAX_ROWS):
                part = min(MAX_ROWS, rows - row)
                runtime.memcpy2DAsync(
                    to + row * to_pitch, to_pitch, since + row * from_pitch, from_pitch, width, part, kind, stream
                )
        except CudaError as error:
            raise translate(
                error,
                f"copying {rows} rows of {width} bytes",
                details={"width": width, "rows": rows, "destination_pitch": to_pitch, "source_pitch": from_pitch},
            ) from error

    def _own_stream(self) -> int:
        """Made when it is first needed; it goes with the process."""
        if not self._side:
            try:
                self._side = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
            except CudaError as error:
                raise translate(error, "creating a stream") from error
        return self._side

    def _settle(self) -> None:
        """The end of a copy by way of the driver's own page-locked memory; for a chunk, some 0.1 ms."""
        try:
            runtime.streamSynchronize(self._side)
        except CudaError as error:
            raise translate(error, "copying from or to ordinary memory") from error


def _copy(destination: int, source: int, size: int, kind: int, stream: int) -> None:
    if size:
        try:
            runtime.memcpyAsync(destination, source, size, kind, stream)
        except CudaError as error:
            raise translate(error, f"copying {size} bytes") from error


def _address(memory: memoryview) -> int:
    """Where the bytes lie, also those of an immutable object."""
    import numpy as np  # CuPy's own; only where ordinary memory has to do

    data: Any = np.frombuffer(memory, np.uint8)
    return int(data.ctypes.data)
