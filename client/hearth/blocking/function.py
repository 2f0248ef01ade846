"""Kernels whose attributes block the calling thread until they are compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth import progress
from hearth.errors import ArgumentError, UnsupportedError
from hearth.kernels.base_function import ATTRIBUTES, BaseFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.kernels.occupancy import Occupancy
    from hearth_proto.v1 import commands_pb2


class Function(BaseFunction):
    """A kernel, called as in CuPy, ``f((grid,), (block,), (args...))``, or as in Numba, ``f[grid, block](args...)``.

    Launches do not block. The attributes, which have CuPy's names, block until the kernel is compiled, and raise
    `CompileError` if it does not compile.
    """

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes below except `parameters`, by CuPy's ten names.

        Blocks until the kernel is compiled.
        """
        return {name: getattr(self, name) for name in ATTRIBUTES}

    @property
    def num_regs(self) -> int:
        """Registers per thread; 0 if the backend has no registers."""
        return self._describe().registers

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory of a block, in bytes."""
        return self._describe().static_shared_bytes

    @property
    def local_size_bytes(self) -> int:
        """Local memory of a thread, in bytes."""
        return self._describe().local_bytes

    @property
    def const_size_bytes(self) -> int:
        """Constant memory, in bytes."""
        return self._describe().constant_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Number of threads of the largest block that the kernel's use of registers allows."""
        return self._describe().max_threads_per_block

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Maximum dynamic shared memory of a launch, in bytes.

        May be set, as in CuPy, to a number up to this maximum, without effect: each launch requests the memory that it
        needs.
        """
        return self._describe().max_dynamic_shared_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        maximum = self.max_dynamic_shared_size_bytes
        if not 0 <= size <= maximum:
            raise ArgumentError(
                f"{size} bytes of dynamic shared memory for {self.name}; a launch may have {maximum}.",
                fix=f"set at most {maximum}, or nothing: a launch requests what it needs.",
            )

    @property
    def preferred_shared_memory_carveout(self) -> int:
        """Preferred shared memory of a multiprocessor in percent of the maximum; -1: the driver's default.

        May be set, to a hint that the driver need not follow; the call waits for the compile. The CPU backend ignores
        it.
        """
        return self._describe().preferred_shared_memory_carveout

    @preferred_shared_memory_carveout.setter
    def preferred_shared_memory_carveout(self, percent: int) -> None:
        described = self._request_description(percent).wait()
        if described.preferred_shared_memory_carveout != percent:
            raise UnsupportedError(
                "this daemon does not set the preferred shared memory of kernels.",
                fix="use a newer daemon.",
            )
        self._described, self._carveout = described, percent

    @property
    def ptx_version(self) -> int:
        """Version of the PTX from which the kernel was compiled, 10 * major + minor; 0 on the CPU backend."""
        return self._describe().ptx_version

    @property
    def binary_version(self) -> int:
        """Compute capability for which the kernel was compiled, 10 * major + minor; 0 on the CPU backend."""
        return self._describe().binary_version

    @property
    def cache_mode_ca(self) -> int:
        """1 if the kernel was compiled with ``-Xptxas --dlcm=ca``, otherwise 0."""
        return int(self._describe().cache_mode_ca)

    @property
    def parameters(self) -> list[tuple[int, int]]:
        """(offset, size) in bytes of each parameter in the parameter block."""
        return [(parameter.offset, parameter.size) for parameter in self._describe().parameters]

    def occupancy(self, block: Any, shared_mem: int = 0, *, cluster: Any = None) -> Occupancy:
        """Computes the number of blocks of the kernel that the device can run at the same time. Waits for the compile.

        Args:
            block: Threads of a block along each axis: an int or a tuple of one to three.
            shared_mem: Dynamic shared memory of a block in bytes.
            cluster: Blocks of a cluster along each axis; None: no clusters.

        Returns:
            Blocks on a multiprocessor, number of multiprocessors, and further limits.

        Raises:
            LaunchError: No multiprocessor can run such a block.
        """
        return self._request_occupancy(block, shared_mem, cluster).wait()

    def forall(self, n: int, block: int = 0, stream: Any = None, shared_mem: int = 0) -> Callable[..., None]:
        """Binds a launch of at least `n` threads, in blocks of the size with the highest occupancy, as in Numba.

        The grid may have more than `n` threads: the kernel must compare its index with the number of elements. Waits
        for the compile if `block` is 0.

        Args:
            n: Number of threads; 0: the launch does nothing.
            block: Threads of a block; 0: the size with the highest occupancy.
            stream: Stream of the launch; None or 0: the current one.
            shared_mem: Dynamic shared memory of a block in bytes.

        Returns:
            A function that takes the kernel's arguments and launches it: ``f.forall(n)(args...)``.

        Raises:
            ArgumentError: `n` or `block` is negative.
            CompileError: The kernel does not compile.
        """
        if not block:
            block = self._blocks.get(shared_mem, 0)
        if not block:
            block = self._blocks[shared_mem] = self._request_suggestion(shared_mem).wait().suggested_block
        return self._covering(n, block, stream, shared_mem)

    def _describe(self) -> commands_pb2.FunctionResult:
        if self._described is None:
            with progress.waiting("compile"):
                self._described = self._request_description().wait()
        return self._described
