"""Settings of the C library's allocator.

They keep freed memory in this process for reuse, and return it to the system on request. Every chunk of a transfer is a
new object of a megabyte. By default glibc maps such objects one by one and unmaps them immediately, so that for each
chunk the kernel must clear its pages, which costs more than all copies of the chunk together.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20
"""Largest value that glibc accepts on 64-bit machines, in bytes (mallopt(3))."""


def keep_freed_memory(keep_bytes: int, arenas: int = 0) -> None:
    """Keeps free memory mapped, for reuse by this process.

    Must be called before any thread starts. Has no effect if the C library has no mallopt.

    Args:
        keep_bytes: Largest amount of free memory that each heap keeps, in bytes.
        arenas: Largest number of heaps, which threads share; 0: the C library's default, eight for each core.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, min(keep_bytes, (1 << 31) - 1))
        if arenas:
            mallopt(M_ARENA_MAX, arenas)


def return_free_memory() -> None:
    """Returns all free memory to the system, including memory that is kept for reuse.

    Takes some milliseconds. Has no effect if the C library has no malloc_trim.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
