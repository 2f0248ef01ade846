"""Occupancy: the number of blocks that a virtual device holds at once.

A core of the CPU stands for a multiprocessor. Its limits are modelled on an H100 (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability"), with fewer blocks: in a cooperative launch each is a thread of the
operating system. Launches of other kinds are not bound by any of it, their blocks run one after the other.
"""

from __future__ import annotations

WARP_SIZE = 32
BLOCKS = 16
"""Blocks that one multiprocessor holds."""

THREADS = 2048
"""Threads that one multiprocessor holds."""

SHARED_BYTES = 228 << 10
RESERVED_BYTES = 1 << 10
"""Shared memory of one multiprocessor, and what the system takes of it for each block."""

MAX_BLOCK = 1024
"""Threads of a block at most."""


def blocks_per_multiprocessor(threads: int, max_threads: int, shared_bytes: int) -> int:
    """Returns how many blocks of `threads` threads, with `shared_bytes` of static and dynamic shared memory, one
    multiprocessor holds; 0 where the block is larger than `max_threads`, the kernel's limit. Threads count in whole
    warps."""
    if not 0 < threads <= max_threads:
        return 0
    warps = -(-threads // WARP_SIZE)
    return min(BLOCKS, THREADS // (warps * WARP_SIZE), SHARED_BYTES // (shared_bytes + RESERVED_BYTES))


def suggested_block(max_threads: int, shared_bytes: int) -> int:
    """The largest block of those with which one multiprocessor holds most threads: cuOccupancyMaxPotentialBlockSize."""
    best, most = 0, 0
    sizes = {*range(WARP_SIZE, max_threads + 1, WARP_SIZE), max_threads}
    for threads in sorted(sizes, reverse=True):
        held = threads * blocks_per_multiprocessor(threads, max_threads, shared_bytes)
        if held > most:
            best, most = threads, held
    return best
