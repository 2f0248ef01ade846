"""Tensor maps through the daemon: refused by name on devices without TMA; on GPUs created, used, kept and freed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, on_cpu, on_gpu, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import Execute, Raw, refused

# Reads a tensor map as any 128 bytes, so that it runs on every device.
PLAIN = r"""
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void look(const __grid_constant__ TensorMap map, int* out) { *out = map.opaque[0] != 0; }
"""

TMA = r"""
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
__device__ unsigned in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies the tile of 8 x 32 floats at (y, x) of one tensor to the same place of another.
extern "C" __global__ void move(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, int y,
                                int x) {
    __shared__ alignas(128) float tile[8][32];
    __shared__ alignas(8) unsigned long long barrier;
    if (threadIdx.x != 0) return;
    unsigned at = in_shared(&barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
                 :: "r"(at), "r"((unsigned)sizeof(tile)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(in_shared(tile)), "l"(&from), "r"(x), "r"(y), "r"(at) : "memory");
    for (unsigned done = 0; !done;) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&to), "r"(x), "r"(y), "r"(in_shared(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""


def look(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code=PLAIN).get_function("look")


# ---- devices without TMA ----


@on_cpu
def test_device_without_tma_refuses_by_name_and_continues(gpu: hearth.Device) -> None:
    x, out = gpu.zeros((64, 32), np.float32), gpu.full(1, 7, np.int32)
    assert "tensor_maps" not in gpu.properties.features
    tile = x.tensor_map((8, 32))
    with pytest.raises(hearth.UnsupportedError, match=r"device 0 \(cpu\) has no tensor maps") as caught:
        gpu.synchronize()
    assert caught.value.details["feature"] == "tensor_maps" and "9.0" in caught.value.message
    look(gpu)((1,), (1,), (tile, out))
    with pytest.raises(hearth.HearthError, match=r"tensor map \d+ was never made: device 0") as caught_too:
        gpu.synchronize()
    assert caught_too.value.reason == Reason.DEPENDENCY_FAILED
    assert out.get().tolist() == [7]
    saxpy_works(gpu)


@on_cpu
def test_im2col_wide_and_swizzle_atoms_are_refused_without_tma(gpu: hearth.Device) -> None:
    x = gpu.zeros((2, 4, 8, 16), np.float32)
    for make in (
        lambda: x.tensor_map(im2col=hearth.Im2colWide(0, 0, 16, 8), swizzle="64b"),
        lambda: x.tensor_map((1, 1, 8, 16), swizzle="128b_atom_64b"),
    ):
        make()
        with pytest.raises(hearth.UnsupportedError) as caught:
            gpu.synchronize()
        assert caught.value.details["feature"] == "tensor_maps"


@on_cpu
def test_wrong_fields_are_not_reported_without_tma(raw: Raw) -> None:
    buffer = raw.buffer(bytes(64))
    command = c.CreateTensorMap(tensor_map=raw.mint(), buffer=buffer, dtype="nonsense", shape=[0], swizzle="?")
    refusal = refused(raw.call, "CreateTensorMap", command)
    assert refusal.reason == Reason.UNSUPPORTED and refusal.details["feature"] == "tensor_maps"


# ---- errors that are found before the device is involved, and handles ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.tensor_map(), "takes either a box or im2col, not both"),
        (lambda x: x.tensor_map((8, 32), im2col=hearth.Im2col((0,), (0,), 1, 1)), "not both"),
        (lambda x: x.tensor_map(8), "box is 8; it must be a sequence of integers"),
        (lambda x: x.tensor_map((8, 1.5)), "it must be a sequence of integers"),
        (lambda x: x.tensor_map((8, -1)), "box contains -1; its values must be from 0 to 4294967295"),
        (lambda x: x.tensor_map((8, 32), element_strides=(-1, 1)), "element_strides contains -1"),
        (lambda x: x.tensor_map((8, 32), shape=(64, 2**64)), "shape contains 18446744073709551616"),
        (lambda x: x.tensor_map((8, 32), shape=(64, 16), strides=(128,)), "have different lengths"),
        (
            lambda x: x.tensor_map((8, 32), strides=(4, 256)),
            "the innermost stride is 256 bytes, and an element has 4 bytes",
        ),
        (lambda x: x.tensor_map((8, 32), dtype=np.float16), "elements have another size than float16"),
        (lambda x: x.tensor_map((8, 32), dtype="16u4_align8b"), r"x\.view\(np\.uint8\)"),
        (lambda x: x.tensor_map(im2col=hearth.Im2col((2**31,), (0,), 1, 1)), "lower_corner contains 2147483648"),
        (lambda x: x.tensor_map(im2col=hearth.Im2col((0,), (0,), -1, 1)), "channels_per_pixel contains -1"),
        (lambda x: x.tensor_map((8, 32), im2col=hearth.Im2colWide(0, 0, 1, 1)), "not both"),
        (lambda x: x.tensor_map(im2col=hearth.Im2colWide(2**31, 0, 1, 1)), "lower_corner_width contains 2147483648"),
        (lambda x: x.tensor_map(im2col=hearth.Im2colWide(0, 0.5, 1, 1)), "upper_corner_width is"),
        (lambda x: x.tensor_map(im2col=hearth.Im2colWide(0, 0, 1, 2**32)), "pixels_per_column contains 4294967296"),
    ],
)
def test_invalid_tensor_maps_are_refused_by_client(
    gpu: hearth.Device, make: Callable[[hearth.DeviceArray], Any], message: str
) -> None:
    x = gpu.zeros((64, 32), np.float32)
    with pytest.raises((hearth.ArgumentError, hearth.DtypeError), match=message):
        make(x)
    gpu.synchronize()


def test_a_freed_array_makes_no_tensor_map(gpu: hearth.Device) -> None:
    x = gpu.zeros((64, 32), np.float32)
    x.free()
    with pytest.raises(hearth.InvalidHandleError, match="was freed"):
        x.tensor_map((8, 32))
    gpu.synchronize()


def tile_of(tensor_map: int, buffer: int, **changes: Any) -> c.CreateTensorMap:
    """Returns the command for a matrix of 32 x 64 floats."""
    fields: dict[str, Any] = {
        "dtype": "float32", "shape": [32, 64], "strides": [128], "tile": c.CreateTensorMap.Tile(box=[32, 8]), **changes
    }  # fmt: skip
    return c.CreateTensorMap(tensor_map=tensor_map, buffer=buffer, **fields)


def test_invalid_and_foreign_handles_are_refused(raw: Raw) -> None:
    buffer = raw.buffer(bytes(64 * 32 * 4))
    assert refused(raw.call, "CreateTensorMap", tile_of(0, buffer)).reason == Reason.INVALID_ARGUMENT
    assert refused(raw.call, "CreateTensorMap", tile_of(raw.mint(), 1 << 60)).reason == Reason.INVALID_HANDLE
    refusal = refused(raw.call, "DestroyTensorMap", c.DestroyTensorMap(tensor_map=1 << 60))
    assert refusal.reason == Reason.INVALID_HANDLE and refusal.details["kind"] == "tensor map"
    function = raw.function(PLAIN, "look")
    arguments = [c.Argument(tensor_map=buffer), c.Argument(pointer=c.Argument.Pointer(buffer=buffer))]
    dim = c.Dim3(x=1, y=1, z=1)
    launch = c.Launch(function=function, grid=dim, block=dim, arguments=arguments)
    refusal = refused(raw.call, "Launch", launch)
    assert refusal.reason == Reason.INVALID_HANDLE and refusal.details["kind"] == "tensor map"


def test_handle_is_created_and_destroyed_once(stream: Execute) -> None:
    stream.batch(c.Command(allocate=c.Allocate(buffer=8, size=64 * 32 * 4)), c.Command(create_tensor_map=tile_of(9, 8)))
    again = stream.ask(c.Command(create_tensor_map=tile_of(9, 8)))
    assert from_status(again.error).reason == Reason.HANDLE_IN_USE
    stream.ask(c.Command(destroy_tensor_map=c.DestroyTensorMap(tensor_map=9)))
    twice = stream.ask(c.Command(destroy_tensor_map=c.DestroyTensorMap(tensor_map=9)))
    assert from_status(twice.error).reason == Reason.INVALID_HANDLE


def test_map_of_failed_buffer_is_skipped_and_reported_once(gpu: hearth.Device) -> None:
    total = gpu.properties.total_memory
    x = gpu.empty((total // 128 + 1, 128), np.uint8)
    tile = x.tensor_map((8, 128))
    out = gpu.zeros(1, np.int32)
    look(gpu)((1,), (1,), (tile, out))
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        gpu.synchronize()
    assert [failure.command for failure in caught.value.failures] == ["allocate"]
    gpu.synchronize()


def test_memory_stays_while_a_tensor_map_needs_it(gpu: hearth.Device) -> None:
    """A map whose creation failed keeps the memory as well: the handle holds it until it is destroyed."""
    before = gpu.memory_usage().bytes_in_use
    x = gpu.zeros((64, 32), np.float32)
    tile = x.tensor_map((8, 32))
    x.free()
    settled(gpu)
    assert gpu.memory_usage().bytes_in_use == before + 64 * 32 * 4
    tile.free()
    settled(gpu)
    assert gpu.memory_usage().bytes_in_use == before
    with pytest.raises(hearth.InvalidHandleError):
        look(gpu)((1,), (1,), (tile, gpu.zeros(1, np.int32)))
    gpu.synchronize()


def settled(gpu: hearth.Device) -> None:
    try:
        gpu.synchronize()
    except hearth.UnsupportedError:
        assert "tensor_maps" not in gpu.properties.features


def test_tensor_maps_end_with_their_session(lossy: DaemonProcess) -> None:
    before = lossy.gauge("memory_in_use_bytes")
    with Raw(lossy.unix) as session, session.execute() as stream:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=77, size=1 << 20)),
            c.Command(create_tensor_map=tile_of(78, 77)),
            c.Command(free=c.Free(buffers=[77])),
        )
        stream.failures()
        wait_until(lambda: lossy.gauge("memory_in_use_bytes") == before + (1 << 20), "the memory that is held")
    wait_until(lambda: lossy.gauge("memory_in_use_bytes") == before, "the memory's return")


