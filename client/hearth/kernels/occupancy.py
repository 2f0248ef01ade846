"""Occupancy of a device by a kernel: the number of resident blocks, and warnings of grids that exceed that number.

Covers the values of the daemon's answer, and the warnings about cooperative launches whose grids the daemon reduces.
Does not cover the request, which `hearth.kernels.base_function` sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.calling_line import CallingLine
from hearth.kernels import arguments

if TYPE_CHECKING:
    from hearth.session.kernel_output import KernelOutput
    from hearth.session.reply import PendingResult
    from hearth_proto.v1 import commands_pb2

_MAX_GEOMETRIES = 1024
"""Launch geometries that are remembered per kernel for `FitWarnings`."""


class Occupancy(NamedTuple):
    """The number of blocks of a kernel that its device can run at the same time."""

    blocks_per_multiprocessor: int
    multiprocessors: int
    max_cooperative_blocks: int
    """The largest grid of a cooperative launch; 0 if the device does not support cooperative launches."""
    max_clusters: int
    """Clusters that can be resident on the device at the same time; only set if a cluster was given."""
    suggested_block: int
    """Threads of the block size that gives the highest occupancy."""


def occupancy_of(answer: commands_pb2.Result) -> Occupancy:
    """Reads the occupancy from the daemon's answer.

    Args:
        answer: Answer to a command `Occupancy`.

    Returns:
        The occupancy.
    """
    result = answer.occupancy
    return Occupancy(
        result.blocks_per_multiprocessor,
        result.multiprocessors,
        result.max_cooperative_blocks,
        result.max_clusters,
        result.suggested_block,
    )


class FitWarnings:
    """The warnings about launches of one kernel whose grids the daemon reduces: each geometry is compared once.

    A launch is sent one way, so the client does not know the limit when it launches. It requests the occupancy together
    with the launch, and the next call that waits for the device gives the warning.
    """

    def __init__(
        self, kernel: str, output: KernelOutput, request: Callable[[Any, int], PendingResult[Occupancy]]
    ) -> None:
        """Makes the warnings of a kernel.

        Args:
            kernel: The kernel's name.
            output: Output of the device's kernels: the call that delivers it gives the warnings.
            request: Requests the occupancy for a block size and bytes of dynamic shared memory. Does not block.
        """
        self._kernel = kernel
        self._output = output
        self._request = request
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
        self._warn_if_reduced(self._request(block, shared_mem), blocks, CallingLine.current())

    def _warn_if_reduced(self, pending: PendingResult[Occupancy], blocks: int, line: CallingLine) -> None:
        name, output, reply = self._kernel, self._output, pending.reply
        warned = False

        def warn() -> None:
            nonlocal warned
            if warned or reply.error is not None:  # the launch itself reports the error
                return
            warned = True
            limit = pending.wait().max_cooperative_blocks
            if 0 < limit < blocks:
                text = (
                    f"launch of {name}: the grid is reduced from {blocks} to {limit} blocks, the maximum that can be "
                    "resident at the same time. Fix: compute the grid from occupancy(block).max_cooperative_blocks."
                )
                line.warn(text)

        reply.on_answer = lambda: output.call_later(warn)
        if reply.answered:
            output.call_later(warn)
