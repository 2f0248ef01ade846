"""Graphs and prepared launches: the end of a ``with`` block blocks until they are made; launches do not block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.graphs.base_graph import BaseGraph
from hearth.graphs.base_prepared import BasePrepared
from hearth.graphs.program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from hearth.session.reply import PendingResult


class _Recording(Program):
    """The ``with`` block of graphs and prepared launches, whose end blocks until the daemon has answered."""

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._await(self._end(kind, error, trace))

    def _await(self, ending: PendingResult[Any] | None) -> None:
        """Blocks until the request that ends the recording is answered; closes the handle if that fails."""
        if ending is not None:
            with self._or_closed():
                ending.wait()


class Graph(_Recording, BaseGraph):
    """Work that a ``with gpu.graph() as g:`` block records, and `launch` runs.

    The end of the block blocks until the daemon has made the graph, and raises an error if part of the work cannot be
    recorded. An exception in the block discards the graph. Launches, copies and fills in the block on a stream that has
    not joined the capture raise an error, or run immediately with ``gpu.graph(mode="relaxed")``; work of other threads
    runs as usual. `Stream.begin_capture` and `Stream.end_capture` record a stream of the program without a block.
    """

    def _finish(self) -> None:
        self._await(self._end_capture())


class Prepared(_Recording, BasePrepared):
    """Launches that a ``with gpu.prepared() as p:`` block or `Device.prepare` collects, and `launch` runs.

    The launches are checked together at the end of the block, which raises one error with everything that is wrong with
    them. Launches in the block on another stream raise an error, as other work without a stream does; work of other
    threads runs as usual.
    """
