"""Compiler: makes code for a device from source and PTX, as CUDA and CPU implement it; its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True)
class Image:
    """Compiled code: CUBIN or PTX for CUDA, a shared object for the CPU.

    `names` maps each name expression to its name in the code; `log` is the output of the compiler.
    """

    code: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True)
class Source:
    """CUDA C++ with what decides what it compiles to."""

    code: str
    options: tuple[str, ...] = ()
    name_expressions: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Assembly:
    """PTX, or a fatbin of which only the PTX fits: still to be assembled for the device."""

    code: bytes


Job: TypeAlias = Source | Assembly
"""Input of a compile worker."""


class Compiler(Protocol):
    """A backend's compiler. All methods but `assembly` may block: they run in compile workers and on compile
    threads."""

    @property
    def light(self) -> bool:
        """True if `identity` may be called in a device process, too: it loads no large library there."""
        ...

    def recipe(self) -> Mapping[str, Any]:
        """Returns the parameters with which a compile worker makes the same compiler, as JSON can carry them. A worker
        with another recipe is replaced."""
        ...

    def prepare(self, source: Source) -> None:
        """Makes, outside of the workers' sandbox, the files that a compile of the source needs. Raises Refusal."""
        ...

    def load(self) -> None:
        """Reads from disk, before a worker's sandbox closes, the files that every compile needs."""
        ...

    def places(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the files and directories that the compiler reads, and those that it writes to beside its scratch
        directory."""
        ...

    def identity(self) -> bytes:
        """Returns everything except the source that affects the result: compiler, version, architecture."""
        ...

    def compile(self, source: Source) -> Image:
        """Compiles the source. Raises Refusal(COMPILE_FAILED) with `details["log"]`, Refusal(UNSUPPORTED),
        Refusal(NO_COMPILER)."""
        ...

    def assembly(self, code: bytes) -> Assembly | None:
        """Returns the input of `assemble` for `code` that has to be assembled before it can be loaded; None where it
        can be loaded as it is.

        Device-handle thread. Raises Refusal(MODULE_INVALID) for code that this device cannot run.
        """
        ...

    def assembler(self) -> bytes:
        """Returns the identity of the assembler. Raises Refusal(NO_COMPILER) where there is none."""
        ...

    def assemble(self, assembly: Assembly) -> Image:
        """Assembles PTX. Raises Refusal(MODULE_INVALID) with `details["log"]`, Refusal(NO_COMPILER) where the driver
        has to do it."""
        ...
