"""Memory of other libraries: the streams that a copy of GPU memory waits for, and the conversion of host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hearth.arrays.asarray import gpu_memory_of, host_array
from hearth.errors import DtypeError
from hearth.interop import dlpack


class Interface:
    """An array with the CUDA array interface."""

    def __init__(self, stream: int | None) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3, "stream": stream,
        }  # fmt: skip


class Capsules:
    """An array that supports DLPack only."""

    def __init__(self) -> None:
        self.host = np.zeros(4, np.float32)
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def __dlpack__(self, stream: Any = "none") -> Any:
        self.asked.append(stream)
        host = self.host
        return dlpack.capsule(self, host.ctypes.data, (dlpack.CUDA, 0), host.shape, host.strides, host.dtype)


@pytest.mark.parametrize(
    ("own", "producer", "streams"),
    [(None, None, None), (5, None, (5,)), (None, 7, (7,)), (5, 7, (5, 7)), (None, 0, (0,))],
)
def test_streams_of_the_array_interface(own: int | None, producer: int | None, streams: tuple[int, ...] | None) -> None:
    memory = gpu_memory_of(Interface(own), producer)
    assert memory is not None and memory.streams == streams


@pytest.mark.parametrize(
    ("producer", "asked", "streams"), [(None, "none", None), (7, 7, (7,)), (0, 1, (0,))], ids=["none", "7", "default"]
)
def test_dlpack_producer_orders_the_stream(producer: int | None, asked: Any, streams: tuple[int, ...] | None) -> None:
    given = Capsules()
    memory = gpu_memory_of(given, producer)
    assert memory is not None and memory.streams == streams and given.asked == [asked]


class HostCapsules:
    """An array in host memory that supports DLPack only, and may refuse to export it."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.host = np.arange(4, dtype=np.float32)
        self.refusal = refusal
        self.exports = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self) -> Any:
        self.exports += 1
        if self.refusal is not None:
            raise self.refusal
        host = self.host
        return dlpack.capsule(self, host.ctypes.data, (dlpack.CPU, 0), host.shape, host.strides, host.dtype)


def test_host_memory_by_dlpack_is_not_copied() -> None:
    given, before = HostCapsules(), dlpack.exported()
    with host_array(given, None) as host:
        assert host.ctypes.data == given.host.ctypes.data and (host == given.host).all()
        assert dlpack.exported() == before + 1
    assert given.exports == 1 and dlpack.exported() == before


def test_export_that_fails_is_tried_once() -> None:
    given = HostCapsules(BufferError("it is locked"))
    with pytest.raises(DtypeError, match=r"\(it is locked\)"), host_array(given, None):
        pass
    assert given.exports == 1


def test_error_of_the_user_of_host_memory_is_no_failed_conversion() -> None:
    given, before = HostCapsules(), dlpack.exported()
    with pytest.raises(ValueError, match="of a progress callback"), host_array(given, None):
        raise ValueError("of a progress callback")
    assert dlpack.exported() == before
