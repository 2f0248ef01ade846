"""Residency: the number of blocks and clusters that a device can hold at the same time.

Residency limits cooperative and cluster launches. A cooperative launch whose grid does not fit completely would
deadlock. Two limits apply: the threads of a multiprocessor, known before any code is loaded, and the occupancy of the
loaded function, which its registers and shared memory may lower further.
"""

from __future__ import annotations

from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.backend.launch_limits import AXES, LaunchLimits

PORTABLE_CLUSTER = 8
"""Largest number of blocks of a cluster on every device with clusters (CUDA C++ Programming Guide, "Thread Block
Clusters")."""

LARGEST_CLUSTER = 16
"""Largest number of blocks of a cluster of a function that opts in
(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)."""


def product(dim: Dim) -> int:
    """Returns the number of elements of a grid, block or cluster: blocks of a grid or cluster, threads of a block."""
    return dim[0] * dim[1] * dim[2]


def thread_bound(limits: LaunchLimits, threads: int) -> int:
    """Returns the number of blocks of `threads` threads that the device holds if only threads are counted.

    The result is floor(threads of a multiprocessor / threads of a block), limited to the blocks of a multiprocessor if
    that is known, times the number of multiprocessors. It is 0 if the limits are unknown.
    """
    if threads < 1:
        return 0
    blocks = limits.max_threads_per_multiprocessor // threads
    if limits.max_blocks_per_multiprocessor > 0:
        blocks = min(blocks, limits.max_blocks_per_multiprocessor)
    return blocks * limits.multiprocessors


def fit_grid(limits: LaunchLimits, grid: Dim, block: Dim, occupancy: int) -> Dim:
    """Returns the largest grid of at most `grid` that can be resident as a whole.

    Only a grid with one block along y and z is reduced, as in CuPy. `occupancy` is the number of blocks of the loaded
    function that fit one multiprocessor. If no block fits, the grid is returned unchanged.
    """
    limit = min(thread_bound(limits, product(block)), occupancy * limits.multiprocessors)
    return (min(grid[0], limit), 1, 1) if limit > 0 and grid[1:] == (1, 1) else grid


def check_cooperative(limits: LaunchLimits, grid: Dim, block: Dim, occupancy: int | None) -> list[str]:
    """Returns the reasons why the grid cannot be resident as a whole.

    `occupancy` is the number of blocks of the loaded function that fit one multiprocessor; None: not known yet.
    """
    if "cooperative_launch" not in limits.features:
        return ["the device has no cooperative launches"]
    blocks = product(grid)
    limit = thread_bound(limits, product(block))
    if blocks > limit:
        return [_too_many(blocks, limit, "by the threads and blocks that a multiprocessor holds", limits)]
    if occupancy is not None and blocks > occupancy * limits.multiprocessors:
        limit = occupancy * limits.multiprocessors
        return [_too_many(blocks, limit, "by this kernel's registers and shared memory", limits)]
    return []


def _too_many(blocks: int, limit: int, cause: str, limits: LaunchLimits) -> str:
    return (
        f"a cooperative grid of {blocks} blocks cannot be resident as a whole: {limit} blocks fit, limited {cause} "
        f"({limit // max(1, limits.multiprocessors)} on each of {limits.multiprocessors} multiprocessors)"
    )


def check_cluster(limits: LaunchLimits, grid: Dim, cluster: Dim) -> list[str]:
    """Returns the errors in the cluster's dimensions, one sentence each."""
    if "clusters" not in limits.features:
        return ["the device has no thread block clusters"]
    errors = [f"cluster.{axis} is 0; every dimension must be at least 1" for axis, n in _axes(cluster) if not n]
    if errors:
        return errors
    if product(cluster) > LARGEST_CLUSTER:
        errors.append(f"a cluster of {product(cluster)} blocks; the maximum is {LARGEST_CLUSTER}")
    errors += [
        f"grid.{axis} is {grid[index]}; it is not a multiple of cluster.{axis}, which is {n}"
        for index, (axis, n) in enumerate(_axes(cluster))
        if grid[index] % n
    ]
    return errors


def _axes(dim: Dim) -> list[tuple[str, int]]:
    return list(zip(AXES, dim, strict=True))
