"""Graphs and prepared launches: the end of a ``with`` block blocks until they are made; launches do not block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.blocking.stream import Stream
from hearth.kernels.base_graph import BaseGraph
from hearth.kernels.base_prepared import BasePrepared
from hearth.kernels.graph_program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class _Recording(Program):
    """The ``with`` block of graphs and prepared launches, whose end blocks until the daemon has answered."""

    _stream_type = Stream

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._end(kind, error, trace)
        if ending is not None:
            with self._or_closed():
                ending.wait()


class Graph(_Recording, BaseGraph):
    """Work that a ``with gpu.graph() as g:`` block records, and `launch` runs.

    The end of the block blocks until the daemon has made the graph, and raises an error if part of the work cannot be
    recorded. An exception in the block discards the graph. Work on other streams, and of other threads, runs as usual.
    """


class Prepared(_Recording, BasePrepared):
    """Launches that a ``with gpu.prepared() as p:`` block or `Device.prepare` collects, and `launch` runs.

    The launches are checked together at the end of the block, which raises one error with everything that is wrong with
    them.
    """