# ---- with TMA ----


@on_gpu
def test_tile_is_copied_between_arrays(gpu: hearth.Device) -> None:
    start = np.random.default_rng(0).random((64, 96), np.float32)
    x, y = gpu.asarray(start), gpu.zeros((64, 96), np.float32)
    move = gpu.RawModule(code=TMA).get_function("move")
    source, target = x.tensor_map((8, 32), l2_promotion="l2_128b"), y.tensor_map((8, 32))
    for row in range(0, 64, 8):
        for column in range(0, 96, 32):
            move((1,), (32,), (source, target, np.int32(row), np.int32(column)), timeout=10)
    np.testing.assert_array_equal(y.get(), start)


@on_gpu
def test_launches_with_tensor_maps_are_ordered_across_streams(gpu: hearth.Device) -> None:
    move = gpu.RawModule(code=TMA).get_function("move")
    x, y, z = (gpu.zeros((8, 32), np.float32) for _ in range(3))
    maps = [array.tensor_map((8, 32)) for array in (x, y, z)]
    zero = np.int32(0)
    for value in range(20):
        streams = gpu.stream(), gpu.stream(), gpu.stream()
        x.fill(value, stream=streams[0])
        move((1,), (32,), (hearth.read_only(maps[0]), maps[1], zero, zero), stream=streams[1], timeout=10)
        move((1,), (32,), (hearth.read_only(maps[1]), maps[2], zero, zero), stream=streams[2], timeout=10)
        np.testing.assert_array_equal(z.get(), np.full((8, 32), value, np.float32))


