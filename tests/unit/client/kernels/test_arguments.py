"""Packed kernel arguments, compared with the layout that C uses."""

from __future__ import annotations

import ctypes
import struct
from array import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth.kernels import arguments, launch_config, record_packer, unpassable
from hearth.session.memory import DeviceOperand, Memory, Space
from hearth_proto import launches
from tests.support.client.internals import memory_of

SPACE = Space(1)


class Array(DeviceOperand):
    def __init__(self, handle: int, offset: int) -> None:
        self._memory = Memory(SPACE, handle, 0, owned=False)
        self._connection = None
        self._offset = offset


def scalars(kind: type[Any], c_type: Any) -> st.SearchStrategy[tuple[Any, Any]]:
    info = np.iinfo(kind)
    return st.integers(int(info.min), int(info.max)).map(lambda value: (kind(value), c_type(value)))


floats = st.floats(allow_nan=False, width=32)
ARGUMENTS = st.one_of(
    *(scalars(getattr(np, name), getattr(ctypes, "c_" + name))
      for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
    st.booleans().map(lambda value: (np.bool_(value), ctypes.c_bool(value))),
    st.booleans().map(lambda value: (value, ctypes.c_bool(value))),
    floats.map(lambda value: (np.float32(value), ctypes.c_float(value))),
    floats.map(lambda value: (np.float64(value), ctypes.c_double(value))),
    floats.map(lambda value: (value, ctypes.c_double(value))),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: (value, ctypes.c_int64(value))),
    st.integers(0, 2**40).map(lambda value: (Array(9, value), ctypes.c_uint64(value))),
    st.integers(0, 2**15 - 1).map(lambda value: (np.array(value, np.int16), ctypes.c_int16(value))),
)  # fmt: skip


def record(args: tuple[Any, ...]) -> launches.Record:
    head, signature = launch_config.head(3, 4, (1, 2, 3), (4, 5, 6), args, 7, 8e-9, "checked", False, None, 1)
    tail = signature.pack_checked(args, SPACE)
    assert tail is not None and signature.pack_checked(list(args), SPACE) == tail
    (unpacked,) = launches.unpack(head + tail)
    return unpacked


@given(st.lists(ARGUMENTS, max_size=12))
def test_the_block_is_laid_out_as_c_lays_out_a_struct(pairs: list[tuple[Any, Any]]) -> None:
    args = tuple(arg for arg, _ in pairs)
    fields = [(f"f{index}", type(value)) for index, (_, value) in enumerate(pairs)]
    c_struct = type("Parameters", (ctypes.Structure,), {"_fields_": fields})
    expected = c_struct(*(value.value for _, value in pairs))
    unpacked = record(args)
    layout = launches.unpack_layout(unpacked.layout)
    assert len(layout) == len(args)
    for (name, _), (offset, size, pointer, _), arg in zip(fields, layout, args, strict=True):
        field = getattr(c_struct, name)
        assert (offset, size, pointer) == (field.offset, field.size, isinstance(arg, Array))
        assert unpacked.params[offset : offset + size] == bytes(expected)[offset : offset + size]
    assert unpacked.buffers == tuple(9 for arg in args if isinstance(arg, Array))
    assert unpacked[:2] == (3, 4) and unpacked.grid == (1, 2, 3) and unpacked.block == (4, 5, 6)
    assert (unpacked.shared_mem, unpacked.timeout_ns) == (7, 8)


@pytest.mark.parametrize(
    ("arg", "size", "alignment", "data"),
    [
        (np.float16(1.5), 2, 2, struct.pack("<e", 1.5)),
        (ml_dtypes.bfloat16(1.5), 2, 2, b"\xc0\x3f"),
        (ml_dtypes.float8_e4m3fn(1), 1, 1, b"\x38"),
        (np.complex64(1 + 2j), 8, 8, struct.pack("<2f", 1, 2)),
        (np.complex128(1 + 2j), 16, 16, struct.pack("<2d", 1, 2)),
        (1 + 2j, 16, 16, struct.pack("<2d", 1, 2)),
        (b"abcdefghij", 10, 8, b"abcdefghij"),
        (hearth.Struct(b"abc", align=1), 3, 1, b"abc"),
        (hearth.Struct(bytes(32), align=16), 32, 16, bytes(32)),
        (np.array(5, ">i4"), 4, 4, struct.pack("<i", 5)),
        (np.datetime64(7, "ns"), 8, 8, struct.pack("<q", 7)),
    ],
)
def test_other_types(arg: Any, size: int, alignment: int, data: bytes) -> None:
    unpacked = record((np.int8(1), arg))
    (_, (offset, got, pointer, _)) = launches.unpack_layout(unpacked.layout)
    assert (offset, got, pointer) == (alignment, size, False)
    assert unpacked.params[offset:] == data


