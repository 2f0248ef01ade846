"""Segments: lookup by address, reuse of blocks, and memory that a fork protects from reuse."""

from __future__ import annotations

import fcntl
import gc
import itertools
import mmap
import os
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.transport import memory_segments, segment_pool
from hearth.transport.memory_segments import AddressTable, KnownSegments, Segment, address_of
from hearth.transport.segment_pool import MAX_SLAB_BLOCK, MIN_BYTES, SLAB, Block, FreeBlocks, SegmentPool, size_class
from tests.support.client.interrupts import InterruptedLock

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


# ---- addresses ----


ranges = st.tuples(st.integers(0, 60), st.integers(1, 12))


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "find"]), ranges), max_size=60))
def test_address_table_agrees_with_a_map_of_every_byte(steps: list[tuple[str, tuple[int, int]]]) -> None:
    table: AddressTable[tuple[int, int, int]] = AddressTable()
    model: dict[int, tuple[int, int, int]] = {}  # address -> (start, size, number)
    for number, (operation, (start, size)) in enumerate(steps):
        if operation == "add":
            item = (start, size, number)
            overlapped = {model[at] for at in range(start, start + size) if at in model}
            model = {at: each for at, each in model.items() if each not in overlapped}
            model |= dict.fromkeys(range(start, start + size), item)
            table.add(start, size, item)
        elif operation == "remove":
            entry = model.get(start)
            if entry is not None:
                table.remove(start, entry)
                if entry[0] == start:
                    model = {at: each for at, each in model.items() if each is not entry}
        else:
            covering = {model.get(at) for at in range(start, start + size)}
            (only,) = covering if len(covering) == 1 else (None,)
            assert table.find(start, size) == (None if only is None else (only, start - only[0]))
    assert len(table) == len(set(model.values()))


def test_a_segment_is_found_by_any_part_of_it_and_nothing_else() -> None:
    known_segments, segment = KnownSegments(), Segment(1 << 16)
    assert known_segments.find(segment.address, 1) is None
    known_segments.add(segment)
    assert known_segments.find(segment.address, segment.size) == (segment, 0)
    assert known_segments.find(segment.address + 77, 5) == (segment, 77)
    assert known_segments.find(segment.address + segment.size - 1, 2) is None
    assert known_segments.find(segment.address - 1, 2) is None
    assert known_segments.find(address_of(memoryview(bytes(100))), 100) is None


def test_released_segment_is_not_found_and_leaves_no_entry() -> None:
    known_segments = KnownSegments()
    segment = Segment(1 << 16)
    known_segments.add(segment)
    address, descriptor, gone = segment.address, segment.descriptor, weakref.ref(segment)
    del segment
    assert gone() is None
    assert known_segments.find(address, 1) is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_a_segment_cannot_change_its_size() -> None:
    segment = Segment(1 << 16)
    assert not segment.bytes.any() and len(segment.bytes) == segment.size
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(segment.descriptor, fcntl.F_GET_SEALS) == seals
    for size in (0, 1 << 20):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(segment.descriptor, size)
    with mmap.mmap(segment.descriptor, segment.size) as again:  # the same memory, mapped at another address
        again[7] = 42
    assert segment.bytes[7] == 42


# ---- blocks ----


@given(st.integers(1, 1 << 40))
def test_size_classes_are_large_enough_and_waste_little(size: int) -> None:
    kind = size_class(size)
    assert kind >= size and kind % 4096 == 0 and size_class(kind) == kind
    if size > MAX_SLAB_BLOCK:
        assert kind - size <= min(size / 8, 16 << 20)
    elif size >= MIN_BYTES:
        assert kind < 2 * size and SLAB % kind == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=80), st.integers(0, 20))
