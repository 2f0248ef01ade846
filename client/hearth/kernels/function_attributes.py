"""What a kernel says of itself: registers, memory, occupancy, parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import progress
from hearth.kernels import arguments
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import Asked


ATTRIBUTES = ("num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes", "max_threads_per_block")
"""What `Attributes.attributes` has."""


class Occupancy(NamedTuple):
    """What of a kernel fits its device at once."""

    blocks_per_multiprocessor: int
    multiprocessors: int
    max_cooperative_blocks: int
    """The largest grid of a cooperative launch; 0 where the device has none."""
    max_clusters: int
    """Where a cluster was asked for."""
    suggested_block: int
    """Threads of a block that gives the most occupancy."""


class Attributes:
    """Of a function, by CuPy's names; each waits for the compile."""

    _connection: Connection
    _described: commands_pb2.FunctionResult | None = None

    def _handle_on(self, attachment: Attachment) -> int:
        """The function's handle on the attachment that is about to be used."""
        raise NotImplementedError

    @property
    def attributes(self) -> dict[str, int]:
        """All of the below in one dict."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    @property
    def num_regs(self) -> int:
        """Registers per thread; 0 where the backend has none."""
        return self._describe().registers

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory per block."""
        return self._describe().static_shared_bytes

    @property
    def local_size_bytes(self) -> int:
        """Local memory per thread."""
        return self._describe().local_bytes

    @property
    def const_size_bytes(self) -> int:
        """Constant memory."""
        return self._describe().constant_bytes

    @property
    def max_threads_per_block(self) -> int:
        """The largest block that the kernel's registers allow."""
        return self._describe().max_threads_per_block

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory that a launch may ask for."""
        return self._describe().max_dynamic_shared_bytes

    def occupancy(self, block: Any, shared_mem: int = 0, *, cluster: Any = None) -> Occupancy:
        """How many blocks of so many threads, with so much dynamic shared memory, the device holds at once.

        Raises `LaunchError` for a block that can never run.
        """
        return self._occupying(block, shared_mem, cluster).wait()

    def _occupying(self, block: Any, shared_mem: int, cluster: Any) -> Asked[Occupancy]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        asked = command.occupancy
        asked.function = self._handle_on(attachment)
        asked.block.x, asked.block.y, asked.block.z = arguments.dimensions("block", block)
        asked.shared_mem = shared_mem
        if cluster is not None:
            asked.cluster.x, asked.cluster.y, asked.cluster.z = arguments.dimensions("cluster", cluster)
        return self._connection.asking(command, _occupancy, attachment)

    @property
    def parameters(self) -> list[tuple[int, int]]:
        """(offset, size) in bytes of each parameter in the parameter block."""
        return [(parameter.offset, parameter.size) for parameter in self._describe().parameters]

    def _describe(self) -> commands_pb2.FunctionResult:
        if self._described is None:
            with progress.waiting("compile"):
                self._described = self._describing().wait()
        return self._described

    def _describing(self) -> Asked[commands_pb2.FunctionResult]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.describe_function.function = self._handle_on(attachment)
        return self._connection.asking(command, lambda result: result.function, attachment)


def _occupancy(answer: commands_pb2.Result) -> Occupancy:
    result = answer.occupancy
    return Occupancy(
        result.blocks_per_multiprocessor,
        result.multiprocessors,
        result.max_cooperative_blocks,
        result.max_clusters,
        result.suggested_block,
    )
