"""GPU tests are skipped with the reason if there is no GPU or no CuPy; no module here imports CuPy at collection."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer


@functools.cache
def gpu_count() -> tuple[int, str]:
    """Returns the number of GPUs that CUDA sees, and the reason if there are none."""
    for package in ("cupy", "cuda"):
        if importlib.util.find_spec(package) is None:
            return 0, f"the package {package} is not installed (extras cuda12, cuda13)"
    try:
        from cupy_backends.cuda.api import runtime

        count = int(runtime.getDeviceCount())
    except Exception as error:
        return 0, f"CUDA cannot be used: {error}"
    return count, "" if count else "CUDA sees no GPU"


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = 2 if item.get_closest_marker("multi_gpu") else 1 if item.get_closest_marker("gpu") else 0
    if needed:
        count, why = gpu_count()
        if count < needed:
            pytest.skip(why or f"needs {needed} GPUs, CUDA sees {count}")


@pytest.fixture(scope="module")
def server() -> Iterator[CudaServer]:
    from hearthd.device.cuda.server import CudaServer
    from hearthd.shared.device_spec import DeviceSpec

    made = CudaServer(DeviceSpec(ordinal=0, backend="cuda", index=0))
    yield made
    made.close()


@pytest.fixture
def stream(server: CudaServer) -> Iterator[Any]:
    made = server.create_stream()
    yield made
    server.destroy_stream(made)
