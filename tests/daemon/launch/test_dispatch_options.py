"""Launch options of dispatches: cooperative launches, clusters and modes, with the checks and errors of launches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

import hearth
import hearth.aio
from hearth import InOut, Out
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.dispatches import binding
from tests.support.daemon.harness import DaemonProcess, on_cpu, on_gpu
from tests.support.daemon.kernels import COOPERATIVE
from tests.support.daemon.raw import Raw, refused

CODE = (
    COOPERATIVE
    + r"""
extern "C" __global__ void write_at(int* x, long long at, int value) { x[at] += value; }
"""
)
N = 1000

Kernel = Callable[[str], hearth.Function]


@pytest.fixture
def kernel(gpu: hearth.Device) -> Kernel:
    """Returns a function that returns a kernel by name."""
    return gpu.RawModule(code=CODE).get_function


# ---- cooperative launches ----


def test_a_grid_that_synchronises(gpu: hearth.Device, kernel: Kernel) -> None:
    start = np.arange(N, dtype=np.int32)
    expected = start
    for _ in range(4):
        expected = (3 * np.roll(expected, -37) + 1).astype(np.int32)
    args = [InOut(start.copy()), Out(N, np.int32), np.int32(N), np.int32(2)]
    for _ in range(3):  # also from the cache of dispatches
        out, _ = gpu.dispatch(kernel("rounds"), 4, 64, args, cooperative=True, iterations=2)
        np.testing.assert_array_equal(out, expected)


def test_a_grid_that_is_too_large_is_refused_or_reduced(gpu: hearth.Device, kernel: Kernel) -> None:
    meet = kernel("meet")
    limit = meet.occupancy(64, 256).max_cooperative_blocks
    (out,) = gpu.dispatch(meet, limit, 64, [Out(limit + 1, np.int32)], shared_mem=256, cooperative=True)
    assert out.tolist() == [*range(1, limit + 1), 0]
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.dispatch(meet, limit + 1, 64, [Out(limit + 1, np.int32)], shared_mem=256, cooperative=True)
    assert caught.value.reason == "RESIDENCY_EXCEEDED"
    assert str(limit + 1) in caught.value.message and str(limit) in caught.value.message
    with pytest.warns(RuntimeWarning, match=f"the grid is reduced from {limit + 5} to {limit} blocks") as told:
        (out,) = gpu.dispatch(meet, limit + 5, 64, [Out(limit + 5, np.int32)], shared_mem=256, cooperative="fit")
        gpu.synchronize()
    assert __file__ in [each.filename for each in told]
    assert out.tolist() == [*range(1, limit + 1), 0, 0, 0, 0, 0]
    with pytest.raises(hearth.ArgumentError, match="not a kind of cooperative launch"):
        gpu.dispatch(meet, 2, 64, [Out(2, np.int32)], cooperative="fits")  # type: ignore[arg-type]


def test_all_dispatches_of_a_cooperative_module_are_cooperative(gpu: hearth.Device) -> None:
    meet = gpu.RawModule(code=CODE, enable_cooperative_groups=True).get_function("meet")
    limit = meet.occupancy(64, 256).max_cooperative_blocks
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.dispatch(meet, limit + 1, 64, [Out(limit + 1, np.int32)], shared_mem=256)
    assert caught.value.reason == "RESIDENCY_EXCEEDED"


def test_the_asyncio_client_has_the_options(daemon: DaemonProcess) -> None:
    async def program() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=CODE)
            meet, write_at = module.get_function("meet"), module.get_function("write_at")
            (out,) = await gpu.dispatch(meet, 3, 64, [Out(3, np.int32)], shared_mem=256, cooperative=True)
            assert out.tolist() == [1, 2, 3]
            args = [InOut(np.zeros(4, np.int32)), np.int64(4), np.int32(1)]
            pending = gpu.dispatch_async(write_at, 1, 1, args, mode="validate")
            with pytest.raises(hearth.HearthError) as caught:
                await pending.result()
            assert caught.value.reason == "OUT_OF_BOUNDS_WRITE"

    asyncio.run(program())


def test_single_calls_have_the_options(raw: Raw) -> None:
    function = raw.function(CODE, "meet")
    out = binding(c.Binding.ROLE_OUTPUT, size=12)
    dispatch = c.Dispatch(
        function=function, grid=c.Dim3(x=3), block=c.Dim3(x=64), shared_mem=256, bindings=[out], cooperative=True
    )
    (data,) = raw.call("Dispatch", dispatch).outputs
    assert np.frombuffer(data, np.int32).tolist() == [1, 2, 3]
    dispatch.mode = 9  # type: ignore[assignment]
    refusal = refused(raw.call, "Dispatch", dispatch)
    assert refusal.reason == Reason.INVALID_ARGUMENT and "launch mode 9 is unknown" in refusal.message


# ---- clusters ----


@on_cpu
def test_clusters_are_refused_by_name_on_devices_without_them(gpu: hearth.Device, kernel: Kernel) -> None:
    with pytest.raises(hearth.LaunchError, match="no thread block clusters"):
        gpu.dispatch(kernel("meet"), 2, 64, [Out(2, np.int32)], shared_mem=256, cluster=2)
    with pytest.raises(hearth.LaunchError, match=r"cluster\.y is 0"):
        gpu.dispatch(kernel("meet"), 2, 64, [Out(2, np.int32)], shared_mem=256, cluster=(2, 0))


@on_gpu
def test_clusters(gpu: hearth.Device) -> None:
    if "clusters" not in gpu.properties.features:
        pytest.skip("the device has no clusters")
    code = r"""
