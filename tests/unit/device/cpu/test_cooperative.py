"""Cooperative launches: every block runs at the same time, and the grid has a barrier."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import LaunchAttributes
from hearthd.device.cpu import occupancy
from hearthd.device.cpu.launch import CpuLauncher
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.cpu.toolchain import find_toolchain
from hearthd.shared.device_spec import DeviceSpec
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each round reads what other blocks wrote in the one before; the last element is the sum of all that came by.
extern "C" __global__ void rotate(int* a, int* b, int n, int rounds) {
    cg::grid_group grid = cg::this_grid();
    unsigned i = grid.thread_rank();
    for (int round = 0; round < rounds; ++round) {
        if (i < n) b[i] = a[(i + 37) % n] + 1;
        grid.sync();
        int* swap = a; a = b; b = swap;
    }
}
extern "C" __global__ void step(const int* a, int* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = a[(i + 37) % n] + 1;
}
// Shared memory belongs to a block, also while the others are there.
extern "C" __global__ void shared_is_private(int* out) {
    __shared__ int mine[64];
    extern __shared__ int dynamic[];
    mine[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
    dynamic[threadIdx.x] = -mine[threadIdx.x];
    cg::sync(cg::this_grid());
    int other = blockDim.x - 1 - threadIdx.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine[other] + 2 * dynamic[other];
}
// A barrier that the program implements itself: it requires that all blocks are resident.
extern "C" __global__ void own_barrier(unsigned* count, int* out) {
    if (threadIdx.x == 0) {
        atomicAdd(count, 1u);
        while (atomicAdd(count, 0u) < gridDim.x) __nanosleep(1000);
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = *(volatile unsigned*)count;
}
// Threads that have nothing to do leave early; the barrier counts those that stay.
extern "C" __global__ void few_stay(int* marks, int* out) {
    if (threadIdx.x >= 3) return;
    marks[blockIdx.x * 3 + threadIdx.x] = 1;
    cg::this_grid().sync();
    int sum = 0;
    for (unsigned i = 0; i < 3 * gridDim.x; ++i) sum += marks[i];
    out[blockIdx.x * 3 + threadIdx.x] = sum;
}
extern "C" __global__ void valid(int* out) { out[blockIdx.x] = cg::this_grid().is_valid(); }
extern "C" __global__ void meets(int* out) { cg::this_grid().sync(); out[blockIdx.x] = 1; }
extern "C" __global__ void one_leaves(int* out) {
    if (blockIdx.x == 1) return;
    cg::this_grid().sync();
}
extern "C" __global__ void mixed(int* out) {
    if (threadIdx.x == 0) cg::this_grid().sync();
    else __syncthreads();
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE)


def _stepped(kernels: Kernels, start: np.ndarray, rounds: int) -> np.ndarray:
    a, b = start.copy(), np.zeros_like(start)
    for _ in range(rounds):
        kernels("step", 32, 64, a, b, np.int32(len(a)))
        a, b = b, a
    return a


@pytest.mark.parametrize("grid", [(1,), (7,), (4, 2, 2), (32,)])
def test_synchronising_grid_equals_one_launch_for_each_step(kernels: Kernels, grid: tuple[int, ...]) -> None:
    n = int(np.prod(grid)) * 64 - 5
    start = np.random.default_rng(0).integers(0, 1000, n).astype(np.int32)
    a, b = start.copy(), np.zeros_like(start)
    kernels("rotate", grid, 64, a, b, np.int32(n), np.int32(5), cooperative=True)
    np.testing.assert_array_equal(b, _stepped(kernels, start, 5))


def test_shared_memory_stays_with_its_block(kernels: Kernels) -> None:
    out = np.zeros(16 * 64, np.int32)
    kernels("shared_is_private", 16, 64, out, shared=256, cooperative=True)
    block, thread = np.divmod(np.arange(16 * 64), 64)
    np.testing.assert_array_equal(out, -(block * 1000 + 63 - thread))


def test_blocks_that_synchronise_through_memory(kernels: Kernels) -> None:
    count, out = np.zeros(1, np.uint32), np.zeros(24 * 33, np.int32)
    kernels("own_barrier", 24, 33, count, out, cooperative=True)
    np.testing.assert_array_equal(out, 24)


def test_threads_that_have_returned_are_not_waited_for(kernels: Kernels) -> None:
    marks, out = np.zeros(30, np.int32), np.zeros(30, np.int32)
    kernels("few_stay", 10, 40, marks, out, cooperative=True)
    np.testing.assert_array_equal(out, 30)


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_grid_is_valid_in_a_cooperative_launch_only(kernels: Kernels, cooperative: bool) -> None:
    out = np.full(5, -1, np.int32)
    kernels("valid", 5, 1, out, cooperative=cooperative)
    np.testing.assert_array_equal(out, int(cooperative))


def test_concurrent_launches_do_not_synchronise_with_each_other(kernels: Kernels) -> None:
    start = np.arange(8 * 64, dtype=np.int32)
    expected = _stepped(kernels, start, 20)
    results = [(start.copy(), np.zeros_like(start)) for _ in range(4)]

    def launch(a: np.ndarray, b: np.ndarray) -> None:
        for _ in range(5):
            a[:] = start
            kernels("rotate", 8, 64, a, b, np.int32(len(start)), np.int32(20), cooperative=True)

    threads = [threading.Thread(target=launch, args=pair) for pair in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, _ in results:
        np.testing.assert_array_equal(a, expected)


# ---- launches that cannot continue are reported ----


@pytest.fixture(scope="module")
def image(kernels: Kernels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "module.so"
    path.write_bytes(kernels.image)
    return path


@pytest.mark.parametrize(
    "name, cooperative, block, message",
    [
        ("meets", False, 4, "grid.sync() in a launch that is not cooperative: block: [0,0,0], thread: [0,0,0]"),
        ("one_leaves", True, 4, "deadlock: 3 of 4 blocks wait in grid.sync(), and the others have returned without it"),
        ("mixed", True, 4, "grid.sync() in some threads of a block, __syncthreads() in others"),
    ],
)
def test_grid_that_cannot_synchronise_ends_the_process(
    image: Path, name: str, cooperative: bool, block: int, message: str
) -> None:
    script = f"""
    import pathlib, struct, numpy as np
    from hearthd.device.cpu.module import CpuModule
    from hearthd.device.cpu.toolchain import find_toolchain
    module = CpuModule(pathlib.Path({str(image)!r}).read_bytes(), find_toolchain())
    out = np.zeros(64, np.int32)
    params = struct.pack("=Q", out.ctypes.data)
    module.function({name!r}).launch((4 if {cooperative} else 1, 1, 1), ({block}, 1, 1), 0, params, {cooperative})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGABRT
    assert message in done.stderr


