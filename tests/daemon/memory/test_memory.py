"""Device memory: accounting, limits, frees, and allocations that fail."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon, on_cpu, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.raw import Execute, Raw, refused

ADD = r"""
extern "C" __global__ void add(const int* x, int* y) { y[threadIdx.x] += x[threadIdx.x]; }
"""


def test_usage_counts_allocated_arrays(gpu: hearth.Device) -> None:
    assert (gpu.memory_usage().allocations, gpu.memory_usage().bytes_in_use) == (0, 0)
    x, y = gpu.empty(1000, np.uint8), gpu.empty((3, 7), np.float64)
    usage = gpu.memory_usage()
    assert (usage.allocations, usage.bytes_in_use) == (2, 1000 + 168)
    assert usage.bytes_padding >= 0
    assert usage.bytes_in_use + usage.bytes_padding <= usage.bytes_reserved
    assert 0 < usage.device_free <= usage.device_total <= gpu.properties.total_memory
    x.free()
    y.free()
    assert (gpu.memory_usage().allocations, gpu.memory_usage().bytes_in_use) == (0, 0)


def test_usage_is_exact_through_reallocation(gpu: hearth.Device) -> None:
    """Reports the requested bytes, their padding to multiples of 512, and the peak."""
    sizes = [1, 511, 512, 513, 100_000]
    arrays = [gpu.empty(size, np.uint8) for size in sizes]
    usage = gpu.memory_usage()
    padding = sum(-size % 512 for size in sizes)
    assert (usage.allocations, usage.bytes_in_use, usage.bytes_padding) == (5, sum(sizes), padding)
    arrays[4].free()
    arrays[4] = gpu.empty(1000, np.uint8)
    usage = gpu.memory_usage()
    assert (usage.allocations, usage.bytes_in_use, usage.bytes_peak) == (5, sum(sizes[:4]) + 1000, sum(sizes))
    assert usage.bytes_padding == sum(-size % 512 for size in (*sizes[:4], 1000))
    del arrays
    usage = gpu.memory_usage()
    assert (usage.allocations, usage.bytes_in_use, usage.bytes_padding) == (0, 0, 0)
    assert usage.bytes_peak == sum(sizes) and usage.bytes_persistent == 0


def test_usage_counts_only_the_own_session(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = gpu.full(1 << 20, 1, np.uint8)
    gpu.synchronize()
    with daemon.connect() as other:
        usage = other.device(0).memory_usage()
        assert (usage.allocations, usage.bytes_in_use, usage.bytes_peak) == (0, 0, 0)
        assert usage.bytes_reserved >= x.nbytes
    assert gpu.memory_usage().bytes_in_use == x.nbytes


def test_host_memory_of_copies_is_reported(gpu: hearth.Device) -> None:
    hosts = [np.full(50_000, value, np.uint8) for value in range(20)]
    arrays = [gpu.asarray(host) for host in hosts]
    order = gpu.zeros(1, np.int32)
    with gated(gpu) as gate, ThreadPoolExecutor(20) as pool:
        gate.hold(order)
        reads = [pool.submit(array.get) for array in arrays]
        wait_until(lambda: gpu.memory_usage().bytes_pinned_in_use >= 20 * 50_000, "memory for 20 reads")
        usage = gpu.memory_usage()
        assert usage.bytes_pinned_in_use <= usage.bytes_pinned
        gate.open()
        assert all((read.result() == host).all() for read, host in zip(reads, hosts, strict=True))
    assert gpu.memory_usage().bytes_pinned_in_use == 0


def test_garbage_collection_frees_arrays(gpu: hearth.Device) -> None:
    arrays = [gpu.empty(1 << 20, np.uint8) for _ in range(20)]
    cycle: list[object] = [arrays[0]]
    cycle.append(cycle)
    assert gpu.memory_usage().allocations == 20
    del arrays
    assert gpu.memory_usage().allocations == 1
    del cycle
    gc.collect()
    assert gpu.memory_usage().bytes_in_use == 0


def test_views_keep_and_release(gpu: hearth.Device) -> None:
    x = gpu.empty(100, np.float32)
    view = x[10:20].reshape(2, 5)
    del x
    assert gpu.memory_usage().allocations == 1
    del view
    assert gpu.memory_usage().allocations == 0


def test_temporaries_of_a_loop_do_not_pile_up(gpu: hearth.Device) -> None:
    size = min(64 << 20, gpu.memory_usage().device_total // 8)
    for value in range(40):
        x = gpu.full(size, value % 251, np.uint8)
        if value % 13 == 0:
            assert x[-1].item() == value % 251
    del x
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == 0


def test_temporaries_on_several_streams_keep_their_contents(gpu: hearth.Device) -> None:
    """Each temporary is written on one stream, used on another and dropped immediately, so that its memory is soon
    reused."""
    add = gpu.RawKernel(ADD, "add")
    streams = [gpu.stream() for _ in range(3)]
    total = gpu.zeros(256, np.int32)
    sums = [gpu.zeros(256, np.int32) for _ in streams]
    for value in range(600):
        with streams[value % 3]:
            x = gpu.asarray(np.full(256, value, np.int32)) if value % 2 else gpu.full(256, value, np.int32)
        with streams[value // 3 % 3]:
            y = gpu.zeros(256, np.int32)
            add((1,), (256,), (x, y))
            add((1,), (256,), (y, sums[value // 3 % 3]))
    for each in sums:
        add((1,), (256,), (each, total))
    np.testing.assert_array_equal(total.get(), np.full(256, sum(range(600))))
    del x, y
    assert gpu.memory_usage().allocations == 4


def test_used_after_free_is_named(gpu: hearth.Device) -> None:
    x = gpu.zeros(4)
    view = x[:2]
    x.free()
    x.free()
    for use in (x.get, view.get, lambda: x.fill(0), lambda: view.set(np.zeros(2)), x.copy):
        with pytest.raises(hearth.InvalidHandleError, match="was freed"):
            use()
    assert "freed" in repr(x)


def test_out_of_memory_reports_sizes(gpu: hearth.Device) -> None:
    free = gpu.memory_usage().device_free
    most = gpu.memory_usage().device_total
    x = gpu.empty(most + 1, np.uint8)
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        gpu.synchronize()
    error = caught.value
    assert isinstance(error, MemoryError) and error.reason == "OUT_OF_MEMORY"
    assert int(error.details["requested"]) == most + 1
    assert int(error.details["total"]) == most
    assert 0 < int(error.details["free"]) <= most and int(error.details["free"]) <= free * 2
    assert "reserved" in error.details and str(most + 1) in str(error) and error.fix
    assert error.details["fits"] == "never" and int(error.details["largest"]) <= most
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        x.get()  # the array has no memory, and the reason stays the same
    assert caught.value.reason == "ALLOCATION_FAILED" and str(most + 1) in str(caught.value)
    saxpy_works(gpu)


def test_out_of_memory_fails_only_dependent_commands(gpu: hearth.Device) -> None:
    good = gpu.asarray(np.arange(10))
    bad = gpu.zeros(gpu.memory_usage().device_total + 1, np.uint8)
    bad[:10].copy_from(good.view(np.uint8)[:10])
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        gpu.synchronize()
    assert caught.value.failures[0].command == "allocate"
    np.testing.assert_array_equal(good.get(), np.arange(10))
    bad.free()
    gpu.synchronize()


@on_cpu  # on the CPU the limit is only a number; a GPU's memory would need to be filled
def test_a_full_device_takes_more_after_a_free(start_daemon: StartDaemon) -> None:
    with start_daemon(devices={"memory_limit": "64MiB"}).connect() as node:
        gpu = node.device(0)
        assert gpu.memory_usage().device_total == 64 << 20
        held = [gpu.full(16 << 20, index, np.uint8) for index in range(4)]
        gpu.synchronize()
        late = gpu.empty(1 << 20, np.uint8)
        with pytest.raises(hearth.OutOfMemoryError) as caught:
            gpu.synchronize()
        details = {name: int(value) for name, value in caught.value.details.items() if value.isdecimal()}
        assert details["requested"] == 1 << 20 and details["total"] == 64 << 20
        assert details["free"] == 0 and details["reserved"] == 64 << 20 == details["in_use"] == details["limit"]
        assert details["largest"] == 0 and caught.value.details["fits"] == "not now"
        held.pop().free()
        late = gpu.full(16 << 20, 9, np.uint8)
        assert late.get().sum() == 9 * (16 << 20)
        for index, array in enumerate(held):
            assert (array.get() == index).all()


def test_sessions_share_the_memory_limit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"memory_limit": "64MiB"})
    with daemon.connect() as first, daemon.connect() as second:
        held = first.device(0).full(48 << 20, 1, np.uint8)
        first.device(0).synchronize()
        refused = second.device(0).empty(32 << 20, np.uint8)
        with pytest.raises(hearth.OutOfMemoryError):
            second.device(0).synchronize()
        assert second.device(0).memory_usage().bytes_in_use == 0
        assert held[-1].item() == 1
        first.close()
        refused = second.device(0).full(32 << 20, 2, np.uint8)
        assert refused[-1].item() == 2


def test_allocate_and_free_from_many_threads(gpu: hearth.Device) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for index in range(50):
                x = gpu.full(1 + 977 * index, number, np.uint8)
                if index % 10 == 0:
                    assert (x.get() == number).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gpu.synchronize()
    assert gpu.memory_usage().allocations == 0


def test_addresses_are_aligned(gpu: hearth.Device) -> None:
    out = gpu.zeros(1, np.uint64)
    where = gpu.RawKernel('extern "C" __global__ void where(void* p, size_t* out) { *out = (size_t)p; }', "where")
    for size in (1, 3, 511, 513, 100_000):
        x = gpu.empty(size, np.uint8)
        where((1,), (1,), (x, out))
        assert out.item() % gpu.properties.memory_alignment == 0 and out.item()


def test_cleanup(gpu: hearth.Device) -> None:
    x = gpu.full(8 << 20, 5, np.uint8)
    gpu.empty(32 << 20, np.uint8).free()
    gpu.synchronize()
    before = gpu.memory_usage().bytes_reserved
    gpu.memory_cleanup()
    wait_until(lambda: gpu.memory_usage().bytes_reserved <= before)
    assert (x.get() == 5).all()


def test_zero_bytes_are_a_buffer(raw: Raw) -> None:
    buffer = raw.mint()
    raw.call("Allocate", c.Allocate(buffer=buffer, size=0))
    raw.call("Write", c.Write(buffer=buffer))
    assert raw.read(buffer, 0) == b""
    assert raw.call("MemoryUsage", c.MemoryUsage()).allocations == 1
    raw.call("Free", c.Free(buffers=[buffer]))
    assert raw.call("MemoryUsage", c.MemoryUsage()).allocations == 0


def test_commands_after_a_failed_allocation_are_not_reported_separately(gpu: hearth.Device) -> None:
    lost = gpu.zeros(1 << 45, np.float64)  # an allocation and a fill
    lost.fill(3)
    with pytest.raises(hearth.OutOfMemoryError, match="never fit") as caught:
        gpu.synchronize()
    assert [failure.command for failure in caught.value.failures] == ["allocate"]
    with pytest.raises(hearth.HearthError, match="has no memory"):
        lost[:4].get()


# ---- several allocations in one reservation ----


def test_many_arrays_share_a_reservation(gpu: hearth.Device) -> None:
    shapes = [((10, 10), np.float32), (7, np.uint8), (0, np.int64), (1000, np.int16)]
    arrays = gpu.empty_many(shapes)
    usage = gpu.memory_usage()
    assert (usage.allocations, usage.bytes_in_use) == (4, 400 + 7 + 0 + 2000)
    spaced = sum(-(-size // gpu.properties.memory_alignment) * gpu.properties.memory_alignment for size in (400, 7, 0))
    assert usage.bytes_in_use + usage.bytes_padding == -(-(spaced + 2000) // 512) * 512, "one rounding for all"
    for value, array in enumerate(arrays):
        array.fill(value + 1)
    where = gpu.RawKernel('extern "C" __global__ void where(void* p, size_t* out) { *out = (size_t)p; }', "where")
    out, places = gpu.zeros(1, np.uint64), []
    for value, array in enumerate(arrays):
        assert (array.get() == value + 1).all()
        where((1,), (1,), (array, out))
        places.append(out.item())
    assert all(place % gpu.properties.memory_alignment == 0 for place in places) and places == sorted(places)
    assert places[3] == places[0] + spaced


def test_reserved_memory_is_freed_with_its_last_array(gpu: hearth.Device) -> None:
    a, b, c = gpu.empty_many([(1000, np.uint8)] * 3)
    b.fill(7)
    reserved = gpu.memory_usage().bytes_in_use + gpu.memory_usage().bytes_padding
    a.free()
    c.free()
    usage = gpu.memory_usage()
    assert (usage.allocations, usage.bytes_in_use, usage.bytes_in_use + usage.bytes_padding) == (1, 1000, reserved)
    fresh = gpu.full(1000, 9, np.uint8)
    assert (b.get() == 7).all() and (fresh.get() == 9).all()
    b.free()
    fresh.free()
    assert gpu.memory_usage().bytes_padding == 0


def test_reservation_is_all_or_nothing(gpu: hearth.Device) -> None:
    most = gpu.memory_usage().device_total
    small, large = gpu.empty_many([(100, np.uint8), (most, np.uint8)])
    with pytest.raises(hearth.OutOfMemoryError, match="never fit") as caught:
        gpu.synchronize()
    assert len(caught.value.failures) == 1
    for array in (small, large):
        with pytest.raises(hearth.OutOfMemoryError, match="has no memory"):
            array.get()
    assert gpu.memory_usage().allocations == 0
    small.free()
    large.free()
    gpu.synchronize()


def test_parts_that_contradict_each_other(raw: Raw) -> None:
    part = c.Allocate.Part
    raw.call("Allocate", c.Allocate(buffer=50, size=8))
    for command, reason in (
        (c.Allocate(parts=[part(buffer=51, size=8), part(buffer=51, size=8)]), Reason.HANDLE_IN_USE),
        (c.Allocate(parts=[part(buffer=51, size=8), part(buffer=50, size=8)]), Reason.HANDLE_IN_USE),
        (c.Allocate(parts=[part(buffer=0, size=8)]), Reason.INVALID_ARGUMENT),
        (c.Allocate(buffer=52, parts=[part(buffer=51, size=8)]), Reason.INVALID_ARGUMENT),
        (c.Allocate(size=9, parts=[part(buffer=51, size=8)]), Reason.INVALID_ARGUMENT),
    ):
        refusal = refused(raw.call, "Allocate", command)
        assert refusal.reason == reason and refusal.fix
    assert raw.call("MemoryUsage", c.MemoryUsage()).allocations == 1
    sizes = [2**64 - 1] * 3
    huge = c.Allocate(parts=[part(buffer=60 + index, size=size) for index, size in enumerate(sizes)])
    assert refused(raw.call, "Allocate", huge).reason == Reason.OUT_OF_MEMORY
    raw.call("Free", c.Free(buffers=[60, 61, 62]))
    assert raw.call("MemoryUsage", c.MemoryUsage()).allocations == 1


# ---- persistent windows ----


def test_memory_allocated_in_a_persistent_window_is_kept(gpu: hearth.Device) -> None:
    with gpu.persistent_memory():
        x = gpu.full(100_000, 1, np.uint8)
    y = gpu.empty(100_000, np.uint8)
    x.free()
    y.free()
    usage = gpu.memory_usage()
    assert usage.bytes_persistent == 100_352 and usage.bytes_in_use == 0 and usage.bytes_padding == 0
    again = gpu.full(100_300, 3, np.uint8)  # rounded to the same size
    assert gpu.memory_usage().bytes_persistent == 0
    other = gpu.empty(5000, np.uint8)
    again.free()
    assert gpu.memory_usage().bytes_persistent == 100_352, "it stays persistent"
    gpu.memory_cleanup()
    assert gpu.memory_usage().bytes_persistent == 0
    del other


def test_windows_nest(gpu: hearth.Device) -> None:
    with gpu.persistent_memory():
        with gpu.persistent_memory():
            a = gpu.empty(1000, np.uint8)
        b = gpu.empty(2000, np.uint8)
    c = gpu.empty(4000, np.uint8)
    del a, b, c
    assert gpu.memory_usage().bytes_persistent == 1024 + 2048
    gpu.memory_cleanup()


def test_invalid_allocation_modes_are_refused(stream: Execute) -> None:
    def mode(value: int) -> Refusal | None:
        result = stream.ask(c.Command(set_allocation_mode=c.SetAllocationMode(mode=value)))
        return from_status(result.error) if result.HasField("error") else None

    for value in (c.ALLOCATION_MODE_AUTO, c.ALLOCATION_MODE_UNSPECIFIED, 77):
        refusal = mode(value)
        assert refusal is not None and refusal.reason == Reason.INVALID_ARGUMENT and refusal.fix
    assert mode(c.ALLOCATION_MODE_PERSISTENT) is None and mode(c.ALLOCATION_MODE_AUTO) is None
    assert mode(c.ALLOCATION_MODE_AUTO) is not None


def test_persistent_memory_serves_other_streams_in_order(gpu: hearth.Device) -> None:
    """A block is passed from stream to stream while its last user still runs."""
    out = gpu.zeros(1, np.uint8)
    with gpu.persistent_memory():
        for value in range(1, 30):
            with gpu.stream():
                x = gpu.full(1 << 20, value, np.uint8)
                out.copy_from(x[-1:])
                x.free()
            if value % 7 == 0:
                assert out.item() == value
    assert gpu.memory_usage().bytes_persistent == 1 << 20, "one block, used again each time"
    gpu.memory_cleanup()


@on_cpu  # a GPU's memory would need to be filled
def test_persistent_memory_is_not_given_to_other_sessions(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"memory_limit": "64MiB"})
    with daemon.connect() as first, daemon.connect() as second:
        mine, theirs = first.device(0), second.device(0)
        with mine.persistent_memory():
            mine.full(40 << 20, 1, np.uint8).free()
        assert mine.memory_usage().bytes_persistent == 40 << 20
        refused_array = theirs.empty(32 << 20, np.uint8)
        with pytest.raises(hearth.OutOfMemoryError):
            theirs.synchronize()
        assert mine.memory_usage().bytes_persistent == 40 << 20
        # another size: an allocation of the same session takes precedence over kept memory
        large = mine.full(50 << 20, 2, np.uint8)
        assert large[-1].item() == 2 and mine.memory_usage().bytes_persistent == 0
        large.free()
        with mine.persistent_memory():
            mine.empty(40 << 20, np.uint8).free()
        mine.synchronize()
        first.close()
        del refused_array
        late = theirs.full(32 << 20, 3, np.uint8)
        assert late[-1].item() == 3, "the end of the session freed it"
