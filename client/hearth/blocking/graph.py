"""Graphs and prepared lists: the end of ``with`` blocks until they are made, launches do not block."""

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
    """The ``with`` block of graphs and prepared lists, whose end blocks until the daemon has answered."""

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
    """Work recorded by ``with gpu.graph() as g:``, launched by `launch`.

    The end of the block blocks until the daemon has made the graph, and raises what could not be recorded; an exception
    in the block discards it. Work on other streams, and of other threads, continues.
    """


class Prepared(_Recording, BasePrepared):
    """Launches collected by ``with gpu.prepared() as p:`` or `Device.prepare`, run by `launch`.

    They are checked together at the end of the block, which raises everything that is wrong with them.
    """
