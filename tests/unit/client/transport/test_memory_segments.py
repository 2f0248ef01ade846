"""`empty_pinned` and related functions: the arrays that NumPy would make, in memory that can be shared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hearth
from hearth.transport import memory_segments
from hearth.transport.segment_pool import MIN_BYTES, pool

needs_memfd = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")
SHAPES = [(), 0, 7, (3, 4), (0, 5), 100_000, (300, 400), (7, 50, 60, 5), (1 << 17, 1)]
DTYPES = [np.uint8, "f4", float, ">i4", np.complex128, np.dtype([("a", "u1"), ("b", "f8")]), "S3", bool, "M8[s]"]


def pinned(array: np.ndarray) -> bool:
    """Returns True if a device could copy from the array directly."""
    start, end = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    return memory_segments.known_segments.find(start, end - start) is not None


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("shape", "dtype"), list(itertools.product(SHAPES, DTYPES)))
def test_pinned_arrays_equal_those_of_numpy(shape: object, dtype: object, order: str) -> None:
    numpy_array = np.zeros(shape, dtype, order)  # type: ignore[call-overload]
    for make in (hearth.empty_pinned, hearth.zeros_pinned):
        pinned_array = make(shape, dtype, order)  # type: ignore[arg-type]
        assert type(pinned_array) is np.ndarray
        assert (pinned_array.shape, pinned_array.dtype, pinned_array.strides) == (
            numpy_array.shape,
            numpy_array.dtype,
            numpy_array.strides,
        )
        assert pinned_array.flags.writeable and pinned_array.flags.aligned
        if make is hearth.zeros_pinned:
            assert pinned_array.tobytes() == numpy_array.tobytes()
        if memory_segments.possible():
            assert pinned(pinned_array) == (pinned_array.nbytes >= MIN_BYTES)


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_like_an_array_of_any_layout(order: str) -> None:
    base = np.arange(40 * 60 * 50, dtype=np.float32).reshape(40, 60, 50)
    for model in (base, base.T, base.transpose(1, 0, 2), base[::2, :, ::5], np.asfortranarray(base), base[:0]):
        for dtype in (None, np.complex64):
            numpy_array = np.empty_like(model, dtype, order)  # type: ignore[call-overload]
            pinned_array = hearth.empty_like_pinned(model, dtype, order)  # type: ignore[arg-type]
            zeros = hearth.zeros_like_pinned(model, dtype, order)  # type: ignore[arg-type]
            assert (pinned_array.shape, pinned_array.dtype) == (numpy_array.shape, numpy_array.dtype)
            if model.size:
                assert pinned_array.strides == zeros.strides == numpy_array.strides
            assert not zeros.any()
            pinned_array[...] = model
            np.testing.assert_array_equal(pinned_array, model.astype(pinned_array.dtype))


def test_like_with_another_shape() -> None:
    pinned_array = hearth.empty_like_pinned(np.zeros((3, 4), np.int16), shape=(200, 300))
    assert pinned_array.shape == (200, 300) and pinned_array.dtype == np.int16


@needs_memfd
def test_zeros_in_reused_memory() -> None:
    pool.trim()
    first = hearth.empty_pinned(1 << 20, np.uint8)
    first.fill(255)
    address = first.ctypes.data
    del first
    again = hearth.zeros_pinned(1 << 20, np.uint8)
    assert again.ctypes.data == address
    assert not again.any()


@needs_memfd
def test_a_view_keeps_the_memory() -> None:
    array = hearth.empty_pinned((1 << 10, 1 << 10), np.uint8)
    array[3] = 7
    row = array[3]
    del array
    other = hearth.empty_pinned((1 << 10, 1 << 10), np.uint8)
    other.fill(1)
    assert (row == 7).all() and pinned(row)


@needs_memfd
def test_ordinary_memory_where_the_system_gives_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(size: int) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pool, "lease", refused)
    assert not pinned(hearth.zeros_pinned(1 << 20))
    monkeypatch.setattr(memory_segments, "possible", lambda: False)
    assert not pinned(hearth.empty_pinned(1 << 20))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((-1,), hearth.ArgumentError, "negative"),
        ((2.5,), hearth.DtypeError, "not integers"),
        ((3, object), hearth.DtypeError, "Python objects"),
        ((3, "no such"), hearth.DtypeError, "not a dtype"),
        ((1 << 62, np.float64), hearth.ArgumentError, "63 bits"),
        ((3, np.uint8, "K"), hearth.ArgumentError, "order is 'K'"),
        ((3, np.uint8, "CF"), hearth.ArgumentError, "order is 'CF'"),
        ((3, np.uint8, None), hearth.ArgumentError, "order is None"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        hearth.empty_pinned(*arguments)


def test_too_large_array_raises_memory_error() -> None:
    with pytest.raises(MemoryError):
        hearth.empty_pinned(1 << 60, np.uint8)
