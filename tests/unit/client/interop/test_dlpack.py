"""DLPack capsules of exported memory, taken by NumPy: their contents, and the objects that they keep alive."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.interop import dlpack


class Owner:
    """An object with a capsule of a host array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        array = self.array
        return dlpack.capsule(self, array.ctypes.data, (1, 0), array.shape, array.strides, array.dtype)


@given(
    st.sampled_from(["uint8", "int16", "int32", "uint64", "float16", "float64", "complex128", "bool"]),
    st.lists(st.integers(1, 4), max_size=4),
    st.integers(0, 2),
)
def test_taken_by_numpy(dtype: str, shape: list[int], cut: int) -> None:
    whole = np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(dtype)
    array = whole[..., cut:] if shape and shape[-1] > cut else whole
    taken = np.from_dlpack(Owner(array))
    assert (taken.dtype, taken.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(taken, array)


def test_a_refused_capsule_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, which has no bfloat16, drops the capsule while its error is set."""
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(str(report.exc_value)))
    owner = Owner(np.zeros(4, ml_dtypes.bfloat16))
    kept, before = weakref.ref(owner), dlpack.exported()
    with pytest.raises((SystemError, RuntimeError, BufferError)):
        np.from_dlpack(owner)
    del owner
    gc.collect()
    assert dlpack.exported() == before and kept() is None
    assert any("dtype" in each for each in reported)


def test_capsule_keeps_its_owner_alive() -> None:
    owner = Owner(np.arange(10))
    kept = weakref.ref(owner)
    before = dlpack.exported()
    taken = np.from_dlpack(owner)
    unused = owner.__dlpack__()
    del owner
    gc.collect()
    assert kept() is not None and dlpack.exported() == before + 2
    del unused  # the capsule was not taken
    assert dlpack.exported() == before + 1
    np.testing.assert_array_equal(taken, np.arange(10))
    del taken
    gc.collect()
    assert kept() is None and dlpack.exported() == before


def test_unsupported_dtypes_raise_buffer_error() -> None:
    for dtype in ("S4", ">i4", "M8[s]"):
        with pytest.raises(BufferError):
            dlpack.capsule(None, 0, (1, 0), (1,), (np.dtype(dtype).itemsize,), np.dtype(dtype))
    with pytest.raises(BufferError):
        dlpack.capsule(None, 0, (1, 0), (2,), (3,), np.dtype("int16"))


def test_the_struct_is_dlpacks() -> None:
    """The structure has the layout of DLManagedTensor on a 64-bit system."""
    assert (ctypes.sizeof(dlpack._Tensor), ctypes.sizeof(dlpack._Managed)) == (48, 64)
    assert (dlpack._Tensor.shape.offset, dlpack._Tensor.byte_offset.offset) == (24, 40)
