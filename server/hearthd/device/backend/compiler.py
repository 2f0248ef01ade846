"""Interface of a compiler, which makes device code from source and PTX, and its types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True)
class Image:
    """Compiled code: CUBIN or PTX for CUDA, a shared object for the CPU.

    `names` maps each name expression to its name in the code; `log` is the output of the compiler; `kinds` maps the
    name of a kernel in the code to the kinds of its parameters, as in `Function`, if the code does not have them.
    """

    code: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """CUDA C++ source with everything else that determines the compiled code."""

    code: str
    options: tuple[str, ...] = ()
    name_expressions: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Assembly:
    """PTX, or a fatbin of which only the PTX fits the device: code that still has to be assembled for the device.

    As an input of `LinkJob`, code in any format other than CUDA C++.
    """

    code: bytes


@dataclass(frozen=True)
class LinkJob:
    """Inputs that are linked to one module: sources, and code in a binary format or PTX.

    `options` are the compiler options of the module, which its sources have too.
    """

    inputs: tuple[Source | Assembly, ...]
    options: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs that are sources."""
        return tuple(item for item in self.inputs if isinstance(item, Source))


Job: TypeAlias = Source | Assembly | LinkJob
"""Input of a compile worker."""


class Compiler(Protocol):
    """A backend's compiler.

    Every method except `assembly` may block: they run in compile workers and on compile threads.
    """

    @property
    def light(self) -> bool:
        """True if `identity` and `linker` may also be called in a device process: they load no large library there."""
        ...

    def recipe(self) -> Mapping[str, Any]:
        """Returns the parameters from which a compile worker creates an equal compiler, as values that JSON can carry.

        A worker with a different recipe is replaced.
        """
        ...

    def prepare(self, source: Source) -> None:
        """Creates, outside the workers' sandbox, the files that compiling the source needs. Raises Refusal."""
        ...

    def check_files(self) -> None:
        """Raises Refusal if files that this package brings, and that compiles read, were replaced since its import.

        Called after each compile: its result may then differ from what `identity` stands for.
        """
        ...

    def load(self) -> None:
        """Reads from disk the files that every compile needs. Called before a worker enters its sandbox."""
        ...

    def sandbox_paths(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the files and directories that the compiler reads, and those that it writes.

        The latter do not include its scratch directory.
        """
        ...

    def identity(self) -> bytes:
        """Returns bytes that identify everything except the source that affects the result.

        This includes compiler, version and architecture.
        """
        ...

    def compile(self, source: Source) -> Image:
        """Compiles the source.

        Raises Refusal(COMPILE_FAILED) with `details["log"]`, Refusal(UNSUPPORTED), Refusal(NO_COMPILER).
        """
        ...

    def assembly(self, code: bytes) -> Assembly | None:
        """Returns the input of `assemble`; None if `code` can be loaded without being assembled.

        Device-handle thread. Raises Refusal(MODULE_INVALID) for code that this device cannot run.
        """
        ...

    def assembler(self) -> bytes:
        """Returns the identity of the assembler. Raises Refusal(NO_COMPILER) if there is no assembler."""
        ...

    def assemble(self, assembly: Assembly) -> Image:
        """Assembles PTX.

        Raises Refusal(MODULE_INVALID) with `details["log"]`, Refusal(NO_COMPILER) if only the driver can assemble it.
        """
        ...

    def linker(self) -> bytes:
        """Returns the identity of linker and compiler. Raises Refusal(NO_COMPILER) if there is no linker."""
        ...

    def link(self, link: LinkJob) -> Image:
        """Compiles the sources to code that can be linked, and links all inputs.

        Raises the refusals of `compile`, Refusal(COMPILE_FAILED) with `details["log"]` for inputs that cannot be
        linked, Refusal(MODULE_INVALID) for code that this device cannot run.
        """
        ...