@on_gpu
def test_a_part_of_an_array_with_a_pitch(gpu: hearth.Device) -> None:
    start = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    x, y = gpu.asarray(start), gpu.zeros((16, 32), np.float32)
    part = x[8:].tensor_map((8, 32), shape=(16, 32), strides=(256, 4))
    move = gpu.RawModule(code=TMA).get_function("move")
    for row in (0, 8):
        move((1,), (32,), (part, y.tensor_map((8, 32)), np.int32(row), np.int32(0)), timeout=10)
    np.testing.assert_array_equal(y.get(), start[8:24, :32])


@on_gpu
def test_launch_with_a_map_of_a_freed_array(gpu: hearth.Device) -> None:
    start = np.random.default_rng(0).random((8, 32), np.float32)
    x, y = gpu.asarray(start), gpu.zeros((8, 32), np.float32)
    source = x.tensor_map((8, 32))
    x.free()
    others = [gpu.full((8, 32), 9, np.float32) for _ in range(8)]  # these would get the memory if it were free
    gpu.RawModule(code=TMA).get_function("move")(
        (1,), (32,), (source, y.tensor_map((8, 32)), np.int32(0), np.int32(0)), timeout=10
    )
    np.testing.assert_array_equal(y.get(), start)
    assert others[0].get()[0, 0] == 9
    del source
    gc.collect()
    gpu.synchronize()


@on_gpu
def test_prepared_in_a_graph(gpu: hearth.Device) -> None:
    start = np.random.default_rng(0).random((8, 32), np.float32)
    x, y = gpu.asarray(start), gpu.zeros((8, 32), np.float32)
    move = gpu.RawModule(code=TMA).get_function("move")
    arguments = (x.tensor_map((8, 32)), y.tensor_map((8, 32)), np.int32(0), np.int32(0))
    with gpu.graph() as graph:
        move((1,), (32,), arguments)
    del arguments
    gc.collect()
    graph.launch(3)
    np.testing.assert_array_equal(y.get(), start)


