"""mode="validate" on the CPU backend: reads outside of arrays and distant writes are noticed, named and contained."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import on_cpu

pytestmark = on_cpu

CODE = """
extern "C" __global__ void read_at(const int* x, long long at, int* out) { out[0] = x[at]; }
extern "C" __global__ void write_at(int* x, long long at, int value) {
    if (blockIdx.x == gridDim.x - 1) x[at] = value;
}
extern "C" __global__ void both(int* x, int* y, long long at) { y[at] = x[at] ^ 0x01010101; }
extern "C" __global__ void sum(const float4* x, int n, float* out) {
    float total = 0;
    for (int i = 0; i < n; i++) { float4 v = x[i]; total += v.x + v.y + v.z + v.w; }
    out[0] = total;
}
extern "C" __global__ void copy(const unsigned char* x, unsigned char* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    if (i < n) y[i] = x[i];
}
extern "C" __global__ void scatter(int* x, long long step, int n) {
    for (long long i = 1; i <= n; i++) x[i * step] = 1;
}
"""


@pytest.fixture
def module(gpu: hearth.Device) -> hearth.RawModule:
    return gpu.RawModule(code=CODE)


@pytest.mark.parametrize(
    ("at", "distance", "where"),
    [(100_000, 399_984, "after"), (-100_000, 400_000, "before"), (1 << 31, (1 << 33) - 16, "after")],
)
def test_a_distant_write_is_named_and_contained(
    gpu: hearth.Device, module: hearth.RawModule, at: int, distance: int, where: str
) -> None:
    arrays = [gpu.full(4, fill, np.int32) for fill in (1, 2, 3)]
    module.get_function("write_at")(3, 1, (arrays[1], np.int64(at), np.int32(7)), mode="validate")
    with pytest.raises(hearth.LaunchError, match=f"write_at wrote outside its buffers: {distance} bytes {where}") as e:
        gpu.synchronize()
    error = e.value
    assert error.reason == "OUT_OF_BOUNDS_WRITE" and error.details["argument"] == "0"
    assert error.details["first_byte"] == str(4 * at) and error.details["block"] == "2, 0, 0"
    assert [array.get().tolist() for array in arrays] == [[fill] * 4 for fill in (1, 2, 3)]


@pytest.mark.parametrize(
    ("at", "said"),
    [(4, "0 bytes after"), (-5000, "20000 bytes before"), (100_000, "399984 bytes after")],
)
def test_a_read_outside_is_reported(gpu: hearth.Device, module: hearth.RawModule, at: int, said: str) -> None:
    x, out = gpu.zeros(4, np.int32), gpu.zeros(1, np.int32)
    launch = module.get_function("read_at")
    launch(1, 1, (x, np.int64(3), out), mode="validate")
    gpu.synchronize()
    launch(1, 1, (x, np.int64(at), out), mode="validate")
    with pytest.raises(hearth.LaunchError, match=rf"read_at read outside its buffers: {said} argument 0") as e:
        gpu.synchronize()
    error = e.value
    assert error.reason == "OUT_OF_BOUNDS_READ"
    assert error.details["buffer_size"] == "16" and error.details["block"] == "0, 0, 0"
    assert x.get().tolist() == [0] * 4


def test_reads_and_writes_of_one_launch_are_both_named(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x, y = gpu.zeros(4, np.int32), gpu.zeros(8, np.int32)
    module.get_function("both")(1, 1, (x, y, np.int64(8)), mode="validate")
    with pytest.raises(hearth.LaunchError) as e:
        gpu.synchronize()
    assert e.value.reason == "OUT_OF_BOUNDS_WRITE"
    assert "wrote outside its buffers: 4 bytes after argument 1, an array of 32 bytes" in e.value.message
    assert "read outside its buffers: 16 bytes after argument 0, an array of 16 bytes" in e.value.message


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 255, 4095, 4096, 4097, 100_000])
def test_kernels_that_stay_inside_are_not_affected(gpu: hearth.Device, module: hearth.RawModule, size: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    x, y = gpu.asarray(data), gpu.zeros(size, np.uint8)
    module.get_function("copy")(max(1, -(-size // 256)), 256, (x, y, np.int32(size)), mode="validate")
    gpu.synchronize()
    np.testing.assert_array_equal(y.get(), data)


def test_vectors_are_aligned(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x, out = gpu.ones(4 * 1001, np.float32), gpu.zeros(1, np.float32)
    module.get_function("sum")(1, 1, (x, np.int32(1001), out), mode="validate")
    assert out.get()[0] == 4 * 1001


def test_many_stray_accesses_end_in_one_error(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x = gpu.zeros(4, np.int32)
    module.get_function("scatter")(1, 1, (x, np.int64(10_000), np.int32(500)), mode="validate")
    with pytest.raises(hearth.LaunchError, match="wrote outside its buffers: 39984 bytes after") as e:
        gpu.synchronize()
    assert len(e.value.message) < 2000
    assert x.get().tolist() == [0] * 4
    for _ in range(100):  # guards are released
        module.get_function("write_at")(1, 1, (x, np.int64(0), np.int32(7)), mode="validate")
    assert x.get().tolist() == [7, 0, 0, 0]
