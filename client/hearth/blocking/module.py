"""Modules whose compile the calling thread waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from hearth import progress as progresses
from hearth import shapes, telemetry
from hearth.blocking.array import DeviceArray
from hearth.blocking.function import Function
from hearth.kernels.base_module import BaseGlobalArray, BaseModule, logged

if TYPE_CHECKING:
    from hearth.blocking.connection import BlockingConnection
    from hearth_proto.v1 import commands_pb2


class GlobalArray(BaseGlobalArray, DeviceArray):
    """A variable of a module.

    It exists as long as the module. It is lost with the device process; `RawModule.get_global` then returns it again.
    """

    __slots__ = ()


class RawModule(BaseModule[Function, GlobalArray]):
    """Code of one or more kernels.

    Made by `Device.RawModule`, which does not wait: errors of the compiler are raised by `compile`, or by the first
    call that waits for a kernel of the module.
    """

    _connection: BlockingConnection
    _function_type = Function
    _global_type = GlobalArray

    def compile(self, log_stream: TextIO | None = None, *, timeout: float | None = None) -> None:
        """Blocks until the module is compiled and loaded.

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
            log.append(self._describe(timeout).log)

    @property
    def functions(self) -> list[str]:
        """Names of the kernels of the module. Blocks until the module is compiled."""
        return list(self._describe().functions)

    @property
    def globals(self) -> list[str]:
        """Names of the variables of the module. Blocks until the module is compiled."""
        return list(self._describe().globals)

    @telemetry.traced("hearth.get_global")
    def get_global(self, name: str, dtype: Any = None, shape: shapes.Shape | None = None) -> GlobalArray:
        """Returns a ``__constant__`` or ``__device__`` variable as an array. Blocks until the module is compiled.

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
        return self._request_global(name, dtype, shape).wait()

    @telemetry.traced("hearth.compile")
    def _describe(self, timeout: float | None = None) -> commands_pb2.ModuleResult:
        with progresses.waiting("compile"):
            remaining = self._connection.opened(timeout)
            return self._request_description().wait(remaining)
