"""Giving the nodes of a graph to a stream, one behind the other: how both backends make a graph of them.

What the stream does with them is its own business: a stream that is being captured (CUDA), or one that only keeps what
it is given (CPU), makes a graph of the very calls that would otherwise have run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from hearthd.device.backend.graph_nodes import CopyNode, Dim, GraphNode, KernelNode, LaunchAttributes


class Enqueues(Protocol):
    """The part of `ComputeServer` that nodes are made with."""

    def launch(
        self,
        function: Any,
        grid: Dim,
        block: Dim,
        shared_mem: int,
        stream: Any,
        params: Any,
        attributes: LaunchAttributes | None = None,
    ) -> None: ...
    def copy(self, destination: int, source: int, size: int, stream: Any) -> None: ...
    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: Any,
    ) -> None: ...
    def fill(self, address: int, pattern: bytes, size: int, stream: Any) -> None: ...


def replay(server: Enqueues, nodes: Iterable[GraphNode], stream: Any) -> None:
    """Enqueues every node on `stream`. Raises what the first that cannot be raises."""
    for node in nodes:
        if isinstance(node, KernelNode):
            server.launch(node.function, node.grid, node.block, node.shared_mem, stream, node.params, node.attributes)
        elif not isinstance(node, CopyNode):
            server.fill(node.address, node.pattern, node.size, stream)
        elif node.rows == 1:
            server.copy(node.destination, node.source, node.width, stream)
        else:
            server.copy_rows(
                node.destination,
                node.destination_pitch,
                node.source,
                node.source_pitch,
                node.width,
                node.rows,
                stream,
            )
