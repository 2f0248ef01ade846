"""Copies and fills of the CPU device: each is work of a stream's thread."""

from __future__ import annotations

import ctypes
from typing import Any

from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import HostInfo
from hearthd.device.cpu.memory import CpuHostBuffer, CpuHostPool, fill_with
from hearthd.device.cpu.streams import CpuStream


class CpuCopyOperations:
    """The part of CpuServer that moves bytes. "Host" memory is ordinary memory: there is always some."""

    _host: CpuHostPool

    def allocate_host(self, size: int) -> CpuHostBuffer | None:
        return self._host.take(size)

    def host_grown(self) -> bool:
        return False  # it never runs out but at the staging cap

    def host_refusal(self, size: int) -> Refusal | None:
        return None

    def host_info(self) -> HostInfo:
        return HostInfo(self._host.held, self._host.in_use)

    def free_host(self, buffer: CpuHostBuffer) -> None:
        self._host.give(buffer)

    def register_host(self, address: int, size: int) -> None:
        pass  # a stream's thread copies from and to any memory

    def unregister_host(self, address: int, size: int) -> None:
        pass

    def signal_address(self, address: int) -> int:
        return address

    def signal(self, address: int, value: int, stream: CpuStream) -> None:
        def write() -> None:
            if stream.failure is None:
                ctypes.c_uint64.from_address(address).value = value

        stream.submit(write)

    def upload(self, destination: int, source: CpuHostBuffer, offset: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination, source.address + offset, size))

    def download(self, destination: CpuHostBuffer, offset: int, source: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination.address + offset, source, size))

    def copy(self, destination: int, source: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination, source, size))

    def upload_rows(
        self, destination: int, pitch: int, source: CpuHostBuffer, offset: int, width: int, rows: int, stream: CpuStream
    ) -> None:
        stream.submit(lambda: move_rows(destination, pitch, source.address + offset, width, width, rows))

    def download_rows(
        self, destination: CpuHostBuffer, offset: int, source: int, pitch: int, width: int, rows: int, stream: CpuStream
    ) -> None:
        stream.submit(lambda: move_rows(destination.address + offset, width, source, pitch, width, rows))

    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: CpuStream,
    ) -> None:
        stream.submit(lambda: move_rows(destination, destination_pitch, source, source_pitch, width, rows))

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        import numpy as np

        _rows(destination, pitch, width, rows)[...] = np.frombuffer(data, np.uint8).reshape(rows, width)

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        import numpy as np

        np.frombuffer(into, np.uint8).reshape(rows, width)[...] = _rows(source, pitch, width, rows)

    def fill(self, address: int, pattern: bytes, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: fill_with(address, pattern, size))


def move_rows(destination: int, to_pitch: int, source: int, from_pitch: int, width: int, rows: int) -> None:
    """`rows` rows of `width` bytes; the two sides do not overlap."""
    if to_pitch == from_pitch == width:
        ctypes.memmove(destination, source, width * rows)
    else:
        _rows(destination, to_pitch, width, rows)[...] = _rows(source, from_pitch, width, rows)


class _Memory:
    """Rows at an address, as NumPy asks for them."""

    def __init__(self, address: int, pitch: int, width: int, rows: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (rows, width),
            "strides": (pitch, 1),
            "typestr": "|u1",
            "version": 3,
        }


def _rows(address: int, pitch: int, width: int, rows: int) -> Any:
    """An array of the rows, in place. NumPy is loaded where rows are first copied: a loop here would cost their number
    of calls."""
    import numpy as np

    return np.asarray(_Memory(address, pitch if rows > 1 else width, width, rows))