#include <cooperative_groups.h>
extern "C" __global__ void ranks(unsigned* out) {
    auto cluster = cooperative_groups::this_cluster();
    out[blockIdx.x] = 100 * cluster.num_blocks() + cluster.block_rank();
}
"""
    ranks = gpu.RawKernel(code, "ranks")
    for size in (1, 2, 4, 8):
        (out,) = gpu.dispatch(ranks, 16, 1, [Out(16, np.uint32)], cluster=size)
        np.testing.assert_array_equal(out, 100 * size + np.arange(16) % size)
    with pytest.raises(hearth.LaunchError, match=r"grid\.x is 15; it is not a multiple of cluster\.x, which is 2"):
        gpu.dispatch(ranks, 15, 1, [Out(15, np.uint32)], cluster=(2,))


# ---- modes ----


def test_validation_does_not_affect_a_correct_kernel(gpu: hearth.Device, kernel: Kernel) -> None:
    """With inputs and outputs inside the message and in transfers, iterations and times."""
    for n in (8, 1 << 20):
        x, y = np.arange(n, dtype=np.int32), gpu.zeros(n, np.int32)
        args = [InOut(x), np.int64(n - 1), np.int32(5)]
        pending = gpu.dispatch_async(kernel("write_at"), 1, 1, args, mode="validate", iterations=3, timed=True)
        (out,) = pending.result()
        assert out[-1] == n - 1 + 15 and (out[:-1] == x[:-1]).all()
        assert pending.timing.kernel_ns is not None
        gpu.dispatch(kernel("write_at"), 1, 1, [y, np.int64(2), np.int32(7)], mode="validate")
        assert y[:4].get().tolist() == [0, 0, 7, 0]


@pytest.mark.parametrize("n", [4, 1 << 20])
def test_a_write_outside_is_raised_by_the_dispatch(
    gpu: hearth.Device, kernel: Kernel, daemon: DaemonProcess, n: int
) -> None:
    """The error is the caller's alone, and the memory of the dispatch is released."""
    write_at, other = kernel("write_at"), gpu.full(4, 1, np.int32)
    gpu.synchronize()
    for at, first in ((n, 4 * n), (-1, -4)):
        with pytest.raises(hearth.HearthError) as caught:
            gpu.dispatch(write_at, 1, 1, [InOut(np.zeros(n, np.int32)), np.int64(at), np.int32(1)], mode="validate")
        assert caught.value.reason == "OUT_OF_BOUNDS_WRITE" and "write_at" in caught.value.message
        assert caught.value.details["first_byte"] == str(first)
    gpu.synchronize()
    assert other.get().tolist() == [1] * 4
    (out,) = gpu.dispatch(write_at, 1, 1, [InOut(np.zeros(4, np.int32)), np.int64(1), np.int32(1)])
    assert out.tolist() == [0, 1, 0, 0]
    del other
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == 0


def test_a_geometry_is_unchecked_on_request_only(gpu: hearth.Device, kernel: Kernel) -> None:
    args = [InOut(np.zeros(4, np.int32)), np.int64(1), np.int32(1)]
    (out,) = gpu.dispatch(kernel("write_at"), 1, 1, args, mode="unchecked")
    assert out.tolist() == [0, 1, 0, 0]
    messages = []
    for mode in ("checked", "unchecked"):
        with pytest.raises(hearth.LaunchError) as caught:
            gpu.dispatch(kernel("write_at"), 1, 2000, args, mode=mode)
        messages.append(caught.value.message)
    assert "block" in messages[0] and messages[0] != messages[1]
    with pytest.raises(hearth.ArgumentError, match="not a launch mode"):
        gpu.dispatch(kernel("write_at"), 1, 1, args, mode="fast")
