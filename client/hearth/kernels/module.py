"""Modules whose compile is waited for by the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from hearth import progress as progresses
from hearth import shapes, telemetry
from hearth.arrays.array import DeviceArray
from hearth.kernels.base_module import BaseModule, as_bytes, logged
from hearth.kernels.function import Function

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.progress import Progress
    from hearth.session.memory import Memory
    from hearth_proto.v1 import commands_pb2


class GlobalArray(DeviceArray):
    """A module's variable. Lives as long as the module; lost with the device process, whereupon
    `RawModule.get_global` gives it anew."""

    __slots__ = ("_typed",)

    def __init__(
        self,
        device: DeviceContext[Any],
        memory: Memory,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        *,
        typed: bool,
    ) -> None:
        super().__init__(device, memory, offset, shape, dtype)
        self._typed = typed

    def set(
        self,
        a: Any,
        stream: BaseStream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> None:
        """As `DeviceArray.set`; without a dtype of its own it takes any array of its size."""
        super().set(a if self._typed else as_bytes(self, a), stream, blocking=blocking, progress=progress)


class RawModule(BaseModule[Function, GlobalArray]):
    """Code of one or more kernels. Made by `Device.RawModule`, which returns at once: errors of the compiler surface at
    `compile`, or where a kernel of the module is first waited for."""

    _function_type = Function
    _global_type = GlobalArray

    def compile(self, log_stream: TextIO | None = None, *, timeout: float | None = None) -> None:
        """Waits until it is compiled and loaded; the compiler's messages go to `log_stream`. Raises `CompileError`;
        `QuotaExceededError` where a kernel that does not end kept it from being loaded: later, it is tried again."""
        with logged(log_stream) as log:
            log.append(self._describe(timeout).log)

    @property
    def functions(self) -> list[str]:
        """Names of its kernels; waits for the compile."""
        return list(self._describe().functions)

    @property
    def globals(self) -> list[str]:
        """Names of its variables; waits for the compile."""
        return list(self._describe().globals)

    @telemetry.traced("hearth.get_global")
    def get_global(self, name: str, dtype: Any = None, shape: shapes.Shape | None = None) -> GlobalArray:
        """A ``__constant__`` or ``__device__`` variable as an array; waits for the compile.

        Without `dtype` it is an array of bytes that can be set from any array of its size. Raises `InvalidHandleError`
        where there is no such variable, `ArgumentError` where `dtype` and `shape` do not make its size.
        """
        return self._finding(name, dtype, shape).wait()

    @telemetry.traced("hearth.compile")
    def _describe(self, timeout: float | None = None) -> commands_pb2.ModuleResult:
        with progresses.waiting("compile"):
            return self._describing().wait(timeout)
