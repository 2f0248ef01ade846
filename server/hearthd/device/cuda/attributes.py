"""Conversion of launch attributes to the driver's types, for cuLaunchKernelEx and graph nodes."""

from __future__ import annotations

from collections.abc import Sequence

from cuda.bindings import driver

from hearthd.device.backend.graph_nodes import AccessWindow, Dim, LaunchAttributes
from hearthd.device.backend.residency import PORTABLE_CLUSTER, product
from hearthd.device.cuda.errors import checked


def driver_attributes(attributes: LaunchAttributes) -> list[driver.CUlaunchAttribute]:
    """Returns the attributes for cuLaunchKernelEx and kernel nodes."""
    out: list[driver.CUlaunchAttribute] = []
    if attributes.cooperative:
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        out.append(cooperative)
    if attributes.cluster is not None:
        cluster = driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = cluster.value.clusterDim
        dim.x, dim.y, dim.z = attributes.cluster
        out.append(cluster)
    if attributes.programmatic:
        programmatic = driver.CUlaunchAttribute()
        programmatic.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        programmatic.value.programmaticStreamSerializationAllowed = 1
        out.append(programmatic)
    if attributes.priority is not None:
        priority = driver.CUlaunchAttribute()
        priority.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
        priority.value.priority = _clamped_priority(attributes.priority)
        out.append(priority)
    if attributes.mem_sync_domain:
        domain = driver.CUlaunchAttribute()
        domain.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
        domain.value.memSyncDomain = driver.CUlaunchMemSyncDomain(attributes.mem_sync_domain)
        out.append(domain)
    if attributes.window is not None:
        access = driver.CUlaunchAttribute()
        access.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        access.value.accessPolicyWindow = _driver_window(attributes.window)
        out.append(access)
    return out


def _clamped_priority(priority: int) -> int:
    """Returns the priority in the range of the current device, as the driver clamps those of streams."""
    least, greatest = map(int, checked(driver.cuCtxGetStreamPriorityRange()))
    return max(greatest, min(priority, least))  # lower numbers are more urgent


def _driver_window(window: AccessWindow) -> driver.CUaccessPolicyWindow:
    out = driver.CUaccessPolicyWindow()
    out.base_ptr = window.address
    out.num_bytes = window.size
    out.hitRatio = window.hit_ratio
    out.hitProp = driver.CUaccessProperty(window.hit)
    out.missProp = driver.CUaccessProperty(window.miss)
    return out


def launch_config(
    grid: Dim, block: Dim, shared_mem: int, stream: int, attributes: Sequence[driver.CUlaunchAttribute]
) -> driver.CUlaunchConfig:
    """Returns the configuration of a launch for cuLaunchKernelEx and occupancy queries.

    `stream` is the driver's pointer.
    """
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_mem
    config.hStream = stream
    config.attrs = list(attributes)
    config.numAttrs = len(attributes)
    return config


def allow_cluster(function: int, cluster: Dim) -> None:
    """Opts in to a cluster with more blocks than every device supports. Raises CudaError."""
    if product(cluster) > PORTABLE_CLUSTER:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        checked(driver.cuFuncSetAttribute(function, attribute, 1))
