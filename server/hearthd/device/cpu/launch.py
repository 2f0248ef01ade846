"""Loading what was compiled, and launching it: a kernel runs on the thread of its stream."""

from __future__ import annotations

from collections.abc import Callable

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.module import CpuFunction, CpuModule
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.cpu.toolchain import Toolchain
from hearthd.device.nodes import LaunchAttributes
from hearthd.device.server import Function, FunctionAttributes, Image, Module

ELF_MAGIC = b"\x7fELF"


class LoadedFunction:
    """A CpuFunction with the attributes that launches are checked against."""

    def __init__(self, function: CpuFunction) -> None:
        self.cpu = function
        self.name = function.name
        self.parameters = function.params
        self.attributes = FunctionAttributes(
            static_shared_bytes=function.static_shared_bytes, max_threads_per_block=function.max_threads_per_block
        )


class LoadedModule:
    """A CpuModule whose functions are looked up once."""

    def __init__(self, module: CpuModule) -> None:
        self._module = module
        self._functions: dict[str, LoadedFunction] = {}

    @property
    def functions(self) -> list[str]:
        return list(self._module.functions)

    @property
    def globals(self) -> list[str]:
        return list(self._module.globals)

    def function(self, name: str) -> Function:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = LoadedFunction(self._module.function(name))
        return found

    def global_(self, name: str) -> tuple[int, int]:
        return self._module.global_(name)


class LaunchOperations:
    """The part of CpuServer that loads code and runs it."""

    def __init__(self, toolchain: Callable[[], Toolchain]) -> None:
        self._toolchain = toolchain

    def load(self, image: Image) -> Module:
        if not image.code.startswith(ELF_MAGIC):
            raise Refusal(
                Reason.UNSUPPORTED,
                "the CPU backend runs CUDA C++ source; PTX, CUBIN and fatbin are a GPU's code",
                fix="send the source, or use a node with a GPU",
            )
        return LoadedModule(CpuModule(image.code, self._toolchain()))

    def unload(self, module: Module) -> None:
        pass  # code of other streams may still be on the stack; the mapping goes with the last reference

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_mem: int,
        stream: CpuStream,
        params: bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        assert isinstance(function, LoadedFunction)
        run = function.cpu.launch
        stream.submit(lambda: run(grid, block, shared_mem, params))
