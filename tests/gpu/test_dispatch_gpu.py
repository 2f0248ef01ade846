"""Dispatch on a GPU: device times compared with CuPy's, the memory pool, and copies during kernels.

The general tests of dispatch are `tests/daemon/launch/test_dispatch*.py`, which run on GPUs with
HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth import InOut, Out

pytestmark = pytest.mark.gpu

KERNELS = r"""
extern "C" __global__ void spin(long long cycles, unsigned char* out) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    out[0] = 1;
}
extern "C" __global__ void triple(unsigned* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 3;
}
extern "C" __global__ void nothing(unsigned char* out) {}
"""
CYCLES = np.int64(20_000_000)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A private daemon of this module."""
    with tempfile.TemporaryDirectory(prefix="hearth-gpu-") as folder:
        config = Path(folder) / "hearth.toml"
        config.write_text(f"[cache]\ndir = {json.dumps(folder + '/compiled')}\n")
        arguments = ["--config", str(config), "--backend", "cuda", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        arguments += ["--lanes", "", "--unix", f"{folder}/hearth.sock"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
        command = [sys.executable, "-m", "hearthd", "serve", *arguments]
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("hearthd ready"), (Path(folder) / "log").read_text()
            yield f"unix:{folder}/hearth.sock"
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def gpu(target: str) -> Iterator[hearth.Device]:
    with hearth.connect(target) as node:
        yield node.device(0)


def timed(gpu: hearth.Device, kernel: hearth.Function, *args: object, block: int = 1) -> hearth.DispatchTiming:
    pending = gpu.dispatch_async(kernel, 1, block, list(args), timed=True)
    pending.result()
    return pending.timing


def test_kernel_times_are_the_devices_own(gpu: hearth.Device) -> None:
    """The time is the same with and without a compile, for any copies, and equals the time of CuPy's events for the
    same kernel."""
    import cupy

    cold = []
    for _ in range(3):
        fresh = KERNELS + f"// {os.urandom(8).hex()}"
        spin = gpu.RawModule(code=fresh).get_function("spin")
        cold.append(timed(gpu, spin, CYCLES, Out(64, np.uint8)))
    small = [timed(gpu, spin, CYCLES, Out(64, np.uint8)) for _ in range(5)]
    large = [timed(gpu, spin, CYCLES, Out(256 << 20, np.uint8)) for _ in range(3)]
    kernel = cupy.RawKernel(KERNELS, "spin")
    out = cupy.zeros(64, cupy.uint8)
    theirs = []
    for _ in range(6):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel((1,), (1,), (CYCLES, out))
        end.record()
        end.synchronize()
        theirs.append(cupy.cuda.get_elapsed_time(start, end) * 1e6)
    reference = min(theirs)
    for timing in (*cold, *small, *large):
        assert timing.kernel_ns is not None and timing.download_ns is not None and timing.upload_ns is not None
        assert 0.7 * reference < timing.kernel_ns  # clock rates vary
        assert timing.upload_ns + timing.kernel_ns + timing.download_ns <= timing.wall_ns
        assert timing.enqueue_ns + timing.wait_ns <= timing.wall_ns
    for timings in (cold, small, large):
        # Single times also contain the time slices that the GPU gives to the processes of other tests.
        assert np.min([each.kernel_ns for each in timings]) < 1.5 * reference
    for timing in large:
        assert timing.download_ns > 20 * np.median([each.download_ns for each in small])
        assert 256 * 2**20 / timing.download_ns < 70, "GB/s, no more than the bus has"


def test_more_iterations_than_the_driver_queues(gpu: hearth.Device) -> None:
    triple = gpu.RawModule(code=KERNELS).get_function("triple")
    n = 5000
    pending = gpu.dispatch_async(triple, 1, 32, [InOut(np.ones(32, np.uint32)), np.int32(32)], iterations=n, timed=True)
    with gpu.stream() as beside:
        x = gpu.ones(32, np.uint32)
        triple((1,), (32,), (x, np.int32(32)))
        beside.synchronize()  # other streams continue in the meantime
    (out,) = pending.result()
    assert (out == pow(3, n, 1 << 32)).all() and (x.get() == 3).all()


def test_outputs_contain_no_previous_contents_of_the_pool(gpu: hearth.Device) -> None:
    nothing = gpu.RawModule(code=KERNELS).get_function("nothing")
    size = 3 << 20
    for filler in range(3):
        gpu.full(4 * size, 0xA0 + filler, np.uint8).free()
    gpu.synchronize()
    reserved = None
    for _ in range(50):
        (out,) = gpu.dispatch(nothing, 1, 1, [Out(size, np.uint8)])
        assert not out.any()
        now = gpu.memory_usage().bytes_reserved
        reserved = reserved or now
        assert now == reserved
    assert gpu.memory_usage().bytes_in_use == 0


def test_copies_run_concurrently_with_kernels_of_other_dispatches(gpu: hearth.Device) -> None:
    """While the kernel of one dispatch runs for a quarter of a second, another dispatch on another stream completes."""
    module = gpu.RawModule(code=KERNELS)
    spin, triple = module.get_function("spin"), module.get_function("triple")
    x = np.arange(4 << 20, dtype=np.uint32)
    args = [InOut(x), np.int32(x.size)]
    with gpu.stream():
        gpu.dispatch(triple, x.size // 256, 256, args)
    slow = gpu.dispatch_async(spin, 1, 1, [np.int64(500_000_000), Out(4, np.uint8)])
    with gpu.stream():
        (out,) = gpu.dispatch(triple, x.size // 256, 256, args)
    assert slow.state == "pending"
    np.testing.assert_array_equal(out, x * np.uint32(3))
    assert slow.result()[0][0] == 1


def test_more_memory_than_the_device_has_is_refused_immediately(gpu: hearth.Device) -> None:
    nothing = gpu.RawModule(code=KERNELS).get_function("nothing")
    total = gpu.properties.total_memory
    before = gpu.memory_usage()
    for size in (int(0.95 * total), 2 * total, 1 << 60):
        with pytest.raises(hearth.OutOfMemoryError) as caught:
            gpu.dispatch(nothing, 1, 1, [Out(size, np.uint8, range=slice(0, 1))])
        assert int(caught.value.details["requested"]) >= size
    after = gpu.memory_usage()
    assert (after.allocations, after.bytes_in_use, after.bytes_reserved) == (
        before.allocations, before.bytes_in_use, before.bytes_reserved,
    )  # fmt: skip
