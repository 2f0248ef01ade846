"""Occupancy: the blocks and clusters of a function that the device holds at the same time.

The driver computes the values on the host and does not wait for work on the device.
"""

from __future__ import annotations

from cuda.bindings import driver

from hearth_proto.reasons import Reason
from hearthd.device.backend.graph_nodes import Dim, LaunchAttributes
from hearthd.device.cuda.attributes import allow_cluster, driver_attributes, launch_config
from hearthd.device.cuda.errors import CudaError, checked, status_of, translate, translated
from hearthd.device.cuda.launch import CudaFunction

INVALID_CLUSTER_SIZE = 912  # CUDA_ERROR_INVALID_CLUSTER_SIZE


def blocks_per_multiprocessor(function: CudaFunction, threads: int, shared_mem: int) -> int:
    """Returns the number of blocks of `threads` threads that fit one multiprocessor.

    Opts in to `shared_mem` bytes first if necessary. Raises Refusal(LAUNCH_INVALID).
    """
    try:
        if shared_mem > function.dynamic_limit:
            function.allow_shared(shared_mem)
        (blocks,) = checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.pointer, threads, shared_mem))
        return max(0, int(blocks))
    except CudaError as error:
        raise translate(error, f"asking for the occupancy of {function.name}", Reason.LAUNCH_INVALID) from error


def max_clusters(function: CudaFunction, cluster: Dim, block: Dim, shared_mem: int) -> int:
    """Returns the number of clusters that fit the device at the same time; 0 for an unsupported cluster size.

    Opts in to `shared_mem` bytes and to a large cluster first if necessary. Raises Refusal(LAUNCH_INVALID).
    """
    try:
        if shared_mem > function.dynamic_limit:
            function.allow_shared(shared_mem)
        allow_cluster(function.pointer, cluster)
        attributes = driver_attributes(LaunchAttributes(cluster=cluster))
        config = launch_config(cluster, block, shared_mem, 0, attributes)
        (clusters,) = checked(driver.cuOccupancyMaxActiveClusters(function.pointer, config))
        return max(0, int(clusters))
    except CudaError as error:
        if status_of(error) == INVALID_CLUSTER_SIZE:
            return 0
        raise translate(error, f"asking how many clusters of {function.name} fit", Reason.LAUNCH_INVALID) from error


def suggested_block(function: CudaFunction, shared_mem: int) -> int:
    """Returns the number of threads per block that gives the highest occupancy. Raises Refusal(LAUNCH_INVALID)."""
    with translated(f"asking for the best block of {function.name}", Reason.LAUNCH_INVALID):
        _, threads = checked(
            driver.cuOccupancyMaxPotentialBlockSize(function.pointer, driver.CUoccupancyB2DSize(0), shared_mem, 0)
        )
        return int(threads)