def test_structured_scalars_follow_their_dtype() -> None:
    dtype = np.dtype([("a", np.int8), ("b", np.float64)], align=True)
    value = np.array([(1, 2.5)], dtype)[0]
    unpacked = record((np.int32(1), value))
    assert launches.unpack_layout(unpacked.layout)[1] == (8, 16, False, False)
    assert struct.unpack_from("<b7xd", unpacked.params, 8) == (1, 2.5)


def test_big_endian_structures_are_passed_in_native_byte_order() -> None:
    dtype = np.dtype([("a", np.int8), ("b", ">f8"), ("c", [("d", ">i2", 2)])], align=True)
    array = np.array([(1, 2.5, ((3, 4),))], dtype)
    for value in (array[0], array.reshape(()), array):
        unpacked = record((np.int32(1), value))
        assert launches.unpack_layout(unpacked.layout)[1] == (8, 24, False, False)
        assert struct.unpack_from("<b7xd2h", unpacked.params, 8) == (1, 2.5, 3, 4)
    only_field_has_a_shape = np.array([((3, 4),)], [("a", ">i2", 2)])  # NumPy calls this dtype native
    assert record((only_field_has_a_shape[0],)).params[:4] == struct.pack("<2h", 3, 4)


MASKED_FIELD = np.ma.array([(1, 2)], mask=[(False, True)], dtype="i2,i2")


@pytest.mark.parametrize(
    "value", [np.ma.masked, np.ma.array([1], "f4", mask=[True]), MASKED_FIELD, MASKED_FIELD[0], np.ma.masked_all(3)]
)
def test_masked_values_are_refused(value: Any) -> None:
    with pytest.raises(hearth.LaunchTypeError, match="argument 1 is a masked array") as caught:
        arguments.signature((1, value))
    assert "x.filled(value)" in caught.value.fix and caught.value.details["argument"] == "1"


def test_a_masked_array_whose_element_is_not_masked_is_passed_by_value() -> None:
    assert record((np.ma.array([5], ">i4", mask=[False]),)).params[:4] == struct.pack("<i", 5)


def test_structs_of_different_length_do_not_share_a_signature() -> None:
    assert len(record((b"12345678",)).params) == 8
    assert len(record((b"1234567812345678",)).params) == 16


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        (np.zeros(3), "host memory"),
        ([1, 2], "a list"),
        ("text", "a str"),
        (object(), "builtins.object"),
        (np.str_("x"), "a str"),
        (np.array(None, object), "NumPy array"),
    ],
)
def test_unsupported_argument_is_named(arg: Any, words: str) -> None:
    with pytest.raises(hearth.LaunchError, match="argument 1") as caught:
        arguments.signature((1, arg))
    assert words in caught.value.message
    assert isinstance(caught.value, TypeError)
    assert caught.value.fix and caught.value.details["argument"] == "1"


def test_int_out_of_range_is_reported() -> None:
    signature = arguments.signature((1, 2))
    for value in (2**63, 2**64, -(2**63) - 1):
        with pytest.raises(struct.error):
            signature.pack_checked((1, value), SPACE)
        error = unpassable.out_of_range((1, value))
        assert f"argument 1 is {value}; " in error.message and "64-bit" in error.message
        assert "np.uint64(x)" in error.fix


def test_ints_are_marked_for_conversion_if_the_daemon_converts() -> None:
    args = (True, 5, np.int32(1), Array(1, 0))
    exact = [(0, 1, False, False), (8, 8, False, False), (16, 4, False, False), (24, 8, True, False)]
    for converts, integer in ((True, True), (False, False)):
        head, signature = launch_config.head(
            3, 4, (1, 2, 3), (4, 5, 6), args, 7, None, "checked", False, None, 1, converts_integers=converts
        )
        tail = signature.pack_checked(args, SPACE)
        assert tail is not None
        (unpacked,) = launches.unpack(head + tail)
        layout = launches.unpack_layout(unpacked.layout)
        assert layout == [exact[0], (8, 8, False, integer), *exact[2:]]


def test_none_is_a_null_pointer() -> None:
    unpacked = record((np.int32(1), None))
    assert launches.unpack_layout(unpacked.layout)[1] == (8, 8, False, False) and unpacked.params[8:] == bytes(8)


def test_null_pointers_of_a_struct_are_zeros() -> None:
    dtype = np.dtype([("p", object), ("n", np.int32)], align=True)
    for value in (
        np.array((None, 5), dtype),
        np.array((0, 5), dtype)[()],
        hearth.Struct(b"\5" * 16, pointers={0: None}),
    ):
        unpacked = record((value,))
        assert unpacked.params[:9] == bytes(8) + b"\5" and not unpacked.buffers


