"""Tensor maps: every rule that is checked before the driver, violated one at a time and all together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.tensor_map import (
    ATOMS,
    CORNERS,
    Im2col,
    Im2colWide,
    TensorMapSpec,
    Tile,
    check,
    check_features,
    element_of,
    missing_feature,
    refuse,
)

ADDRESS = 0x7F0000000000  # a multiple of 256, like the driver's allocations
MATRIX = TensorMapSpec("float32", (64, 128), (256,), (1, 1), Tile((32, 8)))
IMAGES = TensorMapSpec(  # 2 images of 10 x 12 pixels of 16 float16
    "float16", (16, 12, 10, 2), (32, 384, 3840), (1, 1, 1, 1), Im2col((-1, -1), (-1, -1), 16, 64)
)
SLICED = TensorMapSpec(  # NC/16HWC16 of uint8: slices of 32 bytes, so 32 channels each
    "uint8", (64, 12, 10, 2), (32, 384, 7680), (1, 1, 1, 1), Tile((32, 4, 4, 1)), "32b", "32b"
)
WIDE = TensorMapSpec(  # columns along W of the same images
    "float16", (16, 12, 10, 2), (32, 384, 3840), (1, 1, 1, 1), Im2colWide(-1, -1, 16, 64), swizzle="64b"
)
SIZES = {MATRIX: 64 * 128 * 4, IMAGES: 2 * 3840, SLICED: 2 * 7680, WIDE: 2 * 3840}


def errors_of(spec: TensorMapSpec, offset: int = 0, size: int = 1 << 80, **changes: Any) -> list[str]:
    return check(replace(spec, **changes), ADDRESS, offset, size)


@pytest.mark.parametrize("spec", SIZES, ids=["tiled", "im2col", "interleaved", "im2col-wide"])
def test_valid_maps_pass_in_a_buffer_of_exactly_their_size(spec: TensorMapSpec) -> None:
    assert check(spec, ADDRESS, 0, SIZES[spec]) == []
    assert check(spec, ADDRESS, 64, SIZES[spec] + 64) == []


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"dtype": "bool"}, "dtype bool has no tensor map type; view it as uint8"),
        ({"dtype": "complex64"}, "dtype complex64 has no tensor map type; view it as floats"),
        ({"dtype": "<U8"}, "dtype is '<U8'; it must be one of uint8, uint16"),
        ({"dtype": ""}, "dtype is ''"),
        ({"interleave": "64b"}, "interleave is '64b'; it must be one of none, 16b, 32b"),
        ({"swizzle": "256b"}, "swizzle is '256b'; it must be one of none, 32b, 64b, 128b"),
        ({"swizzle": "128B"}, "swizzle is '128B'"),
        ({"l2_promotion": "l2_512b"}, "l2_promotion is 'l2_512b'; it must be one of none, l2_64b"),
        ({"oob_fill": "zeros"}, "oob_fill is 'zeros'; it must be one of none, nan"),
        ({"oob_fill": "nan", "dtype": "int32"}, "oob_fill is nan and dtype int32, which is copied as int32"),
        ({"shape": (0, 128)}, "shape[0] is 0; it must lie between 1 and 4294967296"),
        ({"shape": (64, 0)}, "shape[1] is 0"),
        ({"shape": (64, (1 << 32) + 1)}, "shape[1] is 4294967297"),
        (
            {"strides": (260,)},
            "the stride of dimension 1 is 260 bytes; it must be a multiple of 16 below",
        ),
        ({"strides": (1 << 40,)}, "the stride of dimension 1 is 1099511627776 bytes"),
        ({"strides": ()}, "0 strides are given for rank 2; every dimension except the innermost needs one"),
        ({"strides": (256, 256)}, "2 strides are given for rank 2"),
        ({"element_strides": (1,)}, "1 element_strides are given for rank 2; every dimension needs one"),
        ({"element_strides": (1, 0)}, "element_strides[1] is 0; it must lie between 1 and 8"),
        ({"element_strides": (1, 9)}, "element_strides[1] is 9"),
        ({"element_strides": (2, 1)}, "element_strides[0] is 2; without interleave it must be 1"),
        ({"access": None}, "neither a tile nor im2col is given"),
        ({"access": Tile((32,))}, "the box has 1 dimensions, the tensor 2"),
        ({"access": Tile((32, 0))}, "box[1] is 0; it must lie between 1 and 256"),
        ({"access": Tile((32, 257))}, "box[1] is 257"),
        ({"access": Tile((0, 8))}, "box[0] is 0"),
        (
            {"access": Tile((30, 8))},
            "box[0] is 30 elements, 120 bytes; without interleave it must be a multiple of 16 bytes",
        ),
        (
            {"access": Tile((36, 8)), "swizzle": "128b"},
            "box[0] takes 144 bytes; with swizzle 128b it may take at most 128",
        ),
        ({"swizzle": "64b"}, "box[0] takes 128 bytes; with swizzle 64b it may take at most 64"),
        ({"swizzle": "32b"}, "with swizzle 32b it may take at most 32"),
        ({"interleave": "16b"}, "the rank is 2; interleaved, it must be at least 3"),
        ({"access": Im2col((), (), 16, 16)}, "the rank is 2; for im2col it must be 3, 4 or 5"),
    ],
)
def test_each_wrong_field_of_a_tiled_map(changes: dict[str, Any], message: str) -> None:
    (error,) = errors_of(MATRIX, **changes)
    assert error.startswith(message) or message in error


@pytest.mark.parametrize(
    "rank, message",
    [(0, "the rank is 0; it must lie between 1 and 5"), (6, "the rank is 6; it must lie between 1 and 5")],
)
def test_rank(rank: int, message: str) -> None:
    strides = tuple(16 << axis for axis in range(1, rank))
    spec = TensorMapSpec("float32", (4,) * rank, strides, (1,) * rank, Tile((4,) * rank))
    assert errors_of(spec) == [message]


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"shape": (16, 12), "strides": (32,), "element_strides": (1, 1)},
            "the rank is 2; for im2col it must be 3, 4 or 5",
        ),
        ({"access": Im2col((0,), (0, 0), 16, 64)}, "lower_corner has 1 offsets; with rank 4 it must have 2"),
        ({"access": Im2col((0, 0), (0, 0, 0), 16, 64)}, "upper_corner has 3 offsets; with rank 4 it must have 2"),
        (
            {"access": Im2col((-129, 0), (0, 0), 16, 64)},
            "lower_corner[0] is -129; with rank 4 it must lie between -128 and",
        ),
        ({"access": Im2col((0, 0), (0, 128), 16, 64)}, "upper_corner[1] is 128; with rank 4 it must lie between"),
        (
            {"access": Im2col((6, 0), (-6, 0), 16, 64)},
            "nothing of dimension 1 lies between the corners: its 12 elements",
        ),
        ({"access": Im2col((0, 0), (0, -10), 16, 64)}, "nothing of dimension 2 lies between the corners"),
        ({"access": Im2col((0, 0), (0, 0), 0, 64)}, "channels_per_pixel is 0; it must lie between 1 and 256"),
        ({"access": Im2col((0, 0), (0, 0), 257, 64)}, "channels_per_pixel is 257"),
        ({"access": Im2col((0, 0), (0, 0), 16, 0)}, "pixels_per_column is 0; it must lie between 1 and 1024"),
        ({"access": Im2col((0, 0), (0, 0), 16, 1025)}, "pixels_per_column is 1025"),
        (
            {"access": Im2col((0, 0), (0, 0), 32, 64), "swizzle": "32b"},
            "channels_per_pixel takes 64 bytes; with swizzle 32b it may take at most 32",
        ),
    ],
)
def test_each_wrong_field_of_an_im2col_map(changes: dict[str, Any], message: str) -> None:
    (error,) = errors_of(IMAGES, **changes)
    assert error.startswith(message)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"shape": (16, 12), "strides": (32,), "element_strides": (1, 1)},
            "the rank is 2; for im2col it must be 3, 4 or 5",
        ),
        (
            {"access": Im2colWide(-32769, 0, 16, 64)},
            "lower_corner_width is -32769; it must lie between -32768 and",
        ),
        ({"access": Im2colWide(0, 32768, 16, 64)}, "upper_corner_width is 32768; it must lie between -32768 and"),
        (
            {"access": Im2colWide(6, -6, 16, 64)},
            "nothing of dimension 1 lies between the corners: its 12 elements from 6 to -6 of the end",
        ),
        ({"access": Im2colWide(0, 0, 0, 64)}, "channels_per_pixel is 0; it must lie between 1 and 256"),
        ({"access": Im2colWide(0, 0, 257, 64), "interleave": "?"}, "channels_per_pixel is 257"),
        ({"access": Im2colWide(0, 0, 16, 0)}, "pixels_per_column is 0; it must lie between 1 and 1024"),
        ({"access": Im2colWide(0, 0, 16, 1025)}, "pixels_per_column is 1025"),
        (
            {"access": Im2colWide(0, 0, 16, 64, "w128")},
            "pixels_per_column is 64; mode w128 requires 0 or 128",
        ),
        ({"access": Im2colWide(0, 0, 16, 64, "W")}, "mode is 'W'; it must be one of w, w128"),
        (
            {"access": Im2colWide(0, 0, 64, 64)},
            "channels_per_pixel takes 128 bytes; with swizzle 64b it may take at most 64",
        ),
        ({"swizzle": "none"}, "swizzle is none; with im2col-wide it must be one of 64b, 128b, 128b_atom_32b"),
        ({"swizzle": "32b"}, "swizzle is 32b; with im2col-wide it must be one of"),
        ({"swizzle": "128b_atom_32b_flip_8b"}, "swizzle is 128b_atom_32b_flip_8b; with im2col-wide it must be one of"),
        ({"swizzle": "128b_atom_64b"}, "swizzle is 128b_atom_64b; with im2col-wide it must be one of"),
        ({"interleave": "16b"}, "interleave is 16b; with im2col-wide it must be none"),
        ({"element_strides": (1, 9, 1, 1)}, "element_strides[1] is 9; it must lie between 1 and 8"),
        ({"oob_fill": "nan", "dtype": "uint16"}, "oob_fill is nan and dtype uint16"),
    ],
)
def test_each_wrong_field_of_an_im2col_wide_map(changes: dict[str, Any], message: str) -> None:
    errors = [error for error in errors_of(WIDE, **changes) if "'?'" not in error]
    assert len(errors) == 1 and errors[0].startswith(message)


def test_im2col_wide_of_every_rank_mode_and_swizzle() -> None:
    for rank in (3, 4, 5):
        shape, strides = (16, *(12,) * (rank - 2), 2), tuple(32 * 12**axis for axis in range(rank - 1))
        for mode, pixels in (("w", 1), ("w", 1024), ("w128", 0), ("w128", 128)):
            for swizzle in ("64b", "128b", "128b_atom_32b"):
                access = Im2colWide(-32768, 32767, 16, pixels, mode)
                spec = TensorMapSpec("float16", shape, strides, (1, 8, *(1,) * (rank - 2)), access, swizzle=swizzle)
                assert errors_of(spec) == []


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"swizzle": "none"}, "swizzle is none; with interleave 32b it must be 32b"),
        ({"swizzle": "128b"}, "swizzle is 128b; with interleave 32b it must be 32b"),
        ({"strides": (48, 384, 7680)}, "the stride of dimension 1 is 48 bytes; it must be a multiple of 32"),
        ({"element_strides": (9, 1, 1, 1)}, "element_strides[0] is 9"),
    ],
)
def test_each_wrong_field_of_an_interleaved_map(changes: dict[str, Any], message: str) -> None:
    (error,) = errors_of(SLICED, **changes)
    assert error.startswith(message)


def test_interleaving_removes_limits_on_boxes_and_strides() -> None:
    assert errors_of(SLICED, element_strides=(2, 1, 1, 1)) == []
    assert errors_of(SLICED, access=Tile((200, 4, 4, 1))) == []  # neither a multiple of 16 bytes nor within the span
    assert errors_of(SLICED, interleave="16b", swizzle="none", strides=(16, 208, 4160)) == []


def test_alignment_of_the_address() -> None:
    assert errors_of(MATRIX, offset=16) == []
    assert errors_of(MATRIX, offset=8) == [
        f"it starts at byte 8 of the buffer, at address {ADDRESS + 8:#x}; its address must be a multiple of 16"
    ]
    assert errors_of(SLICED, offset=32) == []
    (error,) = errors_of(SLICED, offset=16)
    assert error.endswith("its address must be a multiple of 32, interleaved by 32 bytes")


def test_the_region_lies_in_the_buffer() -> None:
    assert errors_of(MATRIX, size=SIZES[MATRIX] - 1) == [
        f"it describes {SIZES[MATRIX]} bytes from byte 0 of a buffer of {SIZES[MATRIX] - 1}: 1 too many"
    ]
    assert errors_of(MATRIX, offset=16, size=SIZES[MATRIX]) == [
        f"it describes {SIZES[MATRIX]} bytes from byte 16 of a buffer of {SIZES[MATRIX]}: 16 too many"
    ]
    assert errors_of(MATRIX, offset=1 << 20, size=1 << 10) == ["it starts at byte 1048576 of a buffer of 1024"]
    # The last row has no padding after it.
    assert errors_of(MATRIX, strides=(512,), size=127 * 512 + 256) == []
    assert len(errors_of(MATRIX, strides=(512,), size=127 * 512 + 255)) == 1


def test_sizes_that_would_wrap_64_bits_do_not() -> None:
    huge = TensorMapSpec("float64", (1 << 32,) * 5, ((1 << 40) - 16,) * 4, (1,) * 5, Tile((2, 1, 1, 1, 1)))
    (error,) = errors_of(huge, size=(1 << 64) - 1)
    assert error.startswith(f"it describes {8 * (1 << 32) + 4 * ((1 << 32) - 1) * ((1 << 40) - 16)} bytes")


def test_packed_elements() -> None:
    packed = TensorMapSpec("16u4_align8b", (64, 128), (32,), (1, 1), Tile((64, 8)))
    assert errors_of(packed, size=32 * 128) == []
    assert len(errors_of(packed, size=32 * 128 - 1)) == 1
    assert errors_of(packed, shape=(63, 128)) == ["shape[0] is 63; two elements share a byte, so it must be even"]
    assert errors_of(packed, access=Tile((24, 8))) == [
        "box[0] is 24 elements, 12 bytes; without interleave it must be a multiple of 16 bytes"
    ]
    assert len(errors_of(packed, oob_fill="nan")) == 1


@pytest.mark.parametrize(
    "name, copied_as, bits",
    [
        ("uint8", "uint8", 8), ("int8", "uint8", 8), ("uint16", "uint16", 16), ("int16", "uint16", 16),
        ("uint32", "uint32", 32), ("int32", "int32", 32), ("uint64", "uint64", 64), ("int64", "int64", 64),
        ("float16", "float16", 16), ("bfloat16", "bfloat16", 16), ("float32", "float32", 32),
        ("float64", "float64", 64), ("float32_ftz", "float32_ftz", 32), ("tfloat32", "tfloat32", 32),
        ("tfloat32_ftz", "tfloat32_ftz", 32), ("float8_e4m3fn", "uint8", 8), ("float8_e5m2", "uint8", 8),
        ("float8_e8m0fnu", "uint8", 8), ("float6_e2m3fn", "uint8", 8), ("float4_e2m1fn", "uint8", 8),
        ("int4", "uint8", 8), ("uint4", "uint8", 8), ("16u4_align8b", "16u4_align8b", 4),
    ],
)  # fmt: skip
def test_types_by_the_names_of_numpy_and_ml_dtypes(name: str, copied_as: str, bits: int) -> None:
    element = element_of(name)
    assert element is not None and (element.name, element.bits) == (copied_as, bits)


@pytest.mark.parametrize("name", ["bool", "complex64", "complex128", "float128", "object", "void32", "datetime64[ns]"])
def test_types_that_cannot_be_copied(name: str) -> None:
    assert element_of(name) is None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "tfloat32", "float32_ftz"])
def test_floats_can_be_filled_with_nan(name: str) -> None:
    (element,) = [element_of(name)]
    assert element is not None
    width = element.bits // 8
    spec = TensorMapSpec(name, (64, 2), (64 * width,), (1, 1), Tile((16, 2)), oob_fill="nan")
    assert errors_of(spec) == []
    assert len(errors_of(spec, dtype="float8_e4m3fn")) == 1


def test_one_refusal_names_everything_that_is_wrong() -> None:
    spec = TensorMapSpec("bool", (0, 128), (7, 8), (3,), Tile((500,)), "none", "none", "none", "nothing")
    errors = check(spec, ADDRESS, 3, 0)
    assert len(errors) >= 8
    refusal = refuse(spec, errors, "tensor map of buffer 5", buffer=5)
    assert refusal.reason is Reason.TENSOR_MAP_INVALID and refusal.fix
    assert refusal.message.startswith("tensor map of buffer 5, bool of shape (0, 128) (innermost first): ")
    assert all(sentence in refusal.message for sentence in errors)
    assert refusal.details["failures"] == str(len(errors)) and refusal.details["box"] == "(500,)"
    assert refusal.details["buffer"] == "5" and refusal.details["strides"] == "(7, 8)"
    pixels = refuse(IMAGES, ["no"], "x")
    assert pixels.details["lower_corner"] == "(-1, -1)" and pixels.details["pixels_per_column"] == "64"


def test_a_device_without_tensor_maps_is_named() -> None:
    refusal = missing_feature("device 0 (cpu)")
    assert refusal.reason is Reason.UNSUPPORTED and refusal.message.startswith("device 0 (cpu) has no tensor maps")
    assert refusal.details == {"feature": "tensor_maps"}


def feature_missed(spec: TensorMapSpec, *features: str) -> str:
    with pytest.raises(Refusal) as caught:
        check_features(spec, features, "device 0 (cuda)")
    refusal = caught.value
    assert refusal.reason is Reason.UNSUPPORTED and refusal.message.startswith("device 0 (cuda) has no ")
    assert refusal.details["feature"] in (refusal.fix or ""), "the fix names the feature to look for"
    return str(refusal.details["feature"])


def test_every_kind_of_map_is_refused_by_the_name_of_its_feature() -> None:
    plain, wide, atoms = "tensor_maps", "tensor_map_im2col_wide", "tensor_map_swizzle_atoms"
    for spec in (MATRIX, IMAGES, SLICED, WIDE):
        assert feature_missed(spec) == feature_missed(spec, wide, atoms) == plain
    assert feature_missed(WIDE, plain, atoms) == wide
    check_features(WIDE, [plain, wide], "device")
    for spec in (MATRIX, IMAGES, SLICED):
        check_features(spec, [plain], "device")
    assert ATOMS == ("128b_atom_32b", "128b_atom_32b_flip_8b", "128b_atom_64b")
    for swizzle in ATOMS:
        assert feature_missed(replace(MATRIX, swizzle=swizzle), plain, wide) == atoms
        check_features(replace(MATRIX, swizzle=swizzle), [plain, atoms], "device")
    assert feature_missed(replace(WIDE, swizzle="128b_atom_32b"), plain, wide) == atoms
    check_features(replace(MATRIX, swizzle="?", access=None), [plain], "device")  # `check` refuses these


# ---- boundaries ----

RANKS = st.integers(3, 5)


@given(RANKS, st.data())
def test_corner_is_wrong_if_it_exceeds_its_bits(rank: int, data: st.DataObject) -> None:
    low, high = CORNERS[rank]
    at = data.draw(st.integers(2 * low, 2 * high) | st.sampled_from([low - 1, low, high, high + 1]))
    size = 1 << 20  # so large that there are always elements between the corners
    shape = (16, *(size,) * (rank - 2), 1)
    strides = tuple(32 * size**axis % (1 << 40) for axis in range(rank - 1))
    corner = (at, *(0,) * (rank - 3))
    spec = TensorMapSpec("float16", shape, strides, (1,) * rank, Im2col(corner, (0,) * (rank - 2), 16, 64))
    errors = check(spec, ADDRESS, 0, 1 << 200)
    assert (errors == []) == (low <= at <= high)


@given(
    st.integers(0, 1 << 33), st.integers(0, 1 << 33), st.integers(0, 1 << 41), st.integers(0, 10),
    st.integers(0, 260), st.integers(0, 260), st.integers(0, 4096),
)  # fmt: skip
def test_a_map_passes_exactly_where_every_rule_does(
    inner: int, outer: int, stride: int, step: int, width: int, height: int, offset: int
) -> None:
    spec = TensorMapSpec("float32", (inner, outer), (stride,), (1, step), Tile((width, height)))
    rules = (
        1 <= inner <= 1 << 32,
        1 <= outer <= 1 << 32,
        stride % 16 == 0 and stride < 1 << 40,
        1 <= step <= 8,
        1 <= width <= 256 and width * 4 % 16 == 0,
        1 <= height <= 256,
        offset % 16 == 0,
    )
    assert (check(spec, ADDRESS, offset, 1 << 80) == []) == all(rules)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 500), st.integers(-3, 3))
def test_the_extent_ends_with_the_last_element(shape: list[int], padding: int, offset: int, spare: int) -> None:
    strides: list[int] = []
    row = -(-shape[0] * 4 // 16) * 16 + 16 * padding
    for size in shape[1:]:
        strides.append(row)
        row *= size
    last = sum((size - 1) * step for size, step in zip(shape[1:], strides, strict=True)) + (shape[0] - 1) * 4
    spec = TensorMapSpec(
        "float32", tuple(shape), tuple(strides), (1,) * len(shape), Tile((4, *(1,) * (len(shape) - 1)))
    )
    offset *= 16
    errors = check(spec, ADDRESS, offset, offset + last + 4 + spare)
    assert (errors == []) == (spare >= 0)


@given(st.builds(
    TensorMapSpec,
    dtype=st.sampled_from(["float32", "bool", "int8", "x", "16u4_align8b"]),
    shape=st.lists(st.integers(0, 1 << 64), max_size=7).map(tuple),
    strides=st.lists(st.integers(0, 1 << 64), max_size=7).map(tuple),
    element_strides=st.lists(st.integers(0, 1 << 32), max_size=7).map(tuple),
    access=st.none()
    | st.builds(Tile, st.lists(st.integers(0, 1 << 32), max_size=7).map(tuple))
    | st.builds(
        Im2col,
        st.lists(st.integers(-(1 << 31), 1 << 31), max_size=4).map(tuple),
        st.lists(st.integers(-(1 << 31), 1 << 31), max_size=4).map(tuple),
        st.integers(0, 1 << 32),
        st.integers(0, 1 << 32),
    )
    | st.builds(
        Im2colWide,
        st.integers(-(1 << 31), 1 << 31),
        st.integers(-(1 << 31), 1 << 31),
        st.integers(0, 1 << 32),
        st.integers(0, 1 << 32),
        st.sampled_from(["w", "w128", "?"]),
    ),
    interleave=st.sampled_from(["none", "16b", "32b", "?"]),
    swizzle=st.sampled_from(["none", "32b", "128b_atom_64b", "?"]),
    l2_promotion=st.sampled_from(["none", "?"]),
    oob_fill=st.sampled_from(["none", "nan", "?"]),
), st.integers(0, 1 << 64), st.integers(0, 1 << 64))  # fmt: skip
def test_any_specification_is_valid_or_fully_explained(spec: TensorMapSpec, offset: int, size: int) -> None:
    errors = check(spec, ADDRESS, offset, size)
    assert all(isinstance(sentence, str) and sentence for sentence in errors)
    if not errors:
        assert spec.access is not None and (extent := spec.extent()) is not None and offset + extent <= size
    assert refuse(spec, errors, "tensor map").details["failures"] == str(len(errors))
