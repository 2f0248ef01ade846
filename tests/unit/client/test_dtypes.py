"""Elements without NumPy, compared with NumPy."""

from __future__ import annotations

import ctypes
import mmap
import struct
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth import dtypes, shapes

NAMES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
CODES = "bBhHiIlLqQfd"


def known(name: object) -> dtypes.Element:
    found = dtypes.named(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_names_are_numpys(name: str) -> None:
    dtype = np.dtype(name)
    for each in (name, dtype.str, dtype.str[1:]):
        assert known(each) is known(name)
    found = known(name)
    assert (found.itemsize, found.kind, found.str, str(found)) == (dtype.itemsize, dtype.kind, dtype.str, str(dtype))
    assert found.dtype is dtype and struct.calcsize(found.code) == dtype.itemsize


def test_python_number_types_are_known_and_others_are_left_to_numpy() -> None:
    for kind in (bool, int, float):
        assert known(kind).dtype == np.dtype(kind)
    for other in (
        complex,
        str,
        "float16",
        "complex64",
        "S5",
        ">f4",
        "",
        None,
        3,
        [],
        object(),
        np.float32,
        np.dtype("f4"),
    ):
        assert dtypes.named(other) is None


@given(st.sampled_from(CODES), st.lists(st.integers(0, 100), max_size=9))
def test_one_dimensional_buffers_agree_with_numpy(code: str, values: list[int]) -> None:
    held = array(code, values)
    for buffer in (held, memoryview(held), memoryview(held)[1:]):
        found, there = dtypes.host(buffer), np.asarray(buffer)
        assert found is not None
        assert (found.shape, found.element.dtype, bytes(found.data)) == (there.shape, there.dtype, there.tobytes())


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3), (3, 0), (0,), ()])
def test_multidimensional_buffers_agree_with_numpy(shape: tuple[int, ...]) -> None:
    there = np.zeros(shape, np.int16)
    found = dtypes.host(memoryview(there))
    assert found is not None and found.shape == shape and len(found.data) == there.nbytes


def test_writable_byte_buffers_are_uint8_arrays() -> None:
    with mmap.mmap(-1, 8) as mapped:
        for buffer in (bytearray(8), mapped):
            found = dtypes.host(buffer)
            assert found is not None and found.element is known("uint8") and found.shape == (8,)
            found.data.release()
            del found


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int))


@pytest.mark.parametrize(
    "other",
    [b"one string, not numbers", "text", 3, 2.5, None, [1, 2], object(), np.zeros(4)[::2], np.zeros(3, np.complex64),
     np.zeros((4, 4)).T, np.zeros(2, "S3"), np.zeros(2, ">i4"), np.float16(1), (ctypes.c_int * 3)(), (Point * 2)()],
)  # fmt: skip
def test_other_objects_are_left_to_numpy(other: object) -> None:
    assert dtypes.host(other) is None


VALUES = st.one_of(
    st.integers(), st.integers(-300, 300), st.booleans(), st.floats(), st.floats(width=32),
    st.complex_numbers(), st.text(max_size=3), st.none(), st.lists(st.integers(0, 3), max_size=2),
)  # fmt: skip


@given(VALUES, st.sampled_from(NAMES))
def test_number_patterns_agree_with_numpy(value: Any, name: str) -> None:
    pattern = dtypes.pattern(value, known(name))
    if pattern is None:
        return
    with np.errstate(all="ignore"):
        there = shapes.element(value, np.dtype(name))  # raises for every value that NumPy refuses
    if there.dtype.kind == "f" and np.isnan(there):
        assert np.isnan(np.frombuffer(pattern, there.dtype)[0])
    else:
        assert pattern == there.tobytes()


@pytest.mark.parametrize(("value", "name"), [(0, "float32"), (7, "uint8"), (True, "int64"), (2.5, "float64")])
def test_the_usual_numbers_need_no_numpy(value: Any, name: str) -> None:
    assert dtypes.pattern(value, known(name)) == np.array(value, name).tobytes()


@given(st.data(), st.sampled_from(NAMES))
def test_elements_equal_those_of_tolist(data: st.DataObject, name: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4)))
    size = int(np.prod(shape, dtype=int)) * known(name).itemsize
    content = data.draw(st.binary(min_size=size, max_size=size))
    if name == "bool":
        content = bytes(each & 1 for each in content)
    there = np.frombuffer(content, name).reshape(shape)
    found = dtypes.elements(memoryview(content), shape, known(name))
    assert repr(found) == repr(there.tolist())  # compared as text, because NaN is not equal to itself


@pytest.mark.parametrize(
    "buffer", [bytearray(8), array("d", [0]), np.zeros(8, np.uint8), np.zeros((2, 2), np.int16), np.zeros(2, ">i4"),
               np.zeros(1, [("a", "i4"), ("b", "f4")]), (ctypes.c_int * 2)(), Point()]
)  # fmt: skip
def test_any_writable_buffer_of_its_size_can_be_read_into(buffer: Any) -> None:
    data = dtypes.writable(buffer, 8)
    data[:] = bytes(range(8))
    assert bytes(memoryview(buffer)) == bytes(range(8))


def test_empty_buffers_are_accepted_for_empty_reads() -> None:
    assert len(dtypes.writable(bytearray(), 0)) == 0
    assert len(dtypes.writable(np.zeros((3, 0)), 0)) == 0


@pytest.mark.parametrize(
    ("buffer", "says"),
    [(bytes(8), "read-only"), (bytearray(7), "of 7 bytes"), (np.zeros((4, 4), np.uint8)[:, ::2], "not contiguous")],
)
def test_unsuitable_output_buffers_are_refused(buffer: Any, says: str) -> None:
    with pytest.raises(hearth.ArgumentError, match=says):
        dtypes.writable(buffer, 8)


@pytest.mark.parametrize("other", [None, 3, "text", [0] * 8, object()])
def test_objects_without_the_buffer_protocol_are_refused(other: Any) -> None:
    with pytest.raises(hearth.DtypeError, match="does not support the buffer protocol"):
        dtypes.writable(other, 8)
