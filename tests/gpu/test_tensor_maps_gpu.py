"""Tensor maps on a real tensor memory accelerator: tiles and im2col columns, in and out, compared with NumPy."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend.compiler import Source
from hearthd.device.backend.tensor_map import ATOMS, Im2col, Im2colWide, TensorMapSpec, Tile, check
from hearthd.device.backend.tensor_map import SWIZZLES as SPANS

if TYPE_CHECKING:
    from hearthd.device.cuda.launch import CudaFunction
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu

SOURCE = r"""
struct alignas(64) TensorMap { unsigned long long opaque[16]; };  // CUtensorMap

__device__ unsigned in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// One thread announces `bytes` and starts a copy; all wait until they have come, a few seconds at most.
__device__ void announce(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
                 :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ void wait_for(unsigned barrier) {
    long long start = clock64();
    for (unsigned done = 0; !done;) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier) : "memory");
        if (clock64() - start > 4000000000ll) __trap();
    }
}
__device__ void give(unsigned* out, const unsigned* tile, unsigned bytes) {
    for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) out[i] = tile[i];
}
extern "C" __global__ void load(const __grid_constant__ TensorMap map, int x, int y, unsigned bytes, unsigned* out) {
    __shared__ alignas(1024) unsigned tile[8192];
    __shared__ alignas(8) unsigned long long barrier;
    if (threadIdx.x == 0) {
        announce(in_shared(&barrier), bytes);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(in_shared(tile)), "l"(&map), "r"(x), "r"(y), "r"(in_shared(&barrier)) : "memory");
    }
    __syncthreads();
    wait_for(in_shared(&barrier));
    give(out, tile, bytes);
}
extern "C" __global__ void store(const __grid_constant__ TensorMap map, int x, int y, unsigned bytes,
                                 const unsigned* in) {
    __shared__ alignas(1024) unsigned tile[8192];
    for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) tile[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&map), "r"(x), "r"(y), "r"(in_shared(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
extern "C" __global__ void load_im2col(const __grid_constant__ TensorMap map, int c, int w, int h, int n,
                                       unsigned short off_w, unsigned short off_h, unsigned bytes, unsigned* out) {
    __shared__ alignas(1024) unsigned tile[8192];
    __shared__ alignas(8) unsigned long long barrier;
    if (threadIdx.x == 0) {
        announce(in_shared(&barrier), bytes);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
                     :: "r"(in_shared(tile)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(in_shared(&barrier)),
                        "h"(off_w), "h"(off_h) : "memory");
    }
    __syncthreads();
    wait_for(in_shared(&barrier));
    give(out, tile, bytes);
}
"""


class Bench:
    """Arrays on one GPU, and the kernels above."""

    def __init__(self, server: CudaServer) -> None:
        self.server = server
        self.stream = server.create_stream()
        self._module = server.load(server.compiler.compile(Source(SOURCE)))
        self._held: list[Any] = []

    def function(self, name: str) -> CudaFunction:
        return self._module.function(name)

    def put(self, array: np.ndarray) -> int:
        """Copies `array` to device memory; returns its address."""
        data = np.ascontiguousarray(array).tobytes()
        memory = self.server.allocate(len(data), self.stream)
        self._held.append(memory)
        host = self.server.allocate_host(len(data))
        assert host is not None
        host.view[:] = data
        self.server.upload(memory.address, host, 0, len(data), self.stream)
        self.finish()
        self.server.free_host(host)
        return memory.address

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        host = self.server.allocate_host(like.nbytes)
        assert host is not None
        self.server.download(host, 0, address, like.nbytes, self.stream)
        self.finish()
        found = np.frombuffer(bytes(host.view), like.dtype).reshape(like.shape)
        self.server.free_host(host)
        return found

    def finish(self) -> None:
        event = self.server.record(self.stream)
        deadline = time.monotonic() + 20
        while not self.server.done(event):
            assert time.monotonic() < deadline, "the work of the device does not end"
            time.sleep(0.0002)
        self.server.release_event(event)

    def run(self, name: str, *values: bytes) -> None:
        self.launch(self.function(name), *values)

    def launch(self, function: CudaFunction, *values: bytes) -> None:
        params = bytearray(max(offset + size for offset, size in function.parameters))
        for (offset, size), value in zip(function.parameters, values, strict=True):
            assert len(value) == size
            params[offset : offset + size] = value
        self.server.launch(function, (1, 1, 1), (128, 1, 1), 0, self.stream, params)
        self.finish()

    def close(self) -> None:
        for memory in self._held:
            self.server.free(memory, self.stream)
        self.server.destroy_stream(self.stream)


@pytest.fixture
def bench(server: CudaServer) -> Iterator[Bench]:
    if "tensor_maps" not in server.properties.features:
        pytest.skip("tensor maps need compute capability 9.0")
    made = Bench(server)
    yield made
    made.close()


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def matrix_spec(array: np.ndarray, box: tuple[int, int], **more: Any) -> TensorMapSpec:
    """Returns the specification of a C-contiguous matrix; `box` is in NumPy's order."""
    rows, columns = array.shape
    fields: dict[str, Any] = {"element_strides": (1, 1), **more}
    return TensorMapSpec(
        array.dtype.name, (columns, rows), (array.strides[0],), access=Tile((box[1], box[0])), **fields
    )


def load(bench: Bench, spec: TensorMapSpec, address: int, x: int, y: int, like: np.ndarray) -> np.ndarray:
    assert check(spec, address, 0, 1 << 40) == []
    out = bench.put(np.zeros_like(like))
    map_ = bench.server.encode_tensor_map(spec, address)
    assert len(map_) == 128 and any(map_)
    bench.run("load", map_, i32(x), i32(y), i32(like.nbytes), u64(out))
    return bench.get(out, like)


def cut(array: np.ndarray, y: int, x: int, shape: tuple[int, int], outside: Any = 0) -> np.ndarray:
    """Returns the box at (y, x), in which elements outside the array are replaced by `outside`."""
    found = np.full(shape, outside, array.dtype)
    for i, j in np.ndindex(shape):
        if 0 <= y + i < array.shape[0] and 0 <= x + j < array.shape[1]:
            found[i, j] = array[y + i, x + j]
    return found


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.int32, np.float32, np.float64, np.int64])
def test_a_tile_of_every_width_of_element(bench: Bench, dtype: type) -> None:
    x = np.arange(64 * 48).astype(dtype).reshape(64, 48)
    address = bench.put(x)
    like = np.zeros((8, 16), dtype)
    for row, column in [(0, 0), (5, 16), (56, 32)]:
        found = load(bench, matrix_spec(x, (8, 16)), address, column, row, like)
        np.testing.assert_array_equal(found, x[row : row + 8, column : column + 16])


