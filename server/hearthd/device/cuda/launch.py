"""Modules, their functions, and launches with a packed parameter block."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import driver as cu
from cupy_backends.cuda.api.driver import launchKernel

from hearth_proto.launches import MAX_PARAMETER_BYTES
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend import access_table
from hearthd.device.backend.compiler import Image
from hearthd.device.backend.graph_nodes import LaunchAttributes
from hearthd.device.backend.resources import FunctionAttributes
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.parameter_kinds import parameter_kinds
from hearthd.device.cuda.attributes import allow_cluster, driver_attributes, launch_config
from hearthd.device.cuda.errors import (
    INVALID_VALUE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    CudaError,
    checked,
    is_fatal,
    status_of,
    translate,
    translated,
)
from hearthd.device.cuda.kernel_output import create_output_buffer
from hearthd.device.cuda.streams import Stream

_LOG_BYTES = 16 << 10
_MAX_LISTED = 16
"""Largest number of names that a refusal lists."""

_MAX_PRELOADED = 1024
"""Largest number of kernels loaded together with their module; in a larger module, further kernels are loaded at first
use."""

# cuda.h: keys of cuLaunchKernel's `extra` array, which locates the parameter block
_PARAM_END, _PARAM_POINTER, _PARAM_SIZE = 0, 1, 2


_DEFAULT_STACK = 1 << 10
"""Local memory of a thread, in bytes, that a new context provides for (cudaLimitStackSize)."""

DEFAULT_SHARED = 48 << 10
"""Shared memory of a block, in bytes, without opting in to more (CUDA C++ Programming Guide, "Shared Memory")."""


class CudaFunction:
    """A kernel. The constructor loads its code, so that the first launch need not load it."""

    __slots__ = ("attributes", "dynamic_limit", "kinds", "module", "name", "parameters", "pointer")

    def __init__(self, module: CudaModule, name: str, pointer: int, kinds: str = "") -> None:
        self.module = module  # the code stays loaded as long as its functions exist
        self.name = name
        self.pointer = pointer
        self.parameters = _parameters(pointer)
        self.kinds = kinds if len(kinds) == len(self.parameters) else "?" * len(self.parameters)
        self.attributes = FunctionAttributes(
            registers=_attribute(cu.CU_FUNC_ATTRIBUTE_NUM_REGS, pointer),
            static_shared_bytes=_attribute(cu.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, pointer),
            local_bytes=_attribute(cu.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, pointer),
            constant_bytes=_attribute(cu.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, pointer),
            max_threads_per_block=_attribute(cu.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, pointer),
            ptx_version=_attribute(cu.CU_FUNC_ATTRIBUTE_PTX_VERSION, pointer),
            binary_version=_attribute(cu.CU_FUNC_ATTRIBUTE_BINARY_VERSION, pointer),
            cache_mode_ca=_attribute(cu.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, pointer),
            carveout=int(cu.funcGetAttribute(cu.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, pointer)),
        )
        self.dynamic_limit = DEFAULT_SHARED - self.attributes.static_shared_bytes
        """Dynamic shared memory in bytes that a launch may use without a further opt-in."""

    def prefer_shared(self, percent: int) -> None:
        """Sets the preferred shared memory, in percent of the device's maximum; -1: the driver's default."""
        kind = cu.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        doing = f"setting the preferred shared memory of {self.name} to {percent} %"
        with translated(doing, Reason.LAUNCH_INVALID):
            cu.funcSetAttribute(self.pointer, kind, percent)
        self.attributes = replace(self.attributes, carveout=int(cu.funcGetAttribute(kind, self.pointer)))

    def allow_shared(self, size: int) -> None:
        """Opts in to `size` bytes of dynamic shared memory, which is required above 48 KiB.

        See the CUDA C++ Programming Guide, "Shared Memory". Called only when a launch needs more than any launch
        before.
        """
        with translated(
            f"allowing {self.name} {size} bytes of dynamic shared memory",
            Reason.LAUNCH_INVALID,
            fix="request less: static and dynamic shared memory together may have the device's "
            "shared_mem_per_block_optin",
            details={
                "requested": size,
                "allowed": self.dynamic_limit,
                "static_shared_bytes": self.attributes.static_shared_bytes,
            },
        ):
            cu.funcSetAttribute(self.pointer, cu.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
        self.dynamic_limit = size


class CudaModule:
    """A module in the device's context. Name expressions are translated to the names that the compiler gave them."""

    def __init__(self, image: Image, pointer: int) -> None:
        self.pointer = pointer
        self._names = dict(image.names)
        self._kinds = image.kinds or parameter_kinds(image.code)
        self._functions: dict[str, CudaFunction] = {}
        self.access_table = _find_access_table(pointer) if access_table.SYMBOL.encode() in image.code else 0
        """Device address of the table with which the kernels check their accesses; 0: they do not check them."""

    def function(self, name: str) -> CudaFunction:
        cached = self._functions.get(name)
        if cached is not None:
            return cached
        try:
            lowered = self._names.get(name, name)
            pointer = cu.moduleGetFunction(self.pointer, lowered)
            function = CudaFunction(self, name, pointer, self._kinds.get(lowered, ""))
        except CudaError as error:
            if status_of(error) == NOT_FOUND:
                raise self._not_found(Reason.FUNCTION_NOT_FOUND, "function", name, self.functions) from error
            raise translate(error, f"loading the function {name}", Reason.MODULE_INVALID) from error
        self._functions[name] = function
        return function

    def global_(self, name: str) -> tuple[int, int]:
        lowered = self._names.get(name) or self._names.get(f"&{name}") or name
        try:
            address, size = checked(driver.cuModuleGetGlobal(self.pointer, lowered.encode()))
        except CudaError as error:
            # CUDA reports an empty name as an invalid value
            if status_of(error) == NOT_FOUND or not lowered:
                raise self._not_found(Reason.GLOBAL_NOT_FOUND, "global variable", name, self.globals) from error
            raise translate(error, f"looking for the global variable {name}") from error
        return int(address), int(size)

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions that `function` can find, with name expressions in place of their compiled names."""
        expressions = {lowered: expression for expression, lowered in self._names.items()}
        with translated("listing a module's functions"):
            names = [checked(driver.cuFuncGetName(handle))[0].decode() for handle in self.handles()]
        return tuple(sorted(expressions.get(name, name) for name in names))

    def load_functions(self) -> None:
        """Loads the kernels' code to the device immediately. Raises CudaError."""
        for handle in self.handles()[:_MAX_PRELOADED]:
            checked(driver.cuFuncLoad(handle))

    def handles(self) -> Sequence[Any]:
        """Returns the driver's handles of all kernels of the module. Raises CudaError."""
        (count,) = checked(driver.cuModuleGetFunctionCount(self.pointer))
        if not count:
            return []
        handles: Sequence[Any]
        (handles,) = checked(driver.cuModuleEnumerateFunctions(count, self.pointer))
        return handles

    @property
    def globals(self) -> tuple[str, ...]:
        """Variables that were requested by name expression, because the driver does not list a module's variables."""
        return tuple(sorted(name[1:] for name in self._names if name.startswith("&")))

    def _not_found(self, reason: Reason, kind: str, name: str, names: tuple[str, ...]) -> Refusal:
        listed = ", ".join(names[:_MAX_LISTED]) + (
            f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        )
        return Refusal(
            reason,
            f"The module has no {kind} {name!r}" + (f"; it has {listed}." if names else "."),
            fix='declare it extern "C", or name it in name_expressions (a variable as "&name") when compiling',
            details={"requested": name, "available": listed},
        )


