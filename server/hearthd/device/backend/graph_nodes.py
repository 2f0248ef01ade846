"""What a graph is made of, and what sets a launch apart from a plain one. Data only; both backends read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchAttributes:
    """As cuLaunchKernelEx takes them. `cluster`: blocks; None: no clusters."""

    cooperative: bool = False
    cluster: Dim | None = None


@dataclass(frozen=True)
class KernelNode:
    """A launch; `params` is the parameter block with addresses filled in."""

    function: Any
    grid: Dim
    block: Dim
    shared_mem: int
    params: bytes
    attributes: LaunchAttributes | None = None


@dataclass(frozen=True)
class CopyNode:
    """A copy within the device: `rows` rows of `width` bytes. Pitches count only where there are several."""

    destination: int
    source: int
    width: int
    rows: int = 1
    destination_pitch: int = 0
    source_pitch: int = 0


@dataclass(frozen=True)
class FillNode:
    """`pattern` (1, 2, 4, 8 or 16 bytes) over `size` bytes."""

    address: int
    pattern: bytes
    size: int


GraphNode: TypeAlias = KernelNode | CopyNode | FillNode
