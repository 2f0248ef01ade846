"""Nodes of a graph, and the attributes of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class AccessWindow:
    """An access-policy window: a range of device memory, and the treatment of a kernel's accesses to it."""

    address: int
    size: int
    """Bytes."""
    hit_ratio: float
    """Fraction of the accesses with the property `hit`; the others have `miss`."""
    hit: int
    """As CUaccessProperty."""
    miss: int
    """As CUaccessProperty."""


@dataclass(frozen=True)
class LaunchAttributes:
    """Attributes of a launch, for cuLaunchKernelEx. `cluster` is in blocks; None: the launch has no clusters.

    Only `cooperative` and `cluster` change what a kernel computes.
    """

    cooperative: bool = False
    cluster: Dim | None = None
    programmatic: bool = False
    """True if the launch may start before the preceding kernel of its stream completes."""
    priority: int | None = None
    """Priority in place of the stream's, which the backend clamps or ignores; None: the stream's."""
    mem_sync_domain: int = 0
    """As CUlaunchMemSyncDomain."""
    window: AccessWindow | None = None


@dataclass(frozen=True)
class KernelNode:
    """A kernel launch; `params` is the parameter block with addresses filled in."""

    function: Any
    grid: Dim
    block: Dim
    shared_mem: int
    params: bytes
    attributes: LaunchAttributes | None = None


@dataclass(frozen=True)
class CopyNode:
    """A copy within the device: `rows` rows of `width` bytes. The pitches apply only if there is more than one row."""

    destination: int
    source: int
    width: int
    rows: int = 1
    destination_pitch: int = 0
    source_pitch: int = 0


@dataclass(frozen=True)
class FillNode:
    """A fill of `size` bytes with `pattern` (1, 2, 4, 8 or 16 bytes)."""

    address: int
    pattern: bytes
    size: int


@dataclass(frozen=True)
class HostCopyNode:
    """A copy of `rows` rows of `width` bytes between the device and host memory, where the rows have no gaps.

    `host` is the memory (`hearthd.device.backend.resources.HostBuffer`), and `offset` the first byte in it. `upload` is
    True for a copy to the device. The pitch applies only if there is more than one row.
    """

    upload: bool
    address: int
    host: Any
    offset: int
    width: int
    rows: int = 1
    pitch: int = 0
    pieces: tuple[HostCopyNode, ...] = ()
    """Copies of the same bytes, each within memory that one call of `register_host` has page-locked, if that takes
    several; they are enqueued in place of the whole copy."""


class Conditional(Enum):
    """Kinds of conditional nodes."""

    IF = "if"
    """Body 0 runs if the value is not 0, and body 1 if it is 0."""
    WHILE = "while"
    """Body 0 runs again and again, for as long as the value is not 0 before it."""
    SWITCH = "switch"
    """The body whose index is the value runs."""


@dataclass(frozen=True)
class GraphBody:
    """A body of a conditional node."""

    index: int
    """Position in the array of graphs that CUDA makes for the node."""
    nodes: int
    """Number of nodes."""


@dataclass(frozen=True)
class ConditionalNode:
    """A condition that decides which of the node's bodies runs.

    The bodies are the nodes that follow this one in the graph, one body after the other in any order of their indices.
    The value is the 4 bytes at `address`, as an unsigned number, when the device reaches the node. No body runs for a
    value without one.
    """

    address: int
    kind: Conditional
    bodies: tuple[GraphBody, ...] = ()

    @property
    def size(self) -> int:
        """Number of nodes of all bodies."""
        return sum(body.nodes for body in self.bodies)

    def ranges(self, index: int) -> Iterator[tuple[int, range]]:
        """Returns, for each body, its index and the indices of its nodes. `index` is that of this node."""
        start = index + 1
        for body in self.bodies:
            yield body.index, range(start, start + body.nodes)
            start += body.nodes


BRANCHES = "graph_branches"
"""Feature of a device that supports nodes of the kind `SWITCH`, and nodes of the kind `IF` with two bodies."""


WorkNode: TypeAlias = KernelNode | CopyNode | FillNode | HostCopyNode
"""A node that a backend enqueues with one call, or with one for each piece of a copy; see `replay`."""

GraphNode: TypeAlias = WorkNode | ConditionalNode


class NodeOrder(NamedTuple):
    """Position of a node in a graph that was captured from several streams."""

    lane: int
    """Number of the captured stream, from 0: the stream on which the capture began. Nodes of one lane run in order."""
    after: tuple[int, ...]
    """Indices of the nodes that must complete before this node, all of them smaller than the node's own index."""