@pytest.mark.parametrize("value", [np.array([5], ">i4"), np.full((1, 1), 5, np.int32)])
def test_an_array_of_one_element_is_passed_by_value(value: Any) -> None:
    unpacked = record((np.int8(1), value))
    assert launches.unpack_layout(unpacked.layout)[1] == (4, 4, False, False)
    assert unpacked.params[4:] == struct.pack("<i", 5)


@pytest.mark.parametrize("dtype", ["f8", "i8", "u8", "c8", "i4,f4"])
def test_an_array_of_one_element_with_the_size_of_an_address_is_refused(dtype: str) -> None:
    for shape in ((1,), (1, 1)):
        with pytest.raises(hearth.LaunchTypeError, match="argument 1 is a NumPy array of one element of 8") as caught:
            record((1, np.zeros(shape, dtype)))
        assert "x.flat[0]" in caught.value.fix and "gpu.asarray(x)" in caught.value.fix
    unpacked = record((1, np.zeros((), dtype)))
    assert launches.unpack_layout(unpacked.layout)[1][:2] == (8, 8)


def test_too_many_bytes() -> None:
    with pytest.raises(hearth.LaunchError, match="32764"):
        arguments.signature((bytes(32760), 1))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(4, (4, 1, 1)), ((4,), (4, 1, 1)), ((1, 2, 3), (1, 2, 3)), ([5, np.int64(6)], (5, 6, 1)), (2**32 - 1, None)],
)
def test_dimensions(value: Any, expected: Any) -> None:
    assert arguments.dimensions("grid", value) == (expected or (value, 1, 1))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((4, 0), r"grid\.y is 0"),
        ((-1,), r"grid\.x is -1"),
        ((1, 1, 2**32), r"grid\.z is 4294967296"),
        ((), "0 axes"),
        ((1, 1, 1, 1), "4 axes"),
        ((1.5,), r"grid\.x is 1\.5"),
        (True, r"grid\.x is True"),
        ("12", r"grid\.x"),
    ],
)
def test_wrong_dimensions_name_the_axis(value: Any, words: str) -> None:
    with pytest.raises(hearth.LaunchError, match=words):
        arguments.dimensions("grid", value)


def test_alignment_is_a_power_of_two() -> None:
    with pytest.raises(hearth.LaunchError):
        hearth.Struct(b"", align=3)


def test_the_data_of_a_struct_is_the_bytes_of_a_buffer() -> None:
    values = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    for data, expected in (
        (np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32).tobytes()),
        (values, values.tobytes()),
        (values[1], values[1].tobytes()),
        (bytearray(b"abc"), b"abc"),
        (ctypes.c_int64(7), np.int64(7).tobytes()),
    ):
        value = hearth.Struct(data, align=1)  # type: ignore[arg-type]
        assert value.data == value.tobytes() == expected
        assert arguments.signature((value,)).block_size == len(expected)
    for refused in (5, "abc", [1, 2, 3, 4], None, np.array("2020-01-01", "M8[D]")):
        with pytest.raises(hearth.LaunchTypeError, match="has no bytes") as caught:
            hearth.Struct(refused)  # type: ignore[arg-type]
        assert caught.value.fix


@pytest.mark.parametrize("count", [0, 1, record_packer.MAX_UNROLLED, record_packer.MAX_UNROLLED + 1, 600])
def test_any_number_of_arguments(count: int) -> None:
    args = tuple([Array(9, 8), 3, np.complex64(1j), b"ab"][index % 4] for index in range(count))
    assert len(launches.unpack_layout(record(args).layout)) == count


@pytest.mark.parametrize("count", [2, record_packer.MAX_UNROLLED + 2])
def test_memory_that_cannot_be_used_is_not_packed(count: int) -> None:
    array, freed = Array(9, 8), Array(10, 0)
    signature = arguments.signature((array, freed) + (1,) * (count - 2))
    rest = (1,) * (count - 2)
    assert signature.pack_checked((array, array, *rest), SPACE) is not None
    assert signature.pack_checked((array, array, *rest), Space(1)) is None
    memory_of(freed).free()
    assert signature.pack_checked((array, freed, *rest), SPACE) is None
    with pytest.raises(struct.error):
        arguments.signature((array, 1)).pack_checked((array, 2**63), SPACE)


# ---- of ctypes ----


class Inner(ctypes.Structure):
    _fields_ = (("a", ctypes.c_char), ("b", ctypes.c_double * 2))


class Either(ctypes.Union):
    _fields_ = (("a", ctypes.c_short), ("b", ctypes.c_float))


