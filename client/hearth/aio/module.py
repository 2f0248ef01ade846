"""Modules and their kernels, for asyncio: launches do not wait, and what asks the compiler is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO, cast

from hearth import telemetry
from hearth.aio.array import GlobalArray
from hearth.kernels import function as sync_function
from hearth.kernels import module as sync
from hearth.kernels.function import ATTRIBUTES

if TYPE_CHECKING:
    from hearth import shapes
    from hearth.aio.connection import LoopConnection
    from hearth.kernels.function import Occupancy


class Function(sync_function.Function):
    """As `hearth.Function`: launched by a plain call, which goes one way and never waits. What it says of itself is
    awaited: ``await f.num_regs()``."""

    _connection: LoopConnection

    async def attributes(self) -> dict[str, int]:  # type: ignore[override]
        """All of the below in one dict."""
        return {name: await getattr(self, name)() for name in ATTRIBUTES}

    async def num_regs(self) -> int:  # type: ignore[override]
        """Registers per thread; 0 where the backend has none."""
        await self._know()
        return super().num_regs

    async def shared_size_bytes(self) -> int:  # type: ignore[override]
        """Static shared memory per block."""
        await self._know()
        return super().shared_size_bytes

    async def local_size_bytes(self) -> int:  # type: ignore[override]
        """Local memory per thread."""
        await self._know()
        return super().local_size_bytes

    async def const_size_bytes(self) -> int:  # type: ignore[override]
        """Constant memory."""
        await self._know()
        return super().const_size_bytes

    async def max_threads_per_block(self) -> int:  # type: ignore[override]
        """The largest block that the kernel's registers allow."""
        await self._know()
        return super().max_threads_per_block

    async def max_dynamic_shared_size_bytes(self) -> int:  # type: ignore[override]
        """The most dynamic shared memory that a launch may ask for."""
        await self._know()
        return super().max_dynamic_shared_size_bytes

    async def parameters(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """(offset, size) in bytes of each parameter in the parameter block."""
        await self._know()
        return super().parameters

    async def occupancy(  # type: ignore[override]
        self, block: Any, shared_mem: int = 0, *, cluster: Any = None
    ) -> Occupancy:
        """As `hearth.Function.occupancy`."""
        await self._connection.opened()
        return await self._connection.home.asked(self._occupying(block, shared_mem, cluster))

    async def _know(self) -> None:
        if self._described is None:
            await self._connection.opened()
            self._described = await self._connection.home.asked(self._describing())


class RawModule(sync.RawModule):
    """As `hearth.RawModule`; `compile`, `functions`, `globals` and `get_global` are awaited."""

    _connection: LoopConnection
    _global_type = GlobalArray

    @telemetry.traced("hearth.compile")
    async def compile(  # type: ignore[override]
        self, log_stream: TextIO | None = None, *, timeout: float | None = None
    ) -> None:
        """As `hearth.RawModule.compile`."""
        await self._connection.opened()
        with sync.logged(log_stream) as log:
            log.append((await self._connection.home.asked(self._describing(), timeout)).log)

    async def functions(self) -> list[str]:  # type: ignore[override]
        """Names of its kernels; waits for the compile."""
        await self._connection.opened()
        return list((await self._connection.home.asked(self._describing())).functions)

    async def globals(self) -> list[str]:  # type: ignore[override]
        """Names of its variables; waits for the compile."""
        await self._connection.opened()
        return list((await self._connection.home.asked(self._describing())).globals)

    def get_function(self, name: str) -> Function:
        """As `hearth.RawModule.get_function`."""
        return cast("Function", super().get_function(name))

    async def get_global(  # type: ignore[override]
        self, name: str, dtype: Any = None, shape: shapes.Shape | None = None
    ) -> GlobalArray:
        """As `hearth.RawModule.get_global`."""
        await self._connection.opened()
        return cast("GlobalArray", await self._connection.home.asked(self._finding(name, dtype, shape)))

    _function_type = Function
