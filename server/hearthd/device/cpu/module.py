"""A compiled module in this process: its functions, its variables, and their launch.

Nothing is left on disk: an image is loaded from an anonymous file. A module can use symbols of the runtime, but none of
other modules.
"""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import FunctionAttributes
from hearthd.device.cpu.guards import declare_guards
from hearthd.device.cpu.images.image import shared_bytes as kernels_shared_bytes
from hearthd.device.cpu.libraries import LibraryMaker
from hearthd.device.cpu.racecheck import MARK, Race, RaceReports


class _Param(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint32), ("size", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("params", ctypes.POINTER(_Param)),
        ("param_count", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("param_align", ctypes.c_uint32),
        ("max_threads", ctypes.c_uint32),
        ("run", ctypes.c_void_p),
    )


class _Global(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("size", ctypes.c_uint64))


class _Module(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint64),
        ("kernels", ctypes.POINTER(_Kernel)),
        ("kernel_count", ctypes.c_uint64),
        ("globals", ctypes.POINTER(_Global)),
        ("global_count", ctypes.c_uint64),
    )


MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
"""Limits of every GPU since compute capability 3.0 (CUDA C++ Programming Guide, 20.2)."""

_Dim3 = ctypes.c_uint32 * 3
_serial = itertools.count(1)
_runtime_lock = threading.Lock()
_runtimes: dict[str, ctypes.CDLL] = {}
"""The loaded runtime (at most one), by the name of its build. The name contains a digest of everything that determines
the build, so a copy in another cache is the same."""


def load_runtime(maker: LibraryMaker) -> ctypes.CDLL:
    """Returns the runtime library, which is compiled and loaded once for the process.

    Calls into the library release the GIL.
    """
    path = maker.library("runtime")
    build = path.parent.name
    with _runtime_lock:
        if build not in _runtimes:
            if _runtimes:  # the symbols of the second build would be shadowed by those of the first
                raise Refusal(Reason.MODULE_INVALID, "This process has loaded another build of the runtime.")
            library = ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
            library.hearth_launch.restype = None
            library.hearth_launch.argtypes = [
                ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
            ]  # fmt: skip
            library.hearth_abi.restype = ctypes.c_uint64
            library.hearth_record.restype = library.hearth_whose.restype = None
            library.hearth_record.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
            library.hearth_whose.argtypes = [ctypes.c_char_p]
            declare_guards(library)
            _runtimes[build] = library
        return _runtimes[build]


