"""Compiler: what makes source and PTX into code for a device, as CUDA and CPU implement it; what goes in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True)
class Image:
    """Compiled code: CUBIN or PTX for CUDA, a shared object for the CPU.

    `names` maps each name expression to the name it is known by in the code; `log` is what the compiler said.
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
    """PTX, or a fatbin of which only the PTX will do: still to be made into code for the device."""

    code: bytes


Job: TypeAlias = Source | Assembly
"""What a compile worker is given."""


class Compiler(Protocol):
    """A backend's compiler. All but `assembly` may block: it is used in compile workers and on compile threads."""

    @property
    def light(self) -> bool:
        """Whether `identity` may be asked for in a device process, too: it loads no large library there."""
        ...

    def recipe(self) -> Mapping[str, Any]:
        """What a compile worker needs to make the same compiler, as JSON can carry it. A worker of another recipe is
        of no use any more."""
        ...

    def prepare(self, source: Source) -> None:
        """Makes, outside of the workers' sandbox, what a compile of the source needs from disk. Raises Refusal."""
        ...

    def load(self) -> None:
        """Takes from disk, before a worker's sandbox closes, what every compile needs."""
        ...

    def places(self) -> tuple[Sequence[str], Sequence[str]]:
        """Files and directories that the compiler reads, and those that it writes to beside its scratch directory."""
        ...

    def identity(self) -> bytes:
        """What besides the source decides the result: compiler, version, architecture."""
        ...

    def compile(self, source: Source) -> Image:
        """Raises Refusal(COMPILE_FAILED) with `details["log"]`, Refusal(UNSUPPORTED), Refusal(NO_COMPILER)."""
        ...

    def assembly(self, code: bytes) -> Assembly | None:
        """What has to be assembled before `code` can be loaded; None where it can be loaded as it is.

        Device-handle thread. Raises Refusal(MODULE_INVALID) for what this device cannot run.
        """
        ...

    def assembler(self) -> bytes:
        """As `identity`, of what assembles. Raises Refusal(NO_COMPILER) where there is nothing that could."""
        ...

    def assemble(self, assembly: Assembly) -> Image:
        """Raises Refusal(MODULE_INVALID) with `details["log"]`, Refusal(NO_COMPILER) where the driver has to do it."""
        ...
