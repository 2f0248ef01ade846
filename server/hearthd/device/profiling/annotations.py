"""Annotations: ranges around commands for profilers (NVTX), and the activity of single kernels (CUPTI).

Both are off unless configured, and are set up when the device process starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.operation import Origin
from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.session.observer import Record
from hearthd.device.streams.stream_pool import PooledStream


class RangeMarker(Protocol):
    """Pushes and pops ranges around commands; implemented with NVTX."""

    def push(self, name: str, number: int) -> None: ...
    def pop(self) -> None: ...


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


class KernelActivitySource(Protocol):
    """Reports single kernels; implemented with CUPTI.

    Kernels launched between `push` and `pop` belong to that command.
    """

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def push(self, name: str, number: int) -> None: ...
    def pop(self) -> None: ...
    def collect(self, numbers: Iterable[int]) -> list[KernelTiming]:
        """Returns the kernels of these commands; each kernel is returned once.

        May block, and may be called on any thread.
        """
        ...


class AnnotationObserver:
    """Observes the commands of a session for annotations alone, without a trace."""

    def __init__(self, marks: RangeMarker, numbers: Iterator[int]) -> None:
        self.marks = marks
        self._numbers = numbers

    def record(self, origin: Origin) -> Record:
        return AnnotatedCommand(self, origin, next(self._numbers))

    def close(self) -> None:
        pass


class AnnotatedCommand:
    """A command that is surrounded by a range."""

    __slots__ = ("_marking", "_number", "_origin")

    def __init__(self, marking: AnnotationObserver, origin: Origin, number: int) -> None:
        self._marking = marking
        self._origin = origin
        self._number = number

    def enter(self) -> None:
        self._marking.marks.push(self._origin.name, self._number)

    def begin(self, track: PooledStream, size: int, plan: LaunchPlan | None) -> None:
        pass

    def leave(self, done: bool) -> None:
        self._marking.marks.pop()

    def failed(self, reason: str) -> None:
        pass

    def settle(self) -> None:
        pass

    def drop(self) -> None:
        pass
