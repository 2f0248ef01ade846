"""Reports of kernels that differ from their reference."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.cpu.differential.kernels import Kernel


@dataclass
class Failure:
    """A kernel that differs from its reference, or is refused by the compiler."""

    kernel: Kernel | None
    """None: only the source of the whole program is refused."""
    seed: int
    what: str
    """The difference, or the compiler's message."""

    def report(self) -> str:
        """Returns the kernel's source, its headers and both results as text."""
        if self.kernel is None:
            return f"seed {self.seed}: {self.what}"
        headers = "".join(f"\n// ---- {name}\n{text}" for name, text in self.kernel.headers.items())
        return (
            f"seed {self.seed}, {self.kernel.name}: {self.what}\n"
            f"reproduce: python -m tests.support.cpu.differential --first {self.seed} --seeds 1 --kernel '{self.kernel.name}'\n"
            f"kinds: {', '.join(self.kernel.tags)}\n{self.kernel.text}{headers}"
        )
