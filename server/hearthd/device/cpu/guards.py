"""Guarded arrays: memory around which every access of a kernel is recorded, for validated launches.

The pages around an array are inaccessible while the kernel runs, up to 64 GiB on both sides. The runtime handles the
faults (runtime/guards.cpp): it records the access, makes the page accessible, and repeats the instruction, so that the
kernel continues and nothing outside of the mapping is changed. Accesses within the array's own pages are not recorded:
up to a page before the array, and up to 15 bytes after it if its size is no multiple of 16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from hearthd.device.backend.resources import StrayAccess
from hearthd.device.cpu.streams import CpuStream

_MAX_ACCESSES = 64
"""Number of accesses of one array that are reported, at most one for each page and kind."""
_WRITES = (None, False, True)
"""`StrayAccess.writes` by the kind that the runtime reports."""


class _Stray(ctypes.Structure):
    """An access as the runtime reports it (runtime/guards.h)."""

    _fields_ = (("offset", ctypes.c_int64), ("kind", ctypes.c_uint32), ("block", ctypes.c_uint32 * 3))


def declare_guards(runtime: ctypes.CDLL) -> None:
    """Declares the functions of the runtime library that this module calls."""
    runtime.hearth_guard_make.restype = ctypes.c_void_p
    runtime.hearth_guard_make.argtypes = [ctypes.c_uint64] * 3 + [ctypes.POINTER(ctypes.c_uint64)]
    for function in (runtime.hearth_guard_arm, runtime.hearth_guard_disarm, runtime.hearth_guard_free):
        function.restype, function.argtypes = None, [ctypes.c_void_p]
    runtime.hearth_guard_strays.restype = ctypes.c_uint32
    runtime.hearth_guard_strays.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Stray), ctypes.c_uint32]


class CpuGuard:
    """Memory of one guarded array. Implements `hearthd.device.backend.resources.GuardedMemory`."""

    def __init__(self, runtime: ctypes.CDLL, guard: int, address: int) -> None:
        """Wraps the runtime's `guard`; use `make_guard`."""
        self._runtime = runtime
        self._guard = guard
        self.address = address

    def arm(self, stream: CpuStream) -> None:
        stream.submit(lambda: self._runtime.hearth_guard_arm(self._guard))

    def disarm(self, stream: CpuStream) -> Callable[[], Sequence[StrayAccess]]:
        accesses: list[StrayAccess] = []

        def disarm() -> None:
            self._runtime.hearth_guard_disarm(self._guard)
            strays = (_Stray * _MAX_ACCESSES)()
            count = self._runtime.hearth_guard_strays(self._guard, strays, _MAX_ACCESSES)
            accesses.extend(
                StrayAccess(stray.offset, _WRITES[stray.kind], (stray.block[0], stray.block[1], stray.block[2]))
                for stray in strays[:count]
            )

        stream.submit(disarm)
        return lambda: accesses

    def free(self, stream: CpuStream) -> None:
        stream.submit(lambda: self._runtime.hearth_guard_free(self._guard))


def make_guard(runtime: ctypes.CDLL, size: int, offset: int, array_bytes: int) -> CpuGuard | None:
    """Maps memory for a guarded array.

    Args:
        runtime: Library that launches kernels.
        size: Size of the memory in bytes, with the array's surroundings.
        offset: Offset of the array in the memory.
        array_bytes: Size of the array in bytes.

    Returns:
        The memory, or None if there are no addresses for it, or too many arrays are guarded at the same time.
    """
    address = ctypes.c_uint64()
    guard = runtime.hearth_guard_make(size, offset, array_bytes, ctypes.byref(address))
    return CpuGuard(runtime, guard, address.value) if guard else None