# ---- the backend's limits ----


@pytest.mark.parametrize(
    "threads, max_threads, shared, blocks",
    [
        (1, 1024, 0, 16),
        (128, 1024, 0, 16),
        (129, 1024, 0, 12),  # five warps
        (1024, 1024, 0, 2),
        (1024, 512, 0, 0),
        (0, 1024, 0, 0),
        (32, 1024, 227 << 10, 1),
        (32, 1024, 100 << 10, 2),
    ],
)
def test_blocks_of_a_multiprocessor(threads: int, max_threads: int, shared: int, blocks: int) -> None:
    assert occupancy.blocks_per_multiprocessor(threads, max_threads, shared) == blocks


@given(st.integers(1, 1024), st.integers(0, 227 << 10))
def test_no_block_holds_more_threads_than_the_suggested_one(max_threads: int, shared: int) -> None:
    best = occupancy.suggested_block(max_threads, shared)
    assert 0 < best <= max_threads
    most = best * occupancy.blocks_per_multiprocessor(best, max_threads, shared)
    for threads in range(1, max_threads + 1):
        held = threads * occupancy.blocks_per_multiprocessor(threads, max_threads, shared)
        assert held <= most
        assert held < most or threads <= best


def test_more_blocks_than_are_resident_are_refused_with_the_numbers(kernels: Kernels) -> None:
    function = kernels.module.function("meets")
    out = np.zeros(64, np.int32)
    params = bytearray(out.ctypes.data.to_bytes(8, "little"))
    stream = CpuStream("test", lambda: None)
    done = threading.Event()
    launcher, cooperative = CpuLauncher(find_toolchain(), 2), LaunchAttributes(cooperative=True)
    assert launcher.blocks_per_multiprocessor(function, 256, 0) == 8
    launcher.launch(function, (16, 1, 1), (256, 1, 1), 0, stream, params, cooperative)
    stream.submit(done.set)
    assert done.wait(30)
    np.testing.assert_array_equal(out, [1] * 16 + [0] * 48)
    with pytest.raises(Refusal) as caught:
        launcher.launch(function, (17, 1, 1), (256, 1, 1), 0, stream, params, cooperative)
    assert caught.value.reason is Reason.RESIDENCY_EXCEEDED
    assert caught.value.details["blocks"] == "17" and caught.value.details["allowed"] == "16"
    stream.close()


def test_clusters_are_refused_by_name(kernels: Kernels) -> None:
    function = kernels.module.function("meets")
    stream = CpuStream("test", lambda: None)
    with pytest.raises(Refusal) as caught:
        launcher = CpuLauncher(find_toolchain(), 2)
        launcher.launch(function, (2, 1, 1), (1, 1, 1), 0, stream, bytearray(8), LaunchAttributes(cluster=(2, 1, 1)))
    assert caught.value.reason is Reason.UNSUPPORTED and caught.value.details["feature"] == "clusters"
    server = CpuServer(DeviceSpec(0, "cpu", 0), find_toolchain())
    with pytest.raises(Refusal) as caught:
        server.max_clusters(function, (2, 1, 1), (32, 1, 1), 0)
    assert caught.value.reason is Reason.UNSUPPORTED
    server.close()
    stream.close()


@settings(max_examples=30)
@given(st.integers(1, 1024), st.integers(1, 227 << 10))
def test_more_threads_or_shared_memory_never_hold_more_blocks(threads: int, shared: int) -> None:
    blocks = occupancy.blocks_per_multiprocessor(threads, 1024, shared)
    assert occupancy.blocks_per_multiprocessor(threads - 1 or 1, 1024, shared) >= blocks
    assert occupancy.blocks_per_multiprocessor(threads, 1024, shared - 1) >= blocks
    assert blocks * threads <= occupancy.THREADS and blocks * shared <= occupancy.SHARED_BYTES
