"""Replay: the calls of a `ComputeServer` that enqueue the nodes of a graph on a stream, one after the other.

If the stream is being captured (CUDA), or a recorder takes the place of the stream (CPU), the same calls build a graph
instead of running.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hearthd.device.backend.graph_nodes import CopyNode, FillNode, HostCopyNode, KernelNode, WorkNode
from hearthd.device.backend.server import ComputeServer


def replay(server: ComputeServer, nodes: Iterable[WorkNode], stream: Any) -> None:
    """Enqueues every node on `stream`, in order. Raises the error of the first node that cannot be enqueued."""
    for node in nodes:
        if isinstance(node, KernelNode):
            server.launch(node.function, node.grid, node.block, node.shared_mem, stream, node.params, node.attributes)
        elif isinstance(node, HostCopyNode):
            for piece in node.pieces or (node,):
                host, offset, address, pitch = piece.host, piece.offset, piece.address, piece.pitch
                if piece.upload:
                    server.upload_rows(address, pitch, host, offset, piece.width, piece.rows, stream)
                else:
                    server.download_rows(host, offset, address, pitch, piece.width, piece.rows, stream)
        elif isinstance(node, FillNode):
            server.fill(node.address, node.pattern, node.size, stream)
        else:
            enqueue_copy(server, node, stream)


def enqueue_copy(server: ComputeServer, node: CopyNode, stream: Any) -> None:
    """Enqueues a copy within the device on `stream`. Raises the error of the backend."""
    server.copy_rows(
        node.destination, node.destination_pitch, node.source, node.source_pitch, node.width, node.rows, stream
    )