@pytest.mark.parametrize("corner", [(-3, 0), (60, 40), (0, -4), (100, 0)])
def test_elements_outside_the_tensor_are_zero(bench: Bench, corner: tuple[int, int]) -> None:
    x = np.random.default_rng(0).random((64, 48), np.float32) + 1
    row, column = corner
    found = load(bench, matrix_spec(x, (8, 16)), bench.put(x), column, row, np.zeros((8, 16), np.float32))
    np.testing.assert_array_equal(found, cut(x, row, column, (8, 16)))


def test_elements_outside_the_tensor_are_nan_with_nan_fill(bench: Bench) -> None:
    x = np.random.default_rng(0).random((64, 48), np.float32)
    spec = matrix_spec(x, (8, 16), oob_fill="nan")
    found = load(bench, spec, bench.put(x), 40, 60, np.zeros((8, 16), np.float32))
    np.testing.assert_array_equal(found, cut(x, 60, 40, (8, 16), np.nan))


SWIZZLES = {
    "32b": (2, 1), "64b": (4, 1), "128b": (8, 1),
    "128b_atom_32b": (4, 2), "128b_atom_32b_flip_8b": (4, 2), "128b_atom_64b": (2, 4),
}  # fmt: skip
"""By swizzle: after how many lines of 128 bytes the pattern repeats, and by how many chunks of 16 bytes a line more
moves them (PTX ISA, "Swizzling modes")."""


