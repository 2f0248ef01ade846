"""Pool of page-locked memory: small size classes, growth on another thread, and a host that refuses."""

from __future__ import annotations

import random
import threading

import pytest

from hearthd.device.resources.host_pool import LARGEST_SMALL, PAGE, RETRY_S, SMALLEST_SLAB, HostPool, PinnedBuffer
from tests.support.device.host_memory import Host

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(
    lockable: int = 64 * MIB, cap: int = 8 * MIB, slab: int = 2 * MIB
) -> tuple[HostPool, Host, Clock, threading.Event]:
    host, clock, grown = Host(lockable), Clock(), threading.Event()
    return HostPool(cap, lock=host.lock, slab=slab, on_grown=grown.set, clock=clock), host, clock, grown


def test_buffers_are_separate_writable_and_of_the_requested_size() -> None:
    pool, _, _, _ = make()
    sizes = [1, 255, 256, 257, 4096, LARGEST_SMALL, LARGEST_SMALL + 1, 100_000]
    buffers = [pool.allocate(size) for size in sizes]
    for number, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
        assert buffer is not None and buffer.size == size == len(buffer.view)
        buffer.view[:] = bytes([number]) * size
    for number, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
        assert buffer is not None and bytes(buffer.view) == bytes([number]) * size
    assert pool.in_use == sum(sizes)


def test_no_bytes_need_no_memory() -> None:
    pool, host, _, _ = make()
    buffer = pool.allocate(0)
    assert buffer is not None and buffer.size == 0 and buffer.address == 0 and len(buffer.view) == 0
    pool.free(buffer)
    assert pool.in_use == 0 and len(host.asked) == 1


def test_small_buffers_share_pages_and_leave_no_holes() -> None:
    """A thousand buffers of 100 bytes in use take two pages instead of a thousand ranges of the slab."""
    pool, _, _, _ = make()
    buffers = [pool.allocate(100) for _ in range(1000)]
    assert None not in buffers
    assert len({(buffer.address // PAGE) for buffer in buffers if buffer}) <= 5
    random.Random(1).shuffle(buffers)
    for buffer in buffers:
        assert buffer is not None
        pool.free(buffer)
    assert pool.in_use == 0
    slab = pool.allocate(2 * MIB)
    assert slab is not None, "the pages are returned when the whole slab is needed"
    assert pool.allocate(100) is None


def test_double_release_is_ignored() -> None:
    pool, _, _, _ = make()
    for size in (100, 100_000):
        first = pool.allocate(size)
        assert first is not None
        pool.free(first)
        pool.free(first)
        assert pool.in_use == 0
        second, third = pool.allocate(size), pool.allocate(size)
        assert second is not None and third is not None and second.address != third.address
        pool.free(second)
        pool.free(third)


def test_pool_grows_on_another_thread_up_to_the_cap() -> None:
    pool, host, _, grown = make(cap=4 * MIB)
    references: list[PinnedBuffer] = []
    first = pool.allocate(2 * MIB)
    assert first is not None and pool.allocate(4096) is None, "nothing is locked on this thread"
    assert grown.wait(10) and pool.grown() and not pool.grown()
    references.append(first)
    second = pool.allocate(2 * MIB)
    assert second is not None and pool.pinned == 4 * MIB
    assert pool.allocate(4096) is None and not pool.grown() and pool.pinned == 4 * MIB
    assert [name for _, name in host.asked] == [threading.current_thread().name, "page-lock"]
    assert pool.refusal(4096) is None, "the cap is no refusal of the host: memory in use is returned later"
    pool.free(first)
    assert pool.allocate(4096) is not None


def test_refused_growth_is_retried_after_a_pause() -> None:
    pool, host, clock, grown = make(lockable=2 * MIB)
    first = pool.allocate(2 * MIB)
    assert first is not None and pool.refusal(100) is None
    assert pool.allocate(100) is None and grown.wait(10) and pool.grown()
    refusal = pool.refusal(100)
    assert refusal is not None and "cannot lock" in refusal.message and refusal.fix
    assert refusal.details["pinned"] == str(2 * MIB)
    grown.clear()
    assert pool.allocate(100) is None and len(host.asked) == 2, "it was refused recently"
    host.left = 64 * MIB
    clock.now += RETRY_S + 1
    assert pool.refusal(100) is None and pool.allocate(100) is None
    assert grown.wait(10) and pool.grown() and pool.allocate(100) is not None and pool.refusal(100) is None


@pytest.mark.parametrize(("lockable", "pinned"), [(5 * MIB, 2 * MIB), (0, 0)])
def test_smaller_initial_slabs_are_requested_after_a_refusal(lockable: int, pinned: int) -> None:
    pool, host, _, _ = make(lockable=lockable, slab=8 * MIB)
    assert pool.pinned == pinned and min(size for size, _ in host.asked) >= SMALLEST_SLAB
    if pinned:
        assert pool.allocate(1000) is not None and pool.refusal(1000) is None
    else:
        assert pool.allocate(1000) is None and pool.refusal(1000) is not None
    assert pool.info().pinned == pinned
