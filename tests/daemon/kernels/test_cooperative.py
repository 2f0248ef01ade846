"""Cooperative launches: a grid that synchronises, with up to as many blocks as can be resident on the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

import hearth
import hearth.aio
from tests.support.daemon.harness import BACKEND, DaemonProcess, on_cpu, wait_until
from tests.support.daemon.kernels import COOPERATIVE, saxpy_works

CODE = (
    COOPERATIVE
    + r"""
extern "C" __global__ void one_round(const int* a, int* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = 3 * a[(i + 37) % n] + 1;
}
extern "C" __global__ void valid(int* out) { out[blockIdx.x] = cg::this_grid().is_valid(); }
extern "C" __global__ void half_meets(int* out) {
    if (blockIdx.x % 2) cg::this_grid().sync();
    out[blockIdx.x] = 1;
}
"""
)


@pytest.fixture
def kernel(gpu: hearth.Device) -> Callable[[str], hearth.Function]:
    if "cooperative_launch" not in gpu.properties.features:
        pytest.skip("the device has no cooperative launches")
    return gpu.RawModule(code=CODE).get_function


Kernel = Callable[[str], hearth.Function]


def by_rounds(start: np.ndarray, count: int) -> np.ndarray:
    x = start
    for _ in range(count):
        x = (3 * np.roll(x, -37) + 1).astype(np.int32)
    return x


@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (2, 256), (7, 33), (4, 128)])
def test_a_grid_that_synchronises_equals_one_launch_a_round(
    gpu: hearth.Device, kernel: Kernel, blocks: int, threads: int
) -> None:
    n, count = 1000, 6
    start = np.random.default_rng(blocks).integers(0, 1000, n).astype(np.int32)
    a, b = gpu.asarray(start), gpu.zeros(n, np.int32)
    kernel("rounds")((blocks,), (threads,), (a, b, np.int32(n), np.int32(count)), cooperative=True)
    c, d = gpu.asarray(start), gpu.zeros(n, np.int32)
    for _ in range(count):
        kernel("one_round")((n // 100,), (100,), (c, d, np.int32(n)))
        c, d = d, c
    np.testing.assert_array_equal(a.get(), c.get())
    np.testing.assert_array_equal(a.get(), by_rounds(start, count))


def test_a_grid_in_three_dimensions(gpu: hearth.Device, kernel: Kernel) -> None:
    out = gpu.zeros(4, np.int32)
    kernel("valid")((2, 2, 1), (8, 2, 2), (out,), cooperative=True)
    assert out.get().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_grid_is_valid_in_a_cooperative_launch_only(gpu: hearth.Device, kernel: Kernel, cooperative: bool) -> None:
    out = gpu.full(3, -1, np.int32)
    kernel("valid")((3,), (32,), (out,), cooperative=cooperative)
    # A GPU distinguishes the two only if the grid has more blocks than can be resident.
    assert out.get().tolist() == [int(cooperative or BACKEND == "cuda")] * 3


def test_cooperative_launch_stays_cooperative_when_its_geometry_repeats(gpu: hearth.Device, kernel: Kernel) -> None:
    """A repeated launch of the same geometry takes a shorter path through the daemon."""
    meet, valid, outs = kernel("meet"), kernel("valid"), [gpu.zeros(2, np.int32) for _ in range(5)]
    for out in outs:
        meet((2,), (32,), (out,), 128, cooperative=True)
        out.get()
    assert [out.get().tolist() for out in outs] == [[1, 2]] * 5
    for _ in range(5):
        valid((2,), (32,), (outs[0],), cooperative=True)
        assert outs[0].get().tolist() == [1, 1]


@pytest.mark.parametrize(("threads", "shared"), [(32, 0), (256, 0), (1024, 0), (64, 40 << 10)])
def test_the_largest_grid_runs_and_one_block_more_is_refused_with_the_numbers(
    gpu: hearth.Device, kernel: Kernel, threads: int, shared: int
) -> None:
    meet = kernel("meet")
    shared = shared or 4 * threads
    held = meet.occupancy(threads, shared)
    limit = held.max_cooperative_blocks
    assert limit == held.blocks_per_multiprocessor * gpu.properties.multiprocessor_count > 0
    out = gpu.zeros(limit + 1, np.int32)
    meet((limit,), (threads,), (out,), shared, cooperative=True)
    np.testing.assert_array_equal(out.get(), [*range(1, limit + 1), 0])
    meet((limit + 1,), (threads,), (out,), shared, cooperative=True)
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert caught.value.reason == "RESIDENCY_EXCEEDED"
    assert str(limit + 1) in caught.value.message and str(limit) in caught.value.message
    assert f"{gpu.properties.multiprocessor_count} multiprocessors" in caught.value.message
    meet((limit,), (threads,), (out,), shared, cooperative=True)
    gpu.synchronize()


@pytest.mark.parametrize("mode", ["checked", "unchecked"])
def test_fit_launches_fewer_blocks_and_warns_at_the_line_of_the_launch(
    gpu: hearth.Device, kernel: Kernel, mode: str
) -> None:
    meet = kernel("meet")
    limit = meet.occupancy(64, 256).max_cooperative_blocks
    out = gpu.zeros(limit + 5, np.int32)
    with pytest.warns(RuntimeWarning, match=rf"launch of meet: .* from {limit + 5} to {limit} blocks") as told:
        for _ in range(3):
            meet((limit + 5,), (64,), (out,), 256, cooperative="fit", mode=mode)
        np.testing.assert_array_equal(out.get(), [*range(1, limit + 1), *[0] * 5])
    assert [each.filename for each in told] == [__file__]
    with pytest.warns(RuntimeWarning, match=f"from {limit + 2} to"), gpu.graph() as graph:
        meet([limit + 2], (64,), (out,), 256, cooperative="fit")
    out.fill(0)
    graph.launch()
    np.testing.assert_array_equal(out.get(), [*range(1, limit + 1), *[0] * 5])


def test_fit_keeps_a_grid_that_is_resident(
    gpu: hearth.Device, kernel: Kernel, recwarn: pytest.WarningsRecorder
) -> None:
    out = gpu.zeros(2, np.int32)
    kernel("meet")((2,), (64,), (out,), 256, cooperative="fit")
    assert out.get().tolist() == [1, 2] and not recwarn.list
    module = gpu.RawModule(code=CODE, enable_cooperative_groups=True)
    limit = module.get_function("meet").occupancy(64, 256).max_cooperative_blocks
    with pytest.raises(hearth.LaunchError, match="cannot be resident"):
        module.get_function("meet")((limit + 1,), (64,), (gpu.zeros(limit + 1, np.int32),), 256)
        gpu.synchronize()


def test_fit_refuses_grids_of_several_dimensions_and_unknown_values(gpu: hearth.Device, kernel: Kernel) -> None:
    meet = kernel("meet")
    limit = meet.occupancy(64, 256).max_cooperative_blocks
    out = gpu.zeros(2, np.int32)
    meet((limit, 2), (64,), (out,), 256, cooperative="fit")
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert caught.value.reason == "RESIDENCY_EXCEEDED" and not out.get().any()
    with pytest.raises(hearth.ArgumentError, match="cooperative is 'fits'"):
        meet((2,), (64,), (out,), 256, cooperative="fits")  # type: ignore[arg-type]


def test_fit_of_the_asyncio_client(daemon: DaemonProcess) -> None:
    async def run() -> None:
        async with await hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            meet = gpu.RawModule(code=CODE).get_function("meet")
            limit = (await meet.occupancy(64, 256)).max_cooperative_blocks
            out = gpu.zeros(limit + 1, np.int32)
            with pytest.warns(RuntimeWarning, match=f"from {limit + 1} to {limit} blocks"):
                meet((limit + 1,), (64,), (out,), 256, cooperative="fit")
                assert (await out.get()).tolist() == [*range(1, limit + 1), 0]

    asyncio.run(run())


def test_driver_refuses_an_unchecked_launch(gpu: hearth.Device, kernel: Kernel) -> None:
    meet = kernel("meet")
    limit = meet.occupancy(1024, 4096).max_cooperative_blocks
    out = gpu.zeros(limit + 1, np.int32)
    meet((limit + 1,), (1024,), (out,), 4096, cooperative=True, mode="unchecked")
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()
    assert not out.get().any()
    saxpy_works(gpu)


def test_iterations_and_streams_of_grids(gpu: hearth.Device, kernel: Kernel) -> None:
    n = 500
    start = np.arange(n, dtype=np.int32)
    pairs = [(gpu.stream(), gpu.asarray(start), gpu.zeros(n, np.int32)) for _ in range(3)]
    for stream, a, b in pairs:
        kernel("rounds")((2,), (64,), (a, b, np.int32(n), np.int32(2)), cooperative=True, iterations=10, stream=stream)
    for stream, a, _ in pairs:
        np.testing.assert_array_equal(a.get(stream=stream), by_rounds(start, 20))


@on_cpu
@pytest.mark.parametrize(
    ("name", "cooperative", "message"),
    [
        ("meet", False, "grid.sync() in a launch that is not cooperative"),
        ("half_meets", True, "deadlock: 2 of 4 blocks wait in grid.sync()"),
    ],
)
def test_grid_that_cannot_synchronise_ends_its_device_with_the_reason(
    lossy: DaemonProcess, name: str, cooperative: bool, message: str
) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        out = gpu.zeros(8, np.int32)
        gpu.RawModule(code=CODE).get_function(name)((4,), (8,), (out,), 32, cooperative=cooperative)
        with pytest.raises(hearth.DeviceLostError, match="SIGABRT"):
            gpu.synchronize()
        wait_until(lambda: message in lossy.log(), "the reason in the log")
        saxpy_works(gpu)