def swizzled(flat: np.ndarray, swizzle: str) -> np.ndarray:
    """The bytes of a box as they lie in shared memory at a multiple of 1024: chunk c of a line changes places with
    chunk c xor (line modulo period) * step. A flip exchanges the halves of each chunk on every second line."""
    period, step = SWIZZLES[swizzle]
    lines = flat.view(np.uint8).reshape(-1, 8, 16)
    found = np.empty_like(lines)
    for line, chunks in enumerate(lines):
        for at, chunk in enumerate(chunks):
            flip = swizzle.endswith("_flip_8b") and line % 2 == 1
            found[line, at ^ (line % period * step)] = np.roll(chunk, 8) if flip else chunk
    return found.reshape(-1).view(flat.dtype)


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_swizzles_agree_with_the_ptx_manual(bench: Bench, swizzle: str) -> None:
    """Loads two boxes, and compares every byte of shared memory. A device without the mode refuses it by name."""
    columns = SPANS[swizzle] // 4
    x = np.random.default_rng(0).integers(0, 1 << 32, (32, columns), np.uint32)
    spec = matrix_spec(x, (16, columns), swizzle=swizzle, l2_promotion="l2_128b")
    address = bench.put(x)
    if swizzle in ATOMS and "tensor_map_swizzle_atoms" not in bench.server.properties.features:
        assert_refused_by_name(bench, spec, "tensor_map_swizzle_atoms")
        return
    if swizzle in ATOMS and bench.server.properties.compute_capability_major == 12:
        assert len(bench.server.encode_tensor_map(spec, address)) == 128
        pytest.skip("on 12.0 the copy to shared::cluster takes no swizzle atoms (PTX ISA, restrictions)")
    like = np.zeros((16, columns), np.uint32)
    for row in (0, 13):
        found = load(bench, spec, address, 0, row, like)
        np.testing.assert_array_equal(found.reshape(-1), swizzled(x[row : row + 16].copy().reshape(-1), swizzle))


def assert_refused_by_name(bench: Bench, spec: TensorMapSpec, feature: str) -> None:
    """Asserts that the device lacks the feature, because its capability is below 10.0 or its driver older than CUDA
    12.8, and that the refusal names both. Asked without the check, the driver answers with a map or an error, and the
    device still copies tiles."""
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked
    from hearthd.device.cuda.tensor_maps import encode_tensor_map

    properties = bench.server.properties
    (version,) = checked(driver.cuDriverGetVersion())
    assert properties.compute_capability_major < 10 or version < 12080
    with pytest.raises(Refusal) as caught:
        bench.server.encode_tensor_map(spec, 0x7F0000000000)
    assert caught.value.reason is Reason.UNSUPPORTED and caught.value.details["feature"] == feature
    assert "10.0" in caught.value.message and "12.8" in caught.value.message and feature in caught.value.fix
    if version < 12080:
        return
    claimed = node_pb2.DeviceProperties()
    claimed.CopyFrom(properties)
    claimed.features.append(feature)
    try:
        data = encode_tensor_map(claimed, spec, 0x7F0000000000)
    except Refusal as refusal:
        assert refusal.reason is Reason.TENSOR_MAP_INVALID and "the driver refuses it" in refusal.message
        print(f"{feature}: the driver of CUDA {version} refuses it as well: {refusal.details['cuda_status']}")
    else:
        assert len(data) == 128 and any(data)
        print(f"{feature}: the driver of CUDA {version} encodes it, PTX ISA needs sm_100")
    x = np.arange(64 * 32, dtype=np.int32).reshape(64, 32)
    found = load(bench, matrix_spec(x, (8, 32)), bench.put(x), 0, 8, np.zeros((8, 32), np.int32))
    np.testing.assert_array_equal(found, x[8:16])


def test_every_second_row(bench: Bench) -> None:
    x = np.arange(64 * 32, dtype=np.int32).reshape(64, 32)
    spec = matrix_spec(x, (16, 32), element_strides=(1, 2))
    found = load(bench, spec, bench.put(x), 0, 4, np.zeros((8, 32), np.int32))
    np.testing.assert_array_equal(found, x[4:20:2])


def test_rows_with_a_pitch(bench: Bench) -> None:
    x = np.arange(64 * 32, dtype=np.int32).reshape(64, 32)
    inner = x[:, 4:24]
    spec = TensorMapSpec("int32", (20, 64), (128,), (1, 1), Tile((8, 4)))
    found = load(bench, spec, bench.put(x) + 16, 16, 8, np.zeros((4, 8), np.int32))
    np.testing.assert_array_equal(found, cut(inner, 8, 16, (4, 8)))


def test_tile_is_stored_to_global_memory(bench: Bench) -> None:
    x = np.zeros((64, 48), np.float32)
    address = bench.put(x)
    tile = np.random.default_rng(0).random((8, 16), np.float32)
    map_ = bench.server.encode_tensor_map(matrix_spec(x, (8, 16)), address)
    bench.run("store", map_, i32(20), i32(30), i32(tile.nbytes), u64(bench.put(tile)))
    bench.run("store", map_, i32(40), i32(60), i32(tile.nbytes), u64(bench.put(tile)))  # cut off at both ends
    x[30:38, 20:36] = tile
    x[60:, 40:] = tile[:4, :8]
    np.testing.assert_array_equal(bench.get(address, x), x)


IMAGES, HEIGHT, WIDTH, CHANNELS = 2, 6, 5, 16


