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

_MAX_GEOMETRIES = 1024
"""Launch geometries that are remembered per kernel."""


class FitWarnings:
    """The warnings about one kernel: each geometry is compared with the limit once."""

    def __init__(self, function: BaseFunction) -> None:
        self._function = function
        self._geometries: set[tuple[object, ...]] = set()

    def check(self, grid: Any, block: Any, shared_mem: int) -> None:
        """Requests the limit of a geometry that is new, and arranges for the warning. Does not block.

        Args:
            grid: Blocks along each axis of the launch.
            block: Threads along each axis.
            shared_mem: Dynamic shared memory in bytes.
        """
        blocks, *other_axes = arguments.dimensions("grid", grid)
        geometry = (blocks, arguments.dimensions("block", block), shared_mem)
        if other_axes != [1, 1] or geometry in self._geometries:
            return
        if len(self._geometries) >= _MAX_GEOMETRIES:
            self._geometries.clear()
        self._geometries.add(geometry)
        self._warn_if_reduced(self._function._request_occupancy(block, shared_mem, None), blocks, CallingLine.current())

    def _warn_if_reduced(self, pending: PendingResult[Occupancy], blocks: int, line: CallingLine) -> None:
        name, output, reply = self._function.name, self._function._connection.kernel_output, pending.reply
        warned = False

        def warn() -> None:
            nonlocal warned
            if warned or reply.error is not None:  # the launch itself reports the error
                return
            warned = True
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
