"""Modules and their kernels, for asyncio: launches do not wait, and requests to the compiler are awaited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from hearth import telemetry
from hearth.aio.array import DeviceArray
from hearth.kernels.base_function import ATTRIBUTES, BaseFunction
from hearth.kernels.base_module import BaseGlobalArray, BaseModule, logged

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth import shapes
    from hearth.aio.connection import LoopConnection
    from hearth.kernels.occupancy import Occupancy
    from hearth_proto.v1 import commands_pb2


class Function(BaseFunction):
    """The asyncio counterpart of `hearth.Function`.

    Launches are plain calls, which never wait; attributes are awaited: ``await f.num_regs()``.
    """

    _connection: LoopConnection

    async def attributes(self) -> dict[str, int]:
        """Returns the attributes below except `parameters`, by CuPy's ten names."""
        return {name: await getattr(self, name)() for name in ATTRIBUTES}

    async def num_regs(self) -> int:
        """Returns the registers per thread; 0 if the backend has no registers."""
        return (await self._describe()).registers

    async def shared_size_bytes(self) -> int:
        """Returns the static shared memory of a block, in bytes."""
        return (await self._describe()).static_shared_bytes

    async def local_size_bytes(self) -> int:
        """Returns the local memory of a thread, in bytes."""
        return (await self._describe()).local_bytes

    async def const_size_bytes(self) -> int:
        """Returns the constant memory, in bytes."""
        return (await self._describe()).constant_bytes

    async def max_threads_per_block(self) -> int:
        """Returns the number of threads of the largest block that the kernel's use of registers allows."""
        return (await self._describe()).max_threads_per_block

    async def max_dynamic_shared_size_bytes(self) -> int:
        """Returns the maximum dynamic shared memory of a launch, in bytes."""
        return (await self._describe()).max_dynamic_shared_bytes

    async def preferred_shared_memory_carveout(self) -> int:
        """Returns the preferred shared memory of a multiprocessor in percent; -1: the driver's default."""
        return (await self._describe()).preferred_shared_memory_carveout

    async def ptx_version(self) -> int:
        """Returns the version of the PTX of the kernel, 10 * major + minor; 0 on the CPU backend."""
        return (await self._describe()).ptx_version

    async def binary_version(self) -> int:
        """Returns the compute capability of the compiled kernel, 10 * major + minor; 0 on the CPU backend."""
        return (await self._describe()).binary_version

    async def cache_mode_ca(self) -> int:
        """Returns 1 if the kernel was compiled with ``-Xptxas --dlcm=ca``, otherwise 0."""
        return int((await self._describe()).cache_mode_ca)

    async def parameters(self) -> list[tuple[int, int]]:
        """Returns (offset, size) in bytes of each parameter in the parameter block."""
        return [(parameter.offset, parameter.size) for parameter in (await self._describe()).parameters]

    async def occupancy(self, block: Any, shared_mem: int = 0, *, cluster: Any = None) -> Occupancy:
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
        return await self._connection.result_of(partial(self._request_occupancy, block, shared_mem, cluster))

    async def forall(self, n: int, block: int = 0, stream: Any = None, shared_mem: int = 0) -> Callable[..., None]:
        """Binds a launch of at least `n` threads, in blocks of the size with the highest occupancy, as in Numba.

        The grid may have more than `n` threads: the kernel must compare its index with the number of elements. Waits
        for the compile if `block` is 0.

        Args:
            n: Number of threads; 0: the launch does nothing.
            block: Threads of a block; 0: the size with the highest occupancy.
            stream: Stream of the launch; None or 0: the current one.
            shared_mem: Dynamic shared memory of a block in bytes.

        Returns:
            A function that takes the kernel's arguments and launches it: ``(await f.forall(n))(args...)``.

        Raises:
            ArgumentError: `n` or `block` is negative.
            CompileError: The kernel does not compile.
        """
        if not block:
            block = self._blocks.get(shared_mem, 0)
        if not block:
            occupancy = await self._connection.result_of(partial(self._request_suggestion, shared_mem))
            block = self._blocks[shared_mem] = occupancy.suggested_block
        return self._covering(n, block, stream, shared_mem)

    async def _describe(self) -> commands_pb2.FunctionResult:
        described = self._described
        if described is None:
            self._described = described = await self._connection.result_of(self._request_description)
        return described


class GlobalArray(BaseGlobalArray, DeviceArray):
    """The asyncio counterpart of `hearth.blocking.module.GlobalArray`: a variable of a module."""

    __slots__ = ()


class RawModule(BaseModule[Function, GlobalArray]):
    """The asyncio counterpart of `hearth.RawModule`: `compile`, `functions`, `globals` and `get_global` are awaited."""

    _connection: LoopConnection
    _function_type = Function
    _global_type = GlobalArray

    @telemetry.traced("hearth.compile")
    async def compile(self, log_stream: TextIO | None = None, *, timeout: float | None = None) -> None:
        """Returns when the module is compiled and loaded.

        Args:
            log_stream: Text file to which the compiler's messages are written.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            CompileError: The code does not compile.
            QuotaExceededError: The module was not loaded because a running kernel did not end; a later call tries
                again.
            TimeoutError: The compile is not done in time; it continues.
        """
        with logged(log_stream) as log:
            log.append(self._notes)
            log.append((await self._describe(timeout)).log)

    async def functions(self) -> list[str]:
        """Returns the names of the kernels of the module. Waits until the module is compiled."""
        return list((await self._describe()).functions)

    async def globals(self) -> list[str]:
        """Returns the names of the variables of the module. Waits until the module is compiled."""
        return list((await self._describe()).globals)

    async def get_global(self, name: str, dtype: Any = None, shape: shapes.Shape | None = None) -> GlobalArray:
        """Returns a ``__constant__`` or ``__device__`` variable as an array. Waits until the module is compiled.

        Args:
            name: Name of the variable in the code.
            dtype: Type of its elements; None: bytes, which can be set from any array of the same size.
            shape: Elements along each axis; None: one axis of all elements.

        Returns:
            The variable's memory as an array.

        Raises:
            InvalidHandleError: There is no such variable.
            ArgumentError: An array of `dtype` and `shape` does not have the variable's size.
        """
        return await self._connection.result_of(partial(self._request_global, name, dtype, shape))

    async def _describe(self, timeout: float | None = None) -> commands_pb2.ModuleResult:
        return await self._connection.result_of(self._request_description, timeout)