def columns(
    x: np.ndarray, start: tuple[int, int, int], offset: tuple[int, int], lower: tuple[int, int],
    upper: tuple[int, int], channels: slice, count: int,
) -> np.ndarray:  # fmt: skip
    """Returns the columns that im2col reads (PTX ISA, "Im2col mode"): `count` pixels from `start` (n, h, w) on, row by
    row through the box between the corners and on into the next image; `offset` (h, w) is added to each."""
    n, h, w = start
    found = np.zeros((count, channels.stop - channels.start), x.dtype)
    for at in range(count):
        i, j = h + offset[0], w + offset[1]
        if n < x.shape[0] and 0 <= i < x.shape[1] and 0 <= j < x.shape[2]:
            found[at] = x[n, i, j, channels]
        w += 1
        if w > x.shape[2] - 1 + upper[1]:
            w, h = lower[1], h + 1
        if h > x.shape[1] - 1 + upper[0]:
            h, n = lower[0], n + 1
    return found


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("start", ["first", "middle", "last"])
def test_columns_of_a_convolution(bench: Bench, padding: int, start: str) -> None:
    """A filter of 3 x 3: for each of its elements the pixels that it is applied to, with one column of them for each
    load."""
    x = np.arange(IMAGES * HEIGHT * WIDTH * CHANNELS, dtype=np.float32).reshape(IMAGES, HEIGHT, WIDTH, CHANNELS) + 1
    lower = (-padding, -padding)
    upper = (padding - 2, padding - 2)  # the filter reaches two further
    pixels, depth = 12, 8
    sizes, strides = x.shape[::-1], tuple(step for step in x.strides[2::-1])
    spec = TensorMapSpec("float32", sizes, strides, (1,) * 4, Im2col(lower[::-1], upper[::-1], depth, pixels))
    address = bench.put(x)
    assert check(spec, address, 0, x.nbytes) == []
    map_ = bench.server.encode_tensor_map(spec, address)
    rows = HEIGHT + 2 * padding - 2
    at = {"first": (0, lower[0], lower[1]), "middle": (0, lower[0] + rows - 1, lower[1] + 1),
          "last": (1, lower[0] + rows - 2, lower[1])}[start]  # fmt: skip
    like = np.zeros((pixels, depth), np.float32)
    for (off_h, off_w), c in itertools.product([(0, 0), (0, 2), (1, 1), (2, 2)], [0, 8]):
        out = bench.put(like)
        n, h, w = at
        bench.run(
            "load_im2col", map_, i32(c), i32(w), i32(h), i32(n), u16(off_w), u16(off_h), i32(like.nbytes), u64(out)
        )
        wanted = columns(x, at, (off_h, off_w), lower, upper, slice(c, c + depth), pixels)
        np.testing.assert_array_equal(bench.get(out, like), wanted, err_msg=f"offset {off_h, off_w}, channel {c}")


WIDE_SOURCE = (
    SOURCE
    + r"""
extern "C" __global__ void load_im2col_w(const __grid_constant__ TensorMap map, int c, int w, int h, int n,
                                         unsigned short halo, unsigned short off_w, unsigned bytes, unsigned* out) {
    __shared__ alignas(1024) unsigned tile[8192];
    __shared__ alignas(8) unsigned long long barrier;
    if (threadIdx.x == 0) {
        announce(in_shared(&barrier), bytes);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
                     :: "r"(in_shared(tile)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(in_shared(&barrier)),
                        "h"(halo), "h"(off_w) : "memory");
    }
    __syncthreads();
    wait_for(in_shared(&barrier));
    give(out, tile, bytes);
}
"""
)


def wide_spec(x: np.ndarray, wide: Im2colWide, swizzle: str) -> TensorMapSpec:
    """Builds the specification of columns along W of images in NHWC."""
    return TensorMapSpec(x.dtype.name, x.shape[::-1], x.strides[2::-1], (1,) * 4, wide, swizzle=swizzle)


