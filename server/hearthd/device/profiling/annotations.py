"""Annotations: ranges around commands for profilers (NVTX), and the activity of single kernels (CUPTI).

Both are off unless configured, and are set up when the device process starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.operation import Origin
from hearthd.device.session.observer import Record


class RangeMarker(Protocol):
    """Pushes and pops ranges around commands; implemented with NVTX."""

    def push(self, name: str, number: int) -> None:
        """Begins a range for command `number`, inside the ranges that are open."""
        ...

    def pop(self) -> None:
        """Ends the range that was begun last."""
        ...


class KernelTiming(NamedTuple):
    """A kernel as reported by CUPTI.

    Times are on the clock of `time.perf_counter_ns`; `number` is the number of its command.
    """

    number: int
    name: str
    started_ns: int
    ended_ns: int
    grid: Dim
    block: Dim
    registers: int
    shared_bytes: int


class KernelActivitySource(RangeMarker, Protocol):
    """Reports single kernels; implemented with CUPTI.

    Kernels launched between `push` and `pop` belong to that command.
    """

    def start(self) -> int:
        """Begins a trace, on the device-handle thread, and returns its key; several may be open at a time.

        Must be followed by `stop`, and then by `collect` or `discard`.
        """
        ...

    def stop(self) -> None:
        """Ends a trace, all of whose kernels have ended; `collect` still returns them."""
        ...

    def collect(self, trace: int, numbers: Collection[int]) -> list[KernelTiming]:
        """Returns the kernels of the trace's commands, which have these numbers; each kernel is returned once.

        May block, and may be called on any thread.
        """
        ...

    def discard(self, trace: int) -> None:
        """Ends the use of a trace that will not be collected. Any thread."""
        ...


class AnnotationObserver:
    """Observes the commands of a session for annotations alone, without a trace."""

    def __init__(self, marks: RangeMarker, numbers: Iterator[int]) -> None:
        self.marks = marks
        self._numbers = numbers

    def record(self, origin: Origin) -> Record:
        """Returns the record that annotates the command; nothing is stored."""
        return AnnotatedCommand(self, origin, next(self._numbers))

    def close(self) -> None:
        """Has no effect, because no record is stored."""
        pass


class AnnotatedCommand(Record):
    """A command that is surrounded by a range, which covers the host's work only."""

    __slots__ = ("_number", "_observer", "_origin")

    def __init__(self, observer: AnnotationObserver, origin: Origin, number: int) -> None:
        self._observer = observer
        self._origin = origin
        self._number = number

    def enter(self) -> None:
        """Begins the range."""
        self._observer.marks.push(self._origin.name, self._number)

    def leave(self, done: bool) -> None:
        """Ends the range. A command that is tried again has another range."""
        self._observer.marks.pop()
