"""Arrays of evenly spaced numbers are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hearth


@pytest.mark.parametrize("dtype", [None, "float32", "int64", "bfloat16", "complex64"])
@pytest.mark.parametrize("args", [(5,), (0,), (2, 9), (9, 2, -3), (0, 1, 0.25), (5, 2)])
def test_arange(gpu: hearth.Device, args: tuple[Any, ...], dtype: str | None) -> None:
    x = gpu.arange(*args, dtype=dtype)
    expected = np.arange(*args, dtype=None if dtype is None else x.dtype)
    assert (x.dtype, x.shape) == (expected.dtype, expected.shape) and (dtype is None or x.dtype.name == dtype)
    np.testing.assert_array_equal(x.get(), expected)


def test_linspace(gpu: hearth.Device) -> None:
    for keywords in ({}, {"num": 7}, {"num": 1}, {"num": 0}, {"num": 5, "endpoint": False}, {"dtype": np.float32}):
        x, expected = gpu.linspace(-1, 2.5, **keywords), np.linspace(-1, 2.5, **keywords)  # type: ignore[call-overload]
        assert (x.dtype, x.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(x.get(), expected)


def test_ranges_that_numpy_refuses_are_refused_by_name(gpu: hearth.Device) -> None:
    for start, stop, step in ((0, 1, 0), ("a", "b", 1), (0, float("inf"), 1)):
        with pytest.raises(hearth.ArgumentError, match="arange cannot compute"):
            gpu.arange(start, stop, step)
    with pytest.raises(hearth.ArgumentError, match="linspace cannot compute"):
        gpu.linspace(0, 1, -1)
    with pytest.raises(hearth.DtypeError):
        gpu.arange(3, dtype=object)
