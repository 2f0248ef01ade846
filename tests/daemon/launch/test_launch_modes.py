"""Validated and unchecked launches, grids read from a buffer, iterations, clusters, occupancy, read-only arrays."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import handle_of
from tests.support.daemon.harness import BACKEND, DaemonProcess, on_cpu, on_gpu
from tests.support.daemon.kernels import COMMON, common, gated, saxpy_works
from tests.support.daemon.raw import Raw, refused

CODE = r"""
extern "C" __global__ void write_at(int* x, long long at, int value) { x[at] = value; }
extern "C" __global__ void write_two(int* x, long long ax, int* y, long long ay) { x[ax] = 1; y[ay] = 2; }
extern "C" __global__ void times_three(long long* x) { *x *= 3; }
extern "C" __global__ void count(unsigned* hits) { atomicAdd(hits, 1); }
extern "C" __global__ void choose(unsigned* grid, unsigned x, unsigned y, unsigned z) {
    grid[0] = x; grid[1] = y; grid[2] = z;
}
extern "C" __global__ void add_to(const int* x, int* y) { *y += *x; }
"""


def kernel(gpu: hearth.Device, name: str) -> hearth.Function:
    return gpu.RawModule(code=CODE).get_function(name)


# ---- validate ----


def test_validation_does_not_affect_correct_kernel(gpu: hearth.Device) -> None:
    x, y = gpu.asarray(np.arange(1000, dtype=np.float32)), gpu.ones(1000, np.float32)
    common(gpu, "saxpy")((4,), (256,), (np.float32(2), hearth.read_only(x), y, np.int32(1000)), mode="validate")
    np.testing.assert_array_equal(y.get(), 2 * np.arange(1000, dtype=np.float32) + 1)
    gpu.synchronize()


@pytest.mark.parametrize(("at", "where", "first"), [(16, "after", 64), (-1, "before", -4), (800, "after", 3200)])
def test_a_write_outside_is_reported_and_contained(gpu: hearth.Device, at: int, where: str, first: int) -> None:
    arrays = [gpu.full(16, fill, np.int32) for fill in (1, 2, 3)]
    before = gpu.memory_usage()
    kernel(gpu, "write_at")((1,), (1,), (arrays[1], np.int64(at), np.int32(77)), mode="validate")
    with pytest.raises(hearth.LaunchError, match=f"write_at wrote outside its buffers: 4 bytes {where}") as caught:
        gpu.synchronize()
    assert caught.value.reason == "OUT_OF_BOUNDS_WRITE"
    assert caught.value.details["kernel"] == "write_at"
    assert caught.value.details["buffer"] == str(handle_of(arrays[1])) and caught.value.details["argument"] == "0"
    assert caught.value.details["first_byte"] == str(first)
    assert [array.get().tolist() for array in arrays] == [[fill] * 16 for fill in (1, 2, 3)]
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == before.bytes_in_use


@pytest.mark.parametrize("wait", ["get", "synchronize", "pinned"])
def test_the_first_wait_after_the_launch_raises_its_error(gpu: hearth.Device, wait: str) -> None:
    """Also a wait that the device itself ends: a copy of an array that was copied before, to memory that is shared."""
    write_at, host = kernel(gpu, "write_at"), hearth.empty_pinned(16, np.int32)
    array = gpu.zeros(16, np.int32)
    waits = {"get": array.get, "synchronize": gpu.synchronize, "pinned": lambda: array.get(host)}
    for _ in range(8):
        waits[wait]()
        write_at((1,), (1,), (array, np.int64(16), np.int32(77)), mode="validate")
        with pytest.raises(hearth.LaunchError, match="wrote outside its buffers"):
            waits[wait]()


def test_every_buffer_that_was_missed_is_named(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(4, np.int32), gpu.zeros(8, np.int32)
    kernel(gpu, "write_two")((1,), (1,), (x, np.int64(4), y, np.int64(-2)), mode="validate")
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    message = str(caught.value)
    assert "after argument 0, an array of 16 bytes" in message
    assert "before argument 2, an array of 32 bytes" in message


def test_writes_inside_the_buffer_are_kept_after_a_violation(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(4, np.int32), gpu.zeros(8, np.int32)
    kernel(gpu, "write_two")((1,), (1,), (x[1:], np.int64(2), y, np.int64(8)), mode="validate")
    with pytest.raises(hearth.LaunchError, match="after argument 2"):
        gpu.synchronize()
    assert x.get().tolist() == [0, 0, 0, 1]


def test_answer_to_a_single_call_is_the_outcome(raw: Raw) -> None:
    function, buffer = raw.function(CODE, "write_at"), raw.buffer(bytes(16))
    dim = c.Dim3(x=1)

    def launch(at: int) -> c.Launch:
        arguments = [
            c.Argument(pointer=c.Argument.Pointer(buffer=buffer)), c.Argument(int64=at), c.Argument(int32=5)
        ]  # fmt: skip
        return c.Launch(function=function, grid=dim, block=dim, arguments=arguments, mode=c.LAUNCH_MODE_VALIDATE)

    raw.call("Launch", launch(3))
    refusal = refused(raw.call, "Launch", launch(4))
    assert refusal.reason == Reason.OUT_OF_BOUNDS_WRITE
    assert np.frombuffer(raw.read(buffer, 16), np.int32).tolist() == [0, 0, 0, 5]
    bad = launch(0)
    bad.mode = 9  # type: ignore[assignment]
    assert refused(raw.call, "Launch", bad).reason == Reason.INVALID_ARGUMENT


# ---- unchecked ----


def test_unchecked_launches_still_check_handles(gpu: hearth.Device, raw: Raw) -> None:
    x = gpu.zeros(8, np.int32)
    add_one = common(gpu, "add_one")
    for _ in range(100):
        add_one((1,), (8,), (x, np.int32(8)), mode="unchecked")
    assert x.get().tolist() == [100] * 8
    function = raw.function(COMMON, "add_one")
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=999)), c.Argument(int32=1)]
    dim = c.Dim3(x=1)
    launch = c.Launch(function=function, grid=dim, block=dim, arguments=arguments, mode=c.LAUNCH_MODE_UNCHECKED)
    assert refused(raw.call, "Launch", launch).reason == Reason.INVALID_HANDLE


# ---- grids read from a buffer ----


def test_dynamic_grid_is_read_after_the_previous_kernel(gpu: hearth.Device) -> None:
    grid, hits = gpu.zeros(3, np.uint32), gpu.zeros(1, np.uint32)
    choose, count = kernel(gpu, "choose"), kernel(gpu, "count")
    choose((1,), (1,), (grid, np.uint32(3), np.uint32(2), np.uint32(5)))
    count(grid, (4,), (hits,))
    choose((1,), (1,), (grid, np.uint32(1), np.uint32(1), np.uint32(1)))  # after the launch above has read the grid
    count(grid, (1,), (hits,), iterations=3)
    assert hits.get().tolist() == [3 * 2 * 5 * 4 + 3]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_dynamic_grid_of_zero_launches_nothing(gpu: hearth.Device, zero: int) -> None:
    hits = gpu.zeros(1, np.uint32)
    shape = np.ones(3, np.uint32)
    shape[zero] = 0
    kernel(gpu, "count")(gpu.asarray(shape), (1,), (hits,))
    gpu.synchronize()
    assert hits.get().tolist() == [0]


def test_dynamic_grid_that_is_too_large_is_refused(gpu: hearth.Device) -> None:
    hits = gpu.zeros(1, np.uint32)
    grid = gpu.asarray(np.array([1, 70000, 1], np.uint32))
    kernel(gpu, "count")(grid, (1,), (hits,))
    with pytest.raises(hearth.LaunchError, match=r"grid\.y is 70000; the device's maximum is 65535"):
        gpu.synchronize()
    assert hits.get().tolist() == [0]


def test_waiting_for_a_grid_delays_no_other(gpu: hearth.Device) -> None:
    grid, hits, other = gpu.zeros(3, np.uint32), gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    choose, count = kernel(gpu, "choose"), kernel(gpu, "count")
    count((1,), (1,), (hits,))
    gpu.synchronize()
    with gated(gpu) as gate:
        waiting, free = gpu.stream(), gpu.stream()
        gate.hold(stream=waiting)
        choose((1,), (1,), (grid, np.uint32(2), np.uint32(1), np.uint32(1)), stream=waiting)
        count(grid, (1,), (hits,), stream=waiting)
        count((1,), (1,), (other,), stream=free)
        assert other.get(stream=free).tolist() == [1]
        gate.open()
        assert hits.get(stream=waiting).tolist() == [3]


def test_grid_at_offset_in_buffer(gpu: hearth.Device, raw: Raw) -> None:
    hits, numbers = gpu.zeros(1, np.uint32), gpu.asarray(np.array([9, 9, 2, 3, 1], np.uint32))
    kernel(gpu, "count")(numbers[2:], (1,), (hits,))
    assert hits.get().tolist() == [6]
    with pytest.raises(hearth.LaunchTypeError, match="three uint32"):
        kernel(gpu, "count")(numbers, (1,), (hits,))
    function, buffer = raw.function(CODE, "count"), raw.buffer(np.array([1, 1, 1, 0], np.uint32).tobytes())

    def launch(grid: int, offset: int) -> c.Launch:
        return c.Launch(
            function=function,
            block=c.Dim3(x=1),
            arguments=[c.Argument(pointer=c.Argument.Pointer(buffer=buffer, offset=12))],
            dynamic_grid=c.Argument.Pointer(buffer=grid, offset=offset),
        )

    raw.call("Launch", launch(buffer, 0))
    assert np.frombuffer(raw.read(buffer, 16), np.uint32)[3] == 1
    assert refused(raw.call, "Launch", launch(buffer, 8)).reason == Reason.OUT_OF_BOUNDS
    assert refused(raw.call, "Launch", launch(buffer, 2)).reason == Reason.INVALID_ARGUMENT
    assert refused(raw.call, "Launch", launch(999, 0)).reason == Reason.INVALID_HANDLE


def test_a_grid_whose_producer_failed_launches_nothing(gpu: hearth.Device) -> None:
    grid, hits = gpu.zeros(3, np.uint32), gpu.zeros(1, np.uint32)
    kernel(gpu, "choose")((1,), (5000,), (grid, np.uint32(1), np.uint32(1), np.uint32(1)))
    kernel(gpu, "count")(grid, (1,), (hits,))
    with pytest.raises(hearth.LaunchError, match="5000 threads"):
        gpu.synchronize()
    assert hits.get().tolist() == [0]


# ---- iterations ----


@pytest.mark.parametrize("times", [1, 2, 7, 39])
def test_iterations_run_one_after_the_other(gpu: hearth.Device, times: int) -> None:
    x = gpu.ones(1, np.int64)
    kernel(gpu, "times_three")((1,), (1,), (x,), iterations=times)
    assert x.item() == 3**times


def test_many_iterations_leave_room_for_others(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    hits = gpu.zeros(1, np.uint32)
    kernel(gpu, "count")((1,), (1,), (hits,), iterations=20_000)
    with daemon.connect() as other:
        saxpy_works(other.device(0))
    assert hits.get().tolist() == [20_000]


def test_no_iterations_are_refused(raw: Raw) -> None:
    function, buffer = raw.function(CODE, "count"), raw.buffer(bytes(4))
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer))]
    dim = c.Dim3(x=1)
    launch = c.Launch(function=function, grid=dim, block=dim, arguments=arguments, iterations=0)
    refusal = refused(raw.call, "Launch", launch)
    assert refusal.reason == Reason.LAUNCH_INVALID
    assert "iterations is 0" in refusal.message


# ---- clusters, occupancy ----


@on_cpu
def test_clusters_are_refused_by_name_on_devices_without_them(gpu: hearth.Device) -> None:
    hits = gpu.zeros(1, np.uint32)
    kernel(gpu, "count")((2,), (1,), (hits,), cluster=2)
    with pytest.raises(hearth.LaunchError, match="no thread block clusters"):
        gpu.synchronize()


@on_gpu
def test_clusters(gpu: hearth.Device) -> None:
    if "clusters" not in gpu.properties.features:
        pytest.skip("the device has no clusters")
    code = r"""