class Swapped(ctypes.BigEndianStructure):
    _fields_ = (("a", ctypes.c_int),)


class Named(ctypes.c_int):
    pass


class Tobytes(ctypes.Structure):
    _fields_ = (("tobytes", ctypes.c_short), ("dtype", ctypes.c_short))


NATIVE = [ctypes.c_bool, ctypes.c_char, ctypes.c_byte, ctypes.c_ubyte, ctypes.c_short, ctypes.c_ushort, ctypes.c_int,
          ctypes.c_uint, ctypes.c_long, ctypes.c_ulong, ctypes.c_longlong, ctypes.c_ulonglong, ctypes.c_float,
          ctypes.c_double, ctypes.c_int8, ctypes.c_uint64, ctypes.c_size_t, Named, Inner, Either, Tobytes]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(NATIVE), st.binary(min_size=24, max_size=24)), min_size=1, max_size=8))
def test_ctypes_arguments_have_the_layout_of_ctypes(given_types: list[tuple[Any, bytes]]) -> None:
    fields = [(f"f{index}", kind) for index, (kind, _) in enumerate(given_types)]
    c_struct = type("Parameters", (ctypes.Structure,), {"_fields_": fields})
    args = tuple(kind.from_buffer_copy(data) for kind, data in given_types)
    for _ in range(2):  # the second time with the cached signature
        unpacked = record(args)
        for (name, _), place, arg in zip(fields, launches.unpack_layout(unpacked.layout), args, strict=True):
            field = getattr(c_struct, name)
            assert place == (field.offset, field.size, False, False)
            assert unpacked.params[place.offset : place.offset + place.size] == bytes(arg)


@pytest.mark.parametrize(
    "arg",
    [ctypes.c_void_p(1), ctypes.c_char_p(b"x"), ctypes.c_wchar("x"), ctypes.c_longdouble(1), ctypes.py_object(),
     ctypes.pointer(ctypes.c_int(1)), (ctypes.c_int * 2)(), Swapped(1), ctypes.c_int.__ctype_be__(1), ctypes.c_int],
)  # fmt: skip
def test_ctypes_pointers_and_swapped_types_are_refused(arg: Any) -> None:
    with pytest.raises(hearth.LaunchError, match="argument 1 is of type") as caught:
        arguments.signature((1, arg))
    assert isinstance(caught.value, TypeError) and "pass ctypes numbers" in caught.value.fix


@pytest.mark.parametrize("arg", [array("f", [1]), bytearray(4), memoryview(b"1234")])
def test_a_buffer_of_the_host_is_to_be_uploaded(arg: Any) -> None:
    with pytest.raises(hearth.LaunchError, match="which is in host memory") as caught:
        arguments.signature((1, arg))
    assert "gpu.asarray" in caught.value.fix


def test_ctypes_structures_with_pointers_are_refused() -> None:
    class Inner(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p * 2),)

    class Outer(ctypes.Structure):
        _fields_ = (("n", ctypes.c_int), ("inner", Inner))

    class Derived(Outer):
        _fields_ = (("m", ctypes.c_int),)

    class Both(ctypes.Union):
        _fields_ = (("n", ctypes.c_int), ("p", ctypes.POINTER(ctypes.c_int)))

    for kind in (Inner, Outer, Derived, Both):
        with pytest.raises(hearth.LaunchError, match=r"argument 1 is .* a structure with pointers") as caught:
            arguments.signature((1, kind()))
        assert "hearth.Struct(bytes(x), pointers={Type.field.offset: array})" in caught.value.fix


def test_pointers_in_structs_follow_the_entry_of_their_struct() -> None:
    data = bytes(range(1, 33))
    x, y = Array(7, 24), Array(8, 0)
    value = hearth.Struct(data, align=16, pointers={24: y, 8: x, 16: None})
    args = (np.int8(1), value, x)
    unpacked = record(args)
    assert launches.unpack_layout(unpacked.layout) == [
        (0, 1, False, False), (16, 32, False, False), (24, 8, True, False), (40, 8, True, False), (48, 8, True, False),
    ]  # fmt: skip
    assert unpacked.buffers == (7, 8, 7)
    offsets = struct.pack("<QQQ", 24, 0, 0)
    assert unpacked.params == b"\1".ljust(16, b"\0") + data[:8] + offsets + struct.pack("<Q", 24)
    found = launches.split_nested(launches.unpack_layout(unpacked.layout))
    assert [place[:2] for place in found[0]] == [(0, 1), (16, 32), (48, 8)]
    assert [(nested.parameter, nested.entry.offset) for nested in found[1]] == [(1, 24), (1, 40)]
    assert value.tobytes() == data and value == hearth.Struct(data, 16, {8: x, 24: y, 16: None})