class _Code:
    """A library that stays loaded while this object is referenced, by functions and by queued launches."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __del__(self) -> None:
        _ctypes.dlclose(self._library._handle)  # ctypes itself never unloads a library


class CpuFunction:
    """A kernel of a loaded module. Implements `hearthd.device.backend.resources.Function`."""

    def __init__(
        self,
        code: _Code,
        runtime: ctypes.CDLL,
        kernel: _Kernel,
        static_shared_bytes: int,
        races: RaceReports | None = None,
    ) -> None:
        self.name: str = kernel.name.decode()
        self.parameters: tuple[tuple[int, int], ...] = tuple(
            (kernel.params[i].offset, kernel.params[i].size) for i in range(kernel.param_count)
        )
        self.kinds = "".join(chr(kernel.params[i].kind) for i in range(kernel.param_count))
        self.attributes = FunctionAttributes(
            static_shared_bytes=static_shared_bytes, max_threads_per_block=min(MAX_THREADS, kernel.max_threads)
        )
        self._param_bytes: int = kernel.param_bytes
        self._code = code  # keeps the library loaded
        self._address = ctypes.addressof(kernel)
        self._launch = runtime.hearth_launch
        self._races = races

    def prefer_shared(self, percent: int) -> None:
        """Sets the attribute, which has no effect on this backend."""
        self.attributes = replace(self.attributes, carveout=percent)

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        params: bytes | bytearray,
        cooperative: bool = False,
    ) -> Sequence[Race]:
        """Runs the kernel and returns when all its blocks have ended.

        Any number of threads may run kernels concurrently.

        In a `cooperative` launch all blocks run at the same time, each on a separate thread, so that they may wait for
        each other (`grid.sync()`); the caller must keep their number within the result of `occupancy`. `params` is the
        parameter block, laid out by C's rules (`parameters`). Raises `Refusal` as `check` does; an error of the kernel
        itself ends the process.

        Returns the races in shared memory that the kernel had, if its module checks for them.
        """
        self.check(grid, block, shared_bytes, params)
        data = bytes(params) if isinstance(params, bytearray) else params
        self._launch(self._address, _Dim3(*grid), _Dim3(*block), shared_bytes, data, cooperative)
        return () if self._races is None else self._races.pop_all(self.name, block)

    @property
    def checks_races(self) -> bool:
        """True if launches record the races in shared memory that they had."""
        return self._races is not None

    def check(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, params: bytes | bytearray
    ) -> None:
        """Raises `Refusal` (LAUNCH_INVALID) for an invalid geometry or parameter block.

        Like CUDA's driver, does not rely on an earlier check.
        """
        threads = block[0] * block[1] * block[2]
        max_threads = self.attributes.max_threads_per_block
        fits = all(1 <= axis <= maximum for axis, maximum in zip((*grid, *block), (*MAX_GRID, *MAX_BLOCK), strict=True))
        if not fits or threads > max_threads:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"{self.name}: grid {grid} and block {block} were requested; each dimension must be at least 1, a "
                f"grid at most {MAX_GRID}, and a block at most {MAX_BLOCK} with {max_threads} threads.",
                details={"grid": grid, "block": block, "max_threads_per_block": max_threads},
            )
        if len(params) < self._param_bytes or shared_bytes < 0:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"{self.name}: {len(params)} bytes of parameters were given, the kernel takes {self._param_bytes}.",
                details={"given": len(params), "expected": self._param_bytes, "shared_bytes": shared_bytes},
            )


class CpuModule:
    """A module loaded from an image that `CpuCompiler` made. Implements `hearthd.device.backend.resources.Module`.

    `extern "C"` kernels have their own names, others the name expressions exactly as given to the compiler. The code is
    unloaded with the last reference to the module and its functions. Raises `Refusal` (MODULE_INVALID) if the image was
    not made for this machine.
    """

    def __init__(self, image: bytes, maker: LibraryMaker) -> None:
        self.runtime = load_runtime(maker)
        shared_bytes = kernels_shared_bytes(image)
        if shared_bytes is None:
            raise Refusal(Reason.MODULE_INVALID, "The image is not a module of the CPU backend.")
        library = _load(image)
        self._code = _Code(library)
        table = _Module.in_dll(library, "hearth_module")
        if table.abi != self.runtime.hearth_abi():
            raise Refusal(
                Reason.MODULE_INVALID,
                "The image was compiled for another build of the CPU backend.",
                fix="Compile the source again.",
            )
        kernels = [table.kernels[i] for i in range(table.kernel_count)]
        races = RaceReports(image, self.runtime) if MARK in image else None
        self._functions = {
            kernel.name.decode(): CpuFunction(self._code, self.runtime, kernel, shared, races)
            for kernel, shared in zip(kernels, shared_bytes, strict=True)
        }
        self._globals: dict[str, tuple[int, int]] = {
            table.globals[i].name.decode(): (table.globals[i].address or 0, table.globals[i].size)
            for i in range(table.global_count)
        }

    @property
    def functions(self) -> list[str]:
        return list(self._functions)

    @property
    def globals(self) -> list[str]:
        return list(self._globals)

    def function(self, name: str) -> CpuFunction:
        """Returns the kernel `name`. Raises `Refusal` (FUNCTION_NOT_FOUND), which lists the existing kernels."""
        function = self._functions.get(name)
        if function is None:
            kernels = ", ".join(sorted(self._functions)) or "none"
            raise Refusal(
                Reason.FUNCTION_NOT_FOUND,
                f"The module has no kernel {name!r}; it has: {kernels}.",
                fix='Declare the kernel extern "C", or pass its C++ name in name_expressions.',
                details={"name": name, "functions": kernels},
            )
        return function

    def global_(self, name: str) -> tuple[int, int]:
        """Returns the address, and the size in bytes, of a `__device__` or `__constant__` variable.

        Raises `Refusal` (GLOBAL_NOT_FOUND).
        """
        variable = self._globals.get(name)
        if variable is None:
            variables = ", ".join(sorted(known for known in self._globals if not known.startswith("&"))) or "none"
            raise Refusal(
                Reason.GLOBAL_NOT_FOUND,
                f"The module has no variable {name!r}; it has: {variables}.",
                fix="Declare it __device__ or __constant__ at namespace scope.",
                details={"name": name, "globals": variables},
            )
        return variable


def _load(image: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create("hearth-module", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(image)
        # For a path that it has seen before, the loader returns the library that it has loaded already. Descriptors are
        # reused, so each load spells the path differently: the bits of a serial number as './' and '/'.
        spelling = "".join("./" if bit == "1" else "/" for bit in f"{next(_serial):b}")
        try:
            return ctypes.CDLL(f"/proc/self/fd/{spelling}{descriptor}", mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            reason = re.sub(r"/proc/self/fd/[./\d]*(: )?", "", str(error))  # the path is internal
            raise Refusal(Reason.MODULE_INVALID, f"The image cannot be loaded: {reason}.") from None
    finally:
        os.close(descriptor)
