"""Keeps freed memory in this process, for the next buffer of its kind, and gives it back when there will be none.

Every chunk of a transfer is a fresh object of a megabyte. By default glibc maps such objects one by one and gives them
back at once, so that each chunk pays for the kernel clearing its pages: more than all copies of it together.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20
"""Largest value that glibc accepts on 64-bit machines, in bytes (mallopt(3))."""


def keep_freed_memory(keep_bytes: int, arenas: int = 0) -> None:
    """Keeps up to `keep_bytes` of free memory mapped, in each of at most `arenas` heaps that threads share; 0: the C
    library's default, which is eight a core. To be called before there are threads. Has no effect where the C library
    has no mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, min(keep_bytes, (1 << 31) - 1))
        if arenas:
            mallopt(M_ARENA_MAX, arenas)


def give_back() -> None:
    """Free memory goes back to the system now, also what is kept. Takes some milliseconds. Does nothing where the C
    library has no malloc_trim."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
