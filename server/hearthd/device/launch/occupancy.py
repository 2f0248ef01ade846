"""Occupancy: the number of blocks and clusters of a function that fit on the device at the same time."""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend import launch_limits, residency
from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.context import DeviceContext
from hearthd.device.launch.arguments import dim
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.module import FunctionEntry


class OccupancyCommands:
    """Executes the occupancy command. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def occupancy(self, origin: Origin, command: commands_pb2.Occupancy) -> Operation:
        """Answers when the module is loaded. The result uses the same numbers as the checks of a launch."""
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "occupancy needs a request number", fix="set Command.request")
        entry = origin.session.functions.find(command.function)
        entry.module.ensure_loading()

        def run() -> bool:
            if entry.module.pending:
                return False
            origin.reply(commands_pb2.Result(occupancy=self._measure(entry, command)))
            return True

        return Operation(origin, run, reads=(entry.module,))

    def _measure(self, entry: FunctionEntry, command: commands_pb2.Occupancy) -> commands_pb2.OccupancyResult:
        device = self._device
        limits = device.limits
        function = entry.resolve()
        block: Dim = dim(command.block)
        cluster: Dim | None = None
        grid: Dim = (1, 1, 1)
        if command.HasField("cluster"):
            grid = cluster = dim(command.cluster)
        faults = launch_limits.check(limits, function.attributes, (1, 1, 1), block, command.shared_mem)
        if cluster is not None:
            faults += residency.check_cluster(limits, grid, cluster)
        if faults:
            raise launch_limits.refuse(entry.name, faults, grid, block, command.shared_mem)
        threads = residency.product(block)
        blocks = device.server.blocks_per_multiprocessor(function, threads, command.shared_mem)
        resident = min(blocks * limits.multiprocessors, residency.thread_bound(limits, threads))
        result = commands_pb2.OccupancyResult(
            blocks_per_multiprocessor=blocks,
            multiprocessors=limits.multiprocessors,
            max_cooperative_blocks=resident if "cooperative_launch" in limits.features else 0,
            suggested_block=device.server.suggested_block(function, command.shared_mem),
        )
        if cluster is not None:
            result.max_clusters = device.server.max_clusters(function, cluster, block, command.shared_mem)
        return result