def test_free_blocks_stay_within_their_bound_oldest_out_first(steps: list[tuple[bool, int]], most: int) -> None:
    free, model = FreeBlocks(most), []
    segment = object()
    for put, size in steps:
        if put:
            block = Block(segment, 0, size, 0)  # type: ignore[arg-type]
            gone = free.put(block)
            model.append(block)
            expected = []
            while sum(each.size for each in model) > most:
                expected.append(model.pop(0))
            assert list(map(id, gone)) == list(map(id, expected))
        else:
            reused = free.take(size)
            same = [each for each in model if each.size == size]
            assert reused is (same[-1] if same else None)
            if reused is not None:
                model = [each for each in model if each is not reused]
        assert free.bytes == sum(each.size for each in model) <= most and len(free) == len(model)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def array_of(pool: SegmentPool, size: int) -> np.ndarray:
    return np.asarray(pool.lease(size))[:size]


@pytest.mark.parametrize("size", [MIN_BYTES, 300_000, 3 << 20])
def test_memory_is_used_again_only_when_no_view_is_left(size: int) -> None:
    pool = SegmentPool()
    array = array_of(pool, size)
    address = array.ctypes.data
    view = memoryview(array[10:20].reshape(2, 5))
    del array
    other = array_of(pool, size)
    assert other.ctypes.data != address
    del view
    gc.collect()
    again = array_of(pool, size)
    assert again.ctypes.data == address


def test_small_blocks_share_descriptors() -> None:
    pool = SegmentPool()
    before = descriptors()
    arrays = [array_of(pool, MIN_BYTES) for _ in range(10 * SLAB // MIN_BYTES)]
    assert descriptors() - before <= 2 * 10
    starts = sorted(array.ctypes.data for array in arrays)
    assert all(second - first >= MIN_BYTES for first, second in itertools.pairwise(starts))


def test_cached_memory_is_bounded_and_can_be_trimmed() -> None:
    pool = SegmentPool(cache=10 << 20)
    before = descriptors()
    arrays = [array_of(pool, 4 << 20) for _ in range(5)]
    del arrays
    assert 0 < pool.cached <= 10 << 20
    pool.trim()
    assert pool.cached == 0
    assert descriptors() == before


def test_ctrl_c_while_an_array_is_collected_leaves_the_pool_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pool, "threading", SimpleNamespace(Lock=InterruptedLock))
    pool = SegmentPool()
    for _ in range(3):
        array = array_of(pool, MIN_BYTES)
        del array
    assert pool.cached == MIN_BYTES


def test_invalidated_memory_is_never_reused() -> None:
    pool = SegmentPool()
    lease = pool.lease(4 << 20)
    position = memory_segments.known_segments.find(lease.__array_interface__["data"][0], 4 << 20)
    assert position is not None
    position.segment.spoiled = True
    del lease, position
    assert pool.cached == 0


def test_memory_that_existed_at_a_fork_is_reused_by_neither_process() -> None:
    pool = SegmentPool()
    array = array_of(pool, 4 << 20)
    array_of(pool, 5 << 20)  # kept for reuse
    pool.forking()
    after = array_of(pool, 4 << 20)
    waited = pool.cached
    del array
    assert pool.cached == waited == 5 << 20
    del after
    assert pool.cached == 9 << 20
    pool.forked()  # a child process keeps no blocks for reuse
    assert pool.cached == 0


def test_a_child_finds_its_parents_segments_and_leaves_its_pool_alone() -> None:
    pool = segment_pool.pool
    array = array_of(pool, 2 << 20)
    array_of(pool, 2 << 20)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            array[0] = 99  # shared with the parent
            fine = pool.cached == 0 and memory_segments.known_segments.find(array.ctypes.data, array.nbytes) is not None
            other = array_of(pool, 2 << 20)
            other.fill(1)
            os.write(writing, b"y" if fine else b"n")
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"y"
    os.waitpid(pid, 0)
    os.close(reading)
    assert array[0] == 99
    address = array.ctypes.data
    del array
    assert array_of(pool, 2 << 20).ctypes.data != address


def test_many_threads_never_share_a_block() -> None:
    pool, failures = SegmentPool(cache=1 << 20), []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            array = array_of(pool, int(random.integers(MIN_BYTES, 400_000)))
            array[:4096] = seed
            view = array[1000:2000]
            del array
            if (view != seed).any():
                failures.append(seed)

    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(previous)
    assert not failures
    assert pool.cached <= 1 << 20