@pytest.mark.parametrize("mode, pixels", [("w", 12), ("w128", 0), ("w128", 128)])
@pytest.mark.parametrize("swizzle", ["64b", "128b", "128b_atom_32b"])
def test_im2col_wide_by_the_driver_or_refused_by_name(bench: Bench, mode: str, pixels: int, swizzle: str) -> None:
    x = np.zeros((IMAGES, HEIGHT, WIDTH, CHANNELS), np.float32)
    spec = wide_spec(x, Im2colWide(-1, -1, 16, pixels, mode), swizzle)
    assert check(spec, 0x100, 0, x.nbytes) == []
    if "tensor_map_im2col_wide" in bench.server.properties.features:
        data = bench.server.encode_tensor_map(spec, 0x7F0000000000)
        assert len(data) == 128 and any(data)
    else:
        plain = wide_spec(x, Im2colWide(-1, -1, 16, pixels, mode), "64b")
        assert_refused_by_name(bench, plain, "tensor_map_im2col_wide")


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_columns_along_w(bench: Bench, offset: int) -> None:
    """The pixels that one column of a filter of width 3 covers in one row of a padded image."""
    if "tensor_map_im2col_wide" not in bench.server.properties.features:
        pytest.skip("im2col::w needs compute capability 10.0; the test above asserts the refusal")
    if bench.server.properties.compute_capability_major == 12:
        pytest.skip("on 12.0 the copy to shared::cluster has no im2col::w (PTX ISA)")
    width, depth = 16, 16
    x = np.arange(IMAGES * HEIGHT * width * depth, dtype=np.float32).reshape(IMAGES, HEIGHT, width, depth) + 1
    spec = wide_spec(x, Im2colWide(-1, -1, depth, width), "64b")
    map_ = bench.server.encode_tensor_map(spec, bench.put(x))
    like = np.zeros((width, depth), np.float32)
    out = bench.put(like)
    module = bench.server.load(bench.server.compiler.compile(Source(WIDE_SOURCE)))
    function = module.function("load_im2col_w")
    values = (map_, i32(0), i32(-1), i32(3), i32(1), u16(0), u16(offset), i32(like.nbytes), u64(out))
    bench.launch(function, *values)
    wanted = np.zeros_like(like)
    for at in range(width):
        w = at - 1 + offset
        if 0 <= w < width:
            wanted[at] = x[1, 3, w]
    np.testing.assert_array_equal(bench.get(out, like).reshape(-1), swizzled(wanted.reshape(-1), "64b"))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_rank_is_taken_by_the_driver(bench: Bench, rank: int) -> None:
    shape = (32,) * rank
    strides = tuple(128 * 32**axis for axis in range(rank - 1))
    spec = TensorMapSpec("float32", shape, strides, (1,) * rank, Tile((16, *(2,) * (rank - 1))))
    assert check(spec, 0x100, 0, 1 << 40) == []
    assert len(bench.server.encode_tensor_map(spec, 0x7F0000000000)) == 128


@pytest.mark.parametrize("interleave, swizzle, unit", [("16b", "none", 16), ("32b", "32b", 32)])
def test_interleaved_maps_are_taken_by_the_driver(bench: Bench, interleave: str, swizzle: str, unit: int) -> None:
    spec = TensorMapSpec(
        "uint8", (unit * 2, 8, 8, 2), (unit, unit * 8, unit * 128), (1,) * 4, Tile((unit, 4, 4, 1)), interleave, swizzle
    )
    assert check(spec, 0x100, 0, 1 << 40) == []
    assert len(bench.server.encode_tensor_map(spec, 0x7F0000000000)) == 128


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (0, 64)},
        {"strides": (200,)},
        {"element_strides": (1, 9)},
        {"access": Tile((16, 257))},
        {"access": Tile((15, 8))},
        {"access": Tile((64, 8)), "swizzle": "128b"},
        {"dtype": "int32", "oob_fill": "nan"},
        {"interleave": "16b"},
    ],
)
def test_driver_refuses_the_maps_that_the_checks_refuse(bench: Bench, changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "dtype": "float32", "shape": (48, 64), "strides": (192,), "element_strides": (1, 1), "access": Tile((16, 8)),
        **changes,
    }  # fmt: skip
    spec = TensorMapSpec(**fields)
    assert check(spec, 0x100, 0, 1 << 40)
    with pytest.raises(Refusal) as caught:
        bench.server.encode_tensor_map(spec, 0x7F0000000000)
    assert caught.value.reason is Reason.TENSOR_MAP_INVALID
    assert "the driver refuses it" in caught.value.message and caught.value.details["cuda_status"] == "1"


def test_a_misaligned_address_is_refused_by_the_driver(bench: Bench) -> None:
    spec = TensorMapSpec("float32", (48, 64), (192,), (1, 1), Tile((16, 8)))
    assert check(spec, 0x7F0000000000, 8, 1 << 40)
    with pytest.raises(Refusal) as caught:
        bench.server.encode_tensor_map(spec, 0x7F0000000008)
    assert caught.value.reason is Reason.TENSOR_MAP_INVALID
