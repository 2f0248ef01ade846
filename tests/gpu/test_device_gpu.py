"""Properties of a real GPU, compared with the values that other driver calls return."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.shared.device_spec import DeviceSpec

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu


def test_properties(server: CudaServer) -> None:
    """Each property and feature against the attribute that the driver has of it; the server asks CUDA's runtime."""
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked

    (device,) = checked(driver.cuDeviceGet(0))

    def attribute(name: str) -> Any:
        (value,) = checked(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, name), device))
        return value

    def known(name: str) -> Any:
        return attribute(f"CU_DEVICE_ATTRIBUTE_{name}")

    props = server.properties
    (name,) = checked(driver.cuDeviceGetName(256, device))
    (total,) = checked(driver.cuDeviceTotalMem(device))
    (version,) = checked(driver.cuDriverGetVersion())
    assert props.backend == "cuda" and props.name == bytes(name).partition(b"\0")[0].decode()
    assert props.uuid.startswith("GPU-") and len(props.uuid) == 40
    assert props.total_memory == total and props.driver_version == f"{version // 1000}.{version % 1000 // 10}"
    assert re.fullmatch(r"\d+\.\d", props.runtime_version)
    found = {
        "COMPUTE_CAPABILITY_MAJOR": props.compute_capability_major,
        "COMPUTE_CAPABILITY_MINOR": props.compute_capability_minor,
        "MULTIPROCESSOR_COUNT": props.multiprocessor_count,
        "WARP_SIZE": props.warp_size,
        "MAX_THREADS_PER_BLOCK": props.max_threads_per_block,
        "MAX_SHARED_MEMORY_PER_BLOCK": props.shared_mem_per_block,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": props.shared_mem_per_block_optin,
        "MAX_THREADS_PER_MULTIPROCESSOR": props.max_threads_per_multiprocessor,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": props.max_blocks_per_multiprocessor,
        "MAX_REGISTERS_PER_BLOCK": props.registers_per_block,
        "L2_CACHE_SIZE": props.l2_cache_bytes,
        "CLOCK_RATE": props.clock_rate_khz,
        **{f"MAX_BLOCK_DIM_{axis}": size for axis, size in zip("XYZ", props.max_block_dim, strict=True)},
        **{f"MAX_GRID_DIM_{axis}": size for axis, size in zip("XYZ", props.max_grid_dim, strict=True)},
    }
    assert found == {name: known(name) for name in found}
    features = {
        "memory_pools": bool(known("MEMORY_POOLS_SUPPORTED")),
        "cooperative_launch": bool(known("COOPERATIVE_LAUNCH")),
        "clusters": bool(known("CLUSTER_LAUNCH")),
        "access_policy_window": known("COMPUTE_CAPABILITY_MAJOR") >= 8,
        "programmatic_launch": known("COMPUTE_CAPABILITY_MAJOR") >= 9,
        "memory_sync_domains": known("COMPUTE_CAPABILITY_MAJOR") >= 9,
        "graph_branches": version >= 12080,
        "tensor_maps": bool(known("TENSOR_MAP_ACCESS_SUPPORTED")),
        "tensor_map_im2col_wide": known("COMPUTE_CAPABILITY_MAJOR") >= 10 and version >= 12080,
        "tensor_map_swizzle_atoms": known("COMPUTE_CAPABILITY_MAJOR") >= 10 and version >= 12080,
    }
    assert {name: name in props.features for name in features} == features
    assert set(props.features) - {"nccl"} <= set(features)


def test_uuid_is_nvml_s(server: CudaServer) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    try:
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [pynvml.nvmlDeviceGetUUID(device) for device in devices]
    finally:
        pynvml.nvmlShutdown()
    assert server.properties.uuid in [each if isinstance(each, str) else each.decode() for each in found]


def test_unknown_device_is_refused(server: CudaServer) -> None:
    from hearthd.device.cuda.server import CudaServer

    with pytest.raises(Refusal) as caught:
        CudaServer(DeviceSpec(ordinal=99, backend="cuda", index=99))
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND
