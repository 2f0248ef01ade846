"""Tensor maps in the client: the command that creates one, its encoding in a launch, and its release."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hearth
from hearth.kernels import arguments
from hearth_proto import launches
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import handle_of, memory_of


@pytest.fixture
def f(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code="source").get_function("f")


def created(daemon: FakeDaemon) -> list[Any]:
    return [each.create_tensor_map for each in daemon.commands if each.WhichOneof("kind") == "create_tensor_map"]


def test_the_wire_has_the_innermost_axis_first(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros((10, 20, 32), np.float16)
    x[2:].tensor_map(
        (1, 4, 16), element_strides=(1, 2, 1), swizzle="32b", interleave="none", l2_promotion="l2_64b", oob_fill="nan"
    )
    gpu.synchronize()
    (made,) = created(daemon)
    assert made.buffer == handle_of(x) and made.offset == 2 * 20 * 64 and made.dtype == "float16"
    assert list(made.shape) == [32, 20, 8] and list(made.strides) == [64, 1280]
    assert list(made.element_strides) == [1, 2, 1] and list(made.tile.box) == [16, 4, 1]
    assert (made.swizzle, made.interleave, made.l2_promotion, made.oob_fill) == ("32b", "none", "l2_64b", "nan")


def test_corners_of_im2col_too(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros((2, 4, 6, 8, 16), np.float32)
    x.tensor_map(im2col=hearth.Im2col((-1, -2, -3), (1, 2, 3), channels_per_pixel=8, pixels_per_column=64))
    gpu.synchronize()
    (made,) = created(daemon)
    assert list(made.shape) == [16, 8, 6, 4, 2]
    assert list(made.im2col.lower_corner) == [-3, -2, -1] and list(made.im2col.upper_corner) == [3, 2, 1]
    assert (made.im2col.channels_per_pixel, made.im2col.pixels_per_column) == (8, 64)


def test_im2col_wide_with_and_without_a_number_of_pixels(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros((2, 4, 8, 16), np.float32)
    x.tensor_map(im2col=hearth.Im2colWide(-1, 2, channels_per_pixel=8, pixels_per_column=64), swizzle="64b")
    x.tensor_map(im2col=hearth.Im2colWide(0, 0, channels_per_pixel=16, mode="w128"), swizzle="128b_atom_32b")
    gpu.synchronize()
    first, second = created(daemon)
    assert first.WhichOneof("access") == second.WhichOneof("access") == "im2col_wide"
    assert list(first.shape) == [16, 8, 4, 2] and first.swizzle == "64b"
    wide = first.im2col_wide
    assert (wide.lower_corner_width, wide.upper_corner_width) == (-1, 2)
    assert (wide.channels_per_pixel, wide.pixels_per_column, wide.mode) == (8, 64, "w")
    wide = second.im2col_wide
    assert (wide.channels_per_pixel, wide.pixels_per_column, wide.mode) == (16, 0, "w128")


@pytest.mark.parametrize(
    ("dtype", "options", "name", "shape", "strides"),
    [
        (np.float32, {}, "float32", [32, 8], [128]),
        (ml_dtypes.bfloat16, {}, "bfloat16", [32, 8], [64]),
        (ml_dtypes.float8_e4m3fn, {}, "float8_e4m3fn", [32, 8], [32]),
        (np.float32, {"dtype": "tfloat32"}, "tfloat32", [32, 8], [128]),
        (np.int32, {"dtype": np.uint32}, "uint32", [32, 8], [128]),
        (np.uint8, {"dtype": "16u4_align8b"}, "16u4_align8b", [64, 8], [32]),
        (np.uint8, {"dtype": "16u4_align8b", "shape": (8, 48)}, "16u4_align8b", [48, 8], [24]),
        (np.float32, {"shape": (4, 16)}, "float32", [16, 4], [64]),
        (np.float32, {"shape": (4, 16), "strides": (256, 4)}, "float32", [16, 4], [256]),
        (np.float32, {"shape": (64,)}, "float32", [64], []),
        (np.bool_, {}, "bool", [32, 8], [32]),
    ],
)
def test_types_and_regions(
    gpu: hearth.Device, daemon: FakeDaemon, dtype: Any, options: dict[str, Any], name: str, shape: list[int],
    strides: list[int],
) -> None:  # fmt: skip
    gpu.empty((8, 32), dtype).tensor_map((8, 8), **options)
    gpu.synchronize()
    (made,) = created(daemon)
    assert (made.dtype, list(made.shape), list(made.strides)) == (name, shape, strides)


def test_tensor_map_takes_128_bytes_in_a_launch(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    x = gpu.zeros((8, 32), np.float32)
    tile = x.tensor_map((8, 32))
    for _ in range(2):  # the second time with the cached signature
        f((1,), (1,), (np.int32(3), tile, hearth.read_only(tile), x, hearth.read_only(x)))
    gpu.synchronize()
    for record in daemon.records:
        assert launches.unpack_layout(record.layout) == [
            launches.LayoutEntry(0, 4),
            launches.LayoutEntry(64, 128, True),
            launches.LayoutEntry(192, 128, True, True),
            launches.LayoutEntry(320, 8, True),
            launches.LayoutEntry(328, 8, True, True),
        ]
        assert record.buffers == (*[handle_of(tile)] * 2, *[handle_of(x)] * 2)
        assert record.params == (3).to_bytes(4, "little") + bytes(332)
    packed = arguments.signature((tile,))
    assert packed.pack_checked((tile,), memory_of(tile).space) == handle_of(tile).to_bytes(8, "little") + bytes(128)


def test_tensor_map_is_destroyed_with_its_last_reference_and_keeps_its_array_until_then(
    gpu: hearth.Device, daemon: FakeDaemon
) -> None:
    x = gpu.zeros((8, 32), np.float32)
    memory = handle_of(x)
    tile = x.tensor_map((8, 32))
    handle = handle_of(tile)
    del x
    gc.collect()
    gpu.synchronize()
    assert daemon.count("free") == 0 and daemon.count("destroy_tensor_map") == 0
    del tile
    gc.collect()
    gpu.synchronize()
    kinds = [each for each in daemon.commands if each.WhichOneof("kind") in ("free", "destroy_tensor_map")]
    assert {each.WhichOneof("kind") for each in kinds} == {"free", "destroy_tensor_map"}
    assert [each.destroy_tensor_map.tensor_map for each in kinds if each.HasField("destroy_tensor_map")] == [handle]
    assert [list(each.free.buffers) for each in kinds if each.HasField("free")] == [[memory]]


def test_explicit_free_destroys_the_tensor_map(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    tile = gpu.zeros((8, 32), np.float32).tensor_map((8, 32))
    assert tile.array.shape == (8, 32) and "freed" not in repr(tile)
    tile.free()
    tile.free()
    assert "freed" in repr(tile)
    with pytest.raises(hearth.InvalidHandleError, match="argument 0, TensorMap"):
        f((1,), (1,), (tile,))
    gpu.synchronize()
    assert daemon.count("destroy_tensor_map") == 1


def test_tensor_map_of_another_device_is_refused(daemon: FakeDaemon) -> None:
    daemon.device_count = 2
    with hearth.connect(daemon.target) as node:
        one, other = node.devices
        tile = one.zeros((8, 32), np.float32).tensor_map((8, 32))
        with pytest.raises(hearth.LaunchError, match="belongs to another device or session"):
            other.RawModule(code="source").get_function("f")((1,), (1,), (tile,))
