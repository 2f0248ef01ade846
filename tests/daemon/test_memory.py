"""Device memory: counted, bounded, given back; and what happens when it is not there."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c

from .conftest import StartDaemon
from .harness import on_cpu, wait_until
from .kernels import saxpy_works
from .raw import Raw


def test_usage_counts_what_is_held(gpu: hearth.Device) -> None:
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


def test_the_collector_gives_back(gpu: hearth.Device) -> None:
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


def test_used_after_free_is_named(gpu: hearth.Device) -> None:
    x = gpu.zeros(4)
    view = x[:2]
    x.free()
    x.free()
    for use in (x.get, view.get, lambda: x.fill(0), lambda: view.set(np.zeros(2)), x.copy):
        with pytest.raises(hearth.InvalidHandleError, match="was freed"):
            use()
    assert "freed" in repr(x)


def test_out_of_memory_says_the_numbers(gpu: hearth.Device) -> None:
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
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        x.get()  # there is nothing behind it, and the reason stays the same
    assert caught.value.reason == "ALLOCATION_FAILED" and str(most + 1) in str(caught.value)
    saxpy_works(gpu)


def test_out_of_memory_fails_what_depends_on_it_and_nothing_else(gpu: hearth.Device) -> None:
    good = gpu.asarray(np.arange(10))
    bad = gpu.zeros(gpu.memory_usage().device_total + 1, np.uint8)
    bad[:10].copy_from(good.view(np.uint8)[:10])
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        gpu.synchronize()
    assert caught.value.failures[0].command == "allocate"
    np.testing.assert_array_equal(good.get(), np.arange(10))
    bad.free()
    gpu.synchronize()


@on_cpu  # whose limit is a number of its own; a GPU's would have to be filled
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
        assert details["free"] == 0 and details["reserved"] == 64 << 20
        held.pop().free()
        late = gpu.full(16 << 20, 9, np.uint8)
        assert late.get().sum() == 9 * (16 << 20)
        for index, array in enumerate(held):
            assert (array.get() == index).all()


def test_many_sessions_share_the_limit_and_give_it_back(start_daemon: StartDaemon) -> None:
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


def test_what_follows_an_allocation_that_failed_is_not_reported_beside_it(gpu: hearth.Device) -> None:
    lost = gpu.zeros(1 << 45, np.float64)  # an allocation and a fill
    lost.fill(3)
    with pytest.raises(hearth.OutOfMemoryError, match="never fit") as caught:
        gpu.synchronize()
    assert [failure.command for failure in caught.value.failures] == ["allocate"]
    with pytest.raises(hearth.HearthError, match="no memory behind it"):
        lost[:4].get()