#include <cooperative_groups.h>
extern "C" __global__ void ranks(unsigned* out) {
    auto cluster = cooperative_groups::this_cluster();
    __shared__ unsigned mine;
    mine = blockIdx.x;
    cluster.sync();
    unsigned* theirs = cluster.map_shared_rank(&mine, cluster.num_blocks() - 1 - cluster.block_rank());
    out[blockIdx.x] = *theirs;
    cluster.sync();
}
"""
    ranks = gpu.RawKernel(code, "ranks")
    for size in (1, 2, 4, 8, 16):
        out = gpu.zeros(16, np.uint32)
        ranks((16,), (1,), (out,), cluster=size)
        blocks = np.arange(16)
        np.testing.assert_array_equal(out.get(), blocks // size * size + size - 1 - blocks % size)
    ranks((15,), (1,), (out,), cluster=(2,))
    with pytest.raises(hearth.LaunchError, match=r"grid\.x is 15; it is not a multiple of cluster\.x, which is 2"):
        gpu.synchronize()
    ranks((32,), (1,), (out,), cluster=32)
    with pytest.raises(hearth.LaunchError, match="a cluster of 32 blocks; the maximum is 16"):
        gpu.synchronize()
    assert ranks.occupancy(32, cluster=2).max_clusters > 0


def test_occupancy(gpu: hearth.Device) -> None:
    count = kernel(gpu, "count")
    small, large = count.occupancy(32), count.occupancy((1024,))
    assert small.blocks_per_multiprocessor >= large.blocks_per_multiprocessor >= 1
    assert small.multiprocessors == gpu.properties.multiprocessor_count
    assert large.max_cooperative_blocks <= large.blocks_per_multiprocessor * large.multiprocessors
    assert 1 <= small.suggested_block <= gpu.properties.max_threads_per_block
    with pytest.raises(hearth.LaunchError, match="2048 threads"):
        count.occupancy(2048)
    # modelled on an H100 with 16 blocks for each multiprocessor; see `hearthd.device.cpu.occupancy`
    if BACKEND == "cpu":
        assert (small.blocks_per_multiprocessor, large.blocks_per_multiprocessor) == (16, 2)
        assert large.max_cooperative_blocks == 2 * large.multiprocessors and small.suggested_block == 1024
        assert count.occupancy(32, 100 << 10).blocks_per_multiprocessor == 2
    assert count.max_dynamic_shared_size_bytes <= gpu.properties.shared_mem_per_block_optin


# ---- read-only arrays ----


def test_two_streams_read_one_array_at_the_same_time(gpu: hearth.Device) -> None:
    """The two launches must overlap: the first waits at a gate that is opened after the second has ended."""
    x, y, z = gpu.full(1, 5, np.int32), gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    add_to = kernel(gpu, "add_to")
    code = 'extern "C" __global__ void slow(const int* x, volatile int* gate, int* y) { while (!*gate) {} *y = *x; }'
    slow = gpu.RawKernel(code, "slow")
    add_to((1,), (1,), (hearth.read_only(x), z))
    slow((1,), (1,), (hearth.read_only(x), gpu.ones(1, np.int32), y))
    gpu.synchronize()
    with gated(gpu) as gate:
        first, second = gpu.stream(), gpu.stream()
        gate.hold(stream=first)
        add_to((1,), (1,), (hearth.read_only(x), y), stream=first)
        add_to((1,), (1,), (hearth.read_only(x), z), stream=second)
        assert z.get(stream=second).tolist() == [10]
        gate.open()
        assert y.get(stream=first).tolist() == [10]


def test_a_write_waits_for_readers(gpu: hearth.Device) -> None:
    x, y = gpu.full(1, 5, np.int32), gpu.zeros(1, np.int32)
    add_to = kernel(gpu, "add_to")
    add_to((1,), (1,), (hearth.read_only(x), gpu.zeros(1, np.int32)))
    gpu.synchronize()
    with gated(gpu) as gate:
        first, second = gpu.stream(), gpu.stream()
        gate.hold(stream=first)
        add_to((1,), (1,), (hearth.read_only(x), y), stream=first)
        x.fill(100, stream=second)
        gate.open()
        assert y.get(stream=first).tolist() == [5]
        assert x.get(stream=second).tolist() == [100]


def test_an_array_that_is_read_and_written_counts_as_written(gpu: hearth.Device) -> None:
    x = gpu.full(1, 3, np.int32)
    add_to = kernel(gpu, "add_to")
    for _ in range(4):
        add_to((1,), (1,), (hearth.read_only(x), x))
        with gpu.stream():
            add_to((1,), (1,), (hearth.read_only(x), x))
    assert x.item() == 3 * 2**8


# ---- combinations ----


def test_all_errors_of_a_launch_are_reported_together(gpu: hearth.Device, raw: Raw) -> None:
    function, buffer = raw.function(CODE, "write_at"), raw.buffer(bytes(16))
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer, offset=17)), c.Argument(int32=1)]
    launch = c.Launch(
        function=function, grid=c.Dim3(x=0, y=70000), block=c.Dim3(x=1, z=65), arguments=arguments, iterations=0
    )
    message = refused(raw.call, "Launch", launch).message
    said = [
        "grid.x is 0",
        "grid.y is 70000",
        "block.z is 65",
        "2 arguments are given; the kernel has 3",
        "iterations is 0",
    ]
    assert [each for each in said if each not in message] == []
    assert f"starts at byte 17 of buffer {buffer}" in message
    several = c.Launch(
        function=function,
        grid=c.Dim3(x=1),
        block=c.Dim3(x=1),
        arguments=[c.Argument(pointer=c.Argument.Pointer(buffer=handle)) for handle in (997, 998)],
    )
    message = refused(raw.call, "Launch", several).message
    assert "buffer 997" in message and "buffer 998" in message
    assert BACKEND
