"""Reports of kernels that differ from their reference."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.cpu.differential.kernels import Kernel


@dataclass
class Failure:
    """A wrong kernel: the observed difference, and the data that reproduces it."""

    kernel: Kernel | None
    seed: int
    what: str

    def report(self) -> str:
        """Returns the kernel's source, its headers and both results as text."""
        if self.kernel is None:
            return f"seed {self.seed}: {self.what}"
        headers = "".join(f"\n// ---- {name}\n{text}" for name, text in self.kernel.headers.items())
        return (
            f"seed {self.seed}, {self.kernel.name}: {self.what}\n"
            f"again: python -m tests.support.cpu.differential --first {self.seed} --seeds 1 --kernel '{self.kernel.name}'\n"
            f"made of: {', '.join(self.kernel.tags)}\n{self.kernel.text}{headers}"
        )