@on_gpu
@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"box": (8, 33)}, ["box[0] is 33 elements, 132 bytes; without interleave it must be a multiple of 16 bytes"]),
        ({"box": (257, 32)}, ["box[1] is 257; it must lie between 1 and 256"]),
        ({"box": (8,)}, ["the box has 1 dimensions, the tensor 2"]),
        ({"box": (8, 32), "swizzle": "64b"}, ["box[0] takes 128 bytes; with swizzle 64b it may take at most 64"]),
        ({"box": (8, 32), "swizzle": "96b"}, ["swizzle is '96b'; it must be one of none, 32b, 64b, 128b"]),
        ({"box": (8, 32), "element_strides": (9, 1)}, ["element_strides[1] is 9; it must lie between 1 and 8"]),
        ({"box": (8, 32), "shape": (65, 32)}, ["8320 bytes from byte 0 of a buffer of 8192: 128 too many"]),
        ({"box": (8, 32), "shape": (64, 30)}, ["the stride of dimension 1 is 120 bytes; it must be a multiple of 16"]),
        ({"box": (8, 32), "dtype": "int32", "oob_fill": "nan"}, ["only floats have a nan"]),
        ({"im2col": hearth.Im2col((), (), 32, 8)}, ["the rank is 2; for im2col it must be 3, 4 or 5"]),
        (
            {"box": (0, 500), "interleave": "32b", "l2_promotion": "l2_1b"},
            ["box[1] is 0", "box[0] is 500", "the rank is 2; interleaved, it must be at least 3",
             "l2_promotion is 'l2_1b'",
             "swizzle is none; with interleave 32b it must be 32b"],
        ),
    ],
)  # fmt: skip
def test_one_error_names_everything_that_is_wrong(
    gpu: hearth.Device, options: dict[str, Any], messages: list[str]
) -> None:
    x = gpu.zeros((64, 32), np.float32)
    x.tensor_map(**options)
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert caught.value.reason == Reason.TENSOR_MAP_INVALID
    assert all(message in caught.value.message for message in messages)
    assert caught.value.details["failures"] == str(len(messages))
    saxpy_works(gpu)


@on_gpu
@pytest.mark.parametrize(
    ("feature", "options"),
    [
        ("tensor_map_im2col_wide", {"im2col": hearth.Im2colWide(-1, 1, 16, 8), "swizzle": "64b"}),
        ("tensor_map_im2col_wide", {"im2col": hearth.Im2colWide(0, 0, 32, mode="w128"), "swizzle": "128b"}),
        ("tensor_map_swizzle_atoms", {"box": (1, 1, 8, 16), "swizzle": "128b_atom_32b"}),
        ("tensor_map_swizzle_atoms", {"box": (1, 1, 8, 16), "swizzle": "128b_atom_32b_flip_8b"}),
        ("tensor_map_swizzle_atoms", {"box": (1, 1, 8, 16), "swizzle": "128b_atom_64b"}),
    ],
)
def test_maps_of_newer_devices_are_made_there_and_refused_by_name_elsewhere(
    gpu: hearth.Device, feature: str, options: dict[str, Any]
) -> None:
    x = gpu.zeros((2, 4, 8, 32), np.float32)
    x.tensor_map(**options)
    properties = gpu.properties
    if feature in properties.features:
        assert properties.compute_capability >= (10, 0)
        gpu.synchronize()
        return
    with pytest.raises(hearth.UnsupportedError) as caught:
        gpu.synchronize()
    assert caught.value.details["feature"] == feature and "10.0" in caught.value.message
    assert feature in (caught.value.fix or "")
    saxpy_works(gpu)


@on_gpu
def test_types_without_a_tensor_map_are_refused_by_name(gpu: hearth.Device) -> None:
    for dtype in (np.bool_, np.complex64):
        gpu.zeros((64, 32), dtype).tensor_map((8, 16))
        with pytest.raises(hearth.LaunchError, match=f"dtype {np.dtype(dtype)} has no tensor map type"):
            gpu.synchronize()


@on_gpu
def test_a_misaligned_start_is_refused(gpu: hearth.Device) -> None:
    x = gpu.zeros(64 * 32 + 4, np.float32)
    x[1 : 1 + 64 * 32].reshape(64, 32).tensor_map((8, 32))
    with pytest.raises(hearth.LaunchError, match="its address must be a multiple of 16"):
        gpu.synchronize()
    x[4:].reshape(64, 32).tensor_map((8, 32))
    gpu.synchronize()
