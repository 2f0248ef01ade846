"""Description of a published buffer: any program may have written it, so only a description of a valid array is
accepted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.arrays.described import describe, parse
from hearth.errors import UnsupportedError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["shape", "dtype", "x"]), inner),
    max_leaves=8,
)


@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_description_is_a_valid_array_or_none(description: bytes) -> None:
    found = parse(description)
    if found is not None:
        shape, dtype = found
        assert all(axis >= 0 for axis in shape)
        assert dtype.itemsize > 0
        assert not dtype.hasobject


@given(
    st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple),
    st.sampled_from(["?", "i1", "<u2", "f2", "f8", "c8", "S3", "U2", "M8[ms]", "m8[D]"]),
)
def test_round_trip(shape: tuple[int, ...], dtype: str) -> None:
    found = parse(describe(shape, np.dtype(dtype)))
    if np.prod(shape, dtype=object) * np.dtype(dtype).itemsize < 2**63:
        assert found == (shape, np.dtype(dtype))


@pytest.mark.parametrize("dtype", [[("a", "i4"), ("b", "f4")], ("f4", (2,)), "V8"])
def test_dtypes_without_a_name_are_refused(dtype: Any) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        describe((3,), np.dtype(dtype))
    assert "view(np.uint8)" in refusal.value.fix


def test_bfloat16() -> None:
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    assert parse(describe((2, 3), dtype)) == ((2, 3), dtype)
