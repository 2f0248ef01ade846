"""Occupancy: the number of blocks that a virtual device holds at the same time.

A core of the CPU represents a multiprocessor. Its limits are modelled on an H100 (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability"), with fewer blocks, because in a cooperative launch each block is a
thread of the operating system. Other launches are not limited by occupancy: their blocks run one after the other.
"""

from __future__ import annotations

WARP_SIZE = 32
BLOCKS = 16
"""Largest number of blocks that one multiprocessor holds."""

THREADS = 2048
"""Largest number of threads that one multiprocessor holds."""

SHARED_BYTES = 228 << 10
RESERVED_BYTES = 1 << 10
"""Shared memory of one multiprocessor, and the part of it that the system reserves for each block, in bytes."""


def blocks_per_multiprocessor(threads: int, max_threads: int, shared_bytes: int) -> int:
    """Returns the number of blocks of `threads` threads that one multiprocessor holds.

    `shared_bytes` is the static and dynamic shared memory of a block. The number of threads is rounded up to whole
    warps. Returns 0 if the block is larger than `max_threads`, the kernel's limit.
    """
    if not 0 < threads <= max_threads:
        return 0
    warps = -(-threads // WARP_SIZE)
    return min(BLOCKS, THREADS // (warps * WARP_SIZE), SHARED_BYTES // (shared_bytes + RESERVED_BYTES))


def suggested_block(max_threads: int, shared_bytes: int) -> int:
    """Returns the largest of the block sizes with which one multiprocessor holds the most threads.

    Corresponds to cuOccupancyMaxPotentialBlockSize.
    """
    best, max_resident = 0, 0
    sizes = {*range(WARP_SIZE, max_threads + 1, WARP_SIZE), max_threads}
    for threads in sorted(sizes, reverse=True):
        resident = threads * blocks_per_multiprocessor(threads, max_threads, shared_bytes)
        if resident > max_resident:
            best, max_resident = threads, resident
    return best