def _find_access_table(pointer: int) -> int:
    """Returns the address of a module's access table; 0 if it has none. Raises CudaError.

    A variable of that name that is too small is not the table.
    """
    try:
        address, size = checked(driver.cuModuleGetGlobal(pointer, access_table.SYMBOL.encode()))
    except CudaError as error:
        if status_of(error) == NOT_FOUND:
            return 0
        raise
    return int(address) if int(size) >= access_table.BYTES else 0


class CudaLauncher:
    """Loads modules and launches their functions. `capability` is the device's compute capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability
        # cuLaunchKernel copies the parameters before it returns, so one block at a fixed address serves all launches.
        block = (ctypes.c_ubyte * MAX_PARAMETER_BYTES)()
        self._block = memoryview(block).cast("B")
        self._block_address = ctypes.addressof(block)
        self._local_bytes = _DEFAULT_STACK
        self._has_output_buffer = False
        self._block_size = ctypes.c_size_t()
        extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, ctypes.addressof(block), _PARAM_SIZE, ctypes.addressof(self._block_size), _PARAM_END
        )
        self._extra = ctypes.addressof(extra)
        self._references = (block, extra)

    def has_launch_memory(self, function: CudaFunction, prints: bool) -> bool:
        """True if the driver has provided the local memory of the function and, if it prints, the output buffer."""
        return function.attributes.local_bytes <= self._local_bytes and (self._has_output_buffer or not prints)

    def provide_launch_memory(self, function: CudaFunction, prints: bool) -> None:
        """Has the driver provide local memory, for all threads that the device can run at a time, and the buffer.

        Otherwise the driver would do so at the first launch, or when a graph with the function is instantiated. For
        local memory the thread would wait for all running kernels, for the buffer the kernel (measured with CUDA 13 on
        an H200; on an idle device, 0.5 to 1.5 ms for local memory, and 110 ms for the first kernel that prints, most of
        it for the driver's assembler). The caller has ensured that no work is running. Raises Refusal(OUT_OF_MEMORY).
        """
        required = function.attributes.local_bytes
        if required > self._local_bytes:
            with translated(f"providing {required} bytes of local memory for each thread"):
                checked(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE, required))
            self._local_bytes = required
        if prints and not self._has_output_buffer:
            create_output_buffer()
            self._has_output_buffer = True

    def load(self, image: Image) -> CudaModule:
        """Loads a module with all its kernels.

        Otherwise the driver would load each kernel at its first use, and wait for running work (CUDA Programming Guide,
        "Lazy Loading": concurrent execution); the caller of this method has ensured that no work is running.
        CUDA_MODULE_LOADING=EAGER is not used, because it would also load every kernel of NCCL.
        """
        image_headers.check(image.code, self._capability)
        pointer = 0
        try:
            pointer = cu.moduleLoadData(bytes(image.code))
            module = CudaModule(image, pointer)
            module.load_functions()
            return module
        except BaseException as error:
            if pointer:
                with suppress(*CudaError):
                    cu.moduleUnload(pointer)
            if not isinstance(error, CudaError):
                raise
            if is_fatal(error) or status_of(error) == OUT_OF_MEMORY:
                raise translate(error, "loading a module") from error
            log = _load_log(image.code)
            first = next((line for line in log.splitlines() if line.strip()), "")
            raise translate(
                error,
                "loading a module" + (f" ({first.strip()})" if first else ""),
                Reason.MODULE_INVALID,
                fix="give CUBIN or fatbin built for this device's compute capability, PTX that its driver knows, "
                "or CUDA C++ source to compile here",
                details={"log": log} if log else None,
            ) from error

    @staticmethod
    def access_table(module: CudaModule) -> int:
        """Returns the device address of the module's access table; 0 if the module is not instrumented."""
        return module.access_table

    def unload(self, module: CudaModule) -> None:
        """Unloads a module whose last launch has ended. Further calls have no effect."""
        pointer, module.pointer = module.pointer, 0
        if pointer:
            with translated("unloading a module"):
                cu.moduleUnload(pointer)

    def bind_launch(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_mem: int,
        stream: Stream,
        params: bytearray,
    ) -> Callable[[], object]:
        """Binds the driver call to a separate copy of `params`, so that a repetition runs no other Python code."""
        # A separate block, so that nothing needs to be copied and no Python code runs except the call itself.
        size = len(params)
        block_of_parameters = (ctypes.c_ubyte * size).from_buffer_copy(params)
        block_size = ctypes.c_size_t(size)
        extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, ctypes.addressof(block_of_parameters), _PARAM_SIZE, ctypes.addressof(block_size), _PARAM_END
        )
        relaunch = partial(
            launchKernel, function.pointer, *grid, *block, shared_mem, stream.pointer,
            0, ctypes.addressof(extra) if size else 0,
        )  # fmt: skip
        relaunch.__dict__["keeps"] = function, block_of_parameters, block_size, extra
        return relaunch

    def launch(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_mem: int,
        stream: Stream,
        params: bytes | bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        if shared_mem > function.dynamic_limit:
            function.allow_shared(shared_mem)
        size = len(params)
        grid_x, grid_y, grid_z = grid
        block_x, block_y, block_z = block
        try:
            self._block[:size] = params
            self._block_size.value = size
            if attributes is not None:
                if attributes.cluster is not None:
                    allow_cluster(function.pointer, attributes.cluster)
                config = launch_config(grid, block, shared_mem, stream.pointer, driver_attributes(attributes))
                # Addresses of the parameters, because cooperative launches do not accept the whole block.
                pointers = [self._block_address + offset for offset, _ in function.parameters]
                addresses = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
                checked(driver.cuLaunchKernelEx(config, function.pointer, ctypes.addressof(addresses), 0))
                return
            launchKernel(
                function.pointer, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream.pointer,
                0, self._extra if size else 0,
            )  # fmt: skip
        except CudaError as error:
            raise translate(
                error,
                f"launching {function.name} with grid {grid}, block {block} and {shared_mem} bytes of shared memory",
                Reason.LAUNCH_FAILED,
                fix="check grid, block, shared memory and registers against the device's limits",
                details={"function": function.name, "grid": grid, "block": block, "shared_mem": shared_mem},
            ) from error
        except (ValueError, OverflowError) as error:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"Launching {function.name} with grid {grid}, block {block} and {size} bytes of parameters: grid and "
                f"block are 32-bit, and parameters have at most {MAX_PARAMETER_BYTES} bytes.",
                fix="pass large parameters in a buffer",
                details={"grid": grid, "block": block, "size": size, "allowed": MAX_PARAMETER_BYTES},
            ) from error


def _attribute(attribute: int, pointer: int) -> int:
    return max(0, int(cu.funcGetAttribute(attribute, pointer)))


def _parameters(pointer: int) -> tuple[tuple[int, int], ...]:
    """Returns the (offset, size) of each parameter in bytes.

    The driver answers "invalid value" for the first index out of range.
    """
    parameters: list[tuple[int, int]] = []
    while True:
        status, offset, size = driver.cuFuncGetParamInfo(pointer, len(parameters))
        if int(status) == INVALID_VALUE:
            return tuple(parameters)
        checked((status,))
        parameters.append((int(offset), int(size)))


def _load_log(code: bytes) -> str:
    """Returns the log of the driver's compiler for `code` (PTX), compiled once more; empty if there is no log."""
    log = bytearray(_LOG_BYTES)
    options = [
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER,
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]
    with suppress(Exception):
        status, module = driver.cuModuleLoadDataEx(bytes(code), len(options), options, [log, len(log)])
        if int(status) == 0:
            driver.cuModuleUnload(module)
    return bytes(log).partition(b"\0")[0].decode(errors="replace").strip()
