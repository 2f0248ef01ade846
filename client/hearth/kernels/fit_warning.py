"""Warnings about cooperative launches whose grids the daemon reduces (``cooperative="fit"``).

A launch is sent one way, so the client does not know the limit when it launches. It requests the occupancy beside the
launch, and the next call that waits for the device gives the warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.calling_line import CallingLine
from hearth.kernels import arguments

if TYPE_CHECKING:
    from hearth.kernels.base_function import BaseFunction, Occupancy
    from hearth.session.reply import PendingResult

_MOST = 1024
"""Launch geometries that are remembered per kernel."""


class FitWarnings:
    """The warnings about one kernel: each geometry is compared with the limit once."""

    def __init__(self, function: BaseFunction) -> None:
        self._function = function
        self._seen: set[tuple[object, ...]] = set()

    def check(self, grid: Any, block: Any, shared_mem: int) -> None:
        """Requests the limit of a geometry that is new, and arranges for the warning. Does not block.

        Args:
            grid: Blocks along each axis of the launch.
            block: Threads along each axis.
            shared_mem: Dynamic shared memory in bytes.
        """
        blocks, *others = arguments.dimensions("grid", grid)
        geometry = (blocks, arguments.dimensions("block", block), shared_mem)
        if others != [1, 1] or geometry in self._seen:
            return
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen.add(geometry)
        self._expect(self._function._occupying(block, shared_mem, None), blocks, CallingLine.current())

    def _expect(self, pending: PendingResult[Occupancy], blocks: int, line: CallingLine) -> None:
        name, output, reply = self._function.name, self._function._connection.kernel_output, pending.reply
        given = False

        def warn() -> None:
            nonlocal given
            if given or reply.error is not None:  # the launch itself reports the error
                return
            given = True
            limit = pending.wait().max_cooperative_blocks
            if 0 < limit < blocks:
                text = (
                    f"launch of {name}: the grid is reduced from {blocks} to {limit} blocks, which is how many can be "
                    "resident at once. Fix: compute the grid from occupancy(block).max_cooperative_blocks."
                )
                line.warn(text)

        reply.on_answer = lambda: output.call_later(warn)
        if reply.answered:
            output.call_later(warn)
