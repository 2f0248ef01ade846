"""Report of `hearth run`, as text and as a JSON document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hearth.cli.format.table import number
from hearth.cli.run.arrays import Host, format_array, to_lists


@dataclass
class Result:
    """An array that the kernel wrote."""

    argument: int
    """Position among the kernel's arguments, from 1."""
    array: Host
    file: str | None
    error: str = ""
    """Reason why the file could not be written; empty: no error."""

    @property
    def type(self) -> str:
        """The type, written as in an argument of the command."""
        return f"{self.array.dtype}[{','.join(map(str, self.array.shape))}]"

    def to_json(self) -> dict[str, Any]:
        """Returns the result for the JSON report: with its values, or shortened if the array is too long.

        A result that was written to a file has the file's name instead of values.
        """
        document: dict[str, Any] = {
            "argument": self.argument,
            "dtype": str(self.array.dtype),
            "shape": list(self.array.shape),
        }
        if self.file is not None:
            return {**document, "file": self.file}
        if self.error:
            document["error"] = self.error
        values = to_lists(self.array)
        return (
            {**document, "values": values}
            if values is not None
            else {**document, "shortened": format_array(self.array)}
        )


@dataclass
class RunReport:
    """A run of a kernel: its configuration and results."""

    file: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int
    mode: str
    iterations: int
    node: str
    daemon: str
    device: int
    device_name: str
    backend: str
    device_ns: int | None = None
    """Nanoseconds on the device, of all iterations."""
    wall_ns: int | None = None
    printed: str = ""
    results: list[Result] = field(default_factory=list)

    def heading(self) -> str:
        """Returns the heading of the report: kernel, grid, block, options and device.

        Example: ``saxpy<<<(4096, 1, 1), (256, 1, 1)>>> on device 0 of gpu-box: NVIDIA H200 (cuda)``.
        """
        options = [f"{self.shared_mem} bytes shared"] if self.shared_mem else []
        options += [f"{self.iterations} times"] if self.iterations > 1 else []
        options += [f"mode {self.mode}"] if self.mode != "checked" else []
        launch = f"{self.kernel}<<<{self.grid}, {self.block}>>>{''.join(f', {option}' for option in options)}"
        device = f"device {self.device} of {self.node}: {self.device_name} ({self.backend})"
        return f"{launch}{',' if options else ''} on {device}"

    def to_text(self) -> str:
        """Returns the text that follows the heading and the kernel's output."""
        lines = []
        if self.device_ns is not None and self.wall_ns is not None:
            per_launch = f", {_time(self.device_ns / self.iterations)} each" if self.iterations > 1 else ""
            lines.append(f"{_time(self.device_ns)} on the device{per_launch}; {_time(self.wall_ns)} in the daemon")
        for result in self.results:
            if result.file is not None:
                lines.append(f"argument {result.argument}: {result.type} -> {result.file}")
            else:
                lines.append(f"argument {result.argument}: {result.type}\n{format_array(result.array)}")
        return "".join(f"{line}\n" for line in lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON document."""
        document: dict[str, Any] = {
            "file": self.file,
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "shared_mem": self.shared_mem,
            "mode": self.mode,
            "iterations": self.iterations,
            "daemon": {"version": self.daemon, "node": self.node},
            "device": {"ordinal": self.device, "name": self.device_name, "backend": self.backend},
            "output": self.printed,
            "results": [result.to_json() for result in self.results],
        }
        if self.device_ns is not None:
            document |= {"device_ns": self.device_ns, "wall_ns": self.wall_ns}
        return document


def _time(ns: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= factor:
            return f"{number(ns / factor)} {unit}"
    return f"{ns:.0f} ns"
