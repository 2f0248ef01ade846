"""Device pointers in structures and arrays on a GPU: real addresses, and launches with attributes.

The general tests are `tests/daemon/launch/test_struct_pointers.py` and `test_pointer_arrays.py`, which run on GPUs with
HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth

pytestmark = pytest.mark.gpu

KERNELS = r"""
struct alignas(16) Vector { int n; float* data; float4 factor; };
extern "C" __global__ void scale(char before, Vector v, char after) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < v.n && before == 1 && after == 2) v.data[i] *= v.factor.y;
}
extern "C" __global__ void addresses(void* x, void** rows, unsigned long long* out) {
    out[0] = (unsigned long long)x;
    out[1] = (unsigned long long)rows[0];
    out[2] = (unsigned long long)rows[1];
}
"""
VECTOR = np.dtype(
    {
        "names": ["n", "data", "factor"],
        "formats": [np.int32, object, (np.float32, (4,))],
        "offsets": [0, 8, 16],
        "itemsize": 32,
    }
)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A private daemon of this module."""
    with tempfile.TemporaryDirectory(prefix="hearth-gpu-") as folder:
        config = Path(folder) / "hearth.toml"
        config.write_text(f"[cache]\ndir = {json.dumps(folder + '/compiled')}\n")
        arguments = ["--config", str(config), "--backend", "cuda", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        arguments += ["--unix", f"{folder}/hearth.sock"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
        command = [sys.executable, "-m", "hearthd", "serve", *arguments]
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("hearthd ready"), (Path(folder) / "log").read_text()
            yield f"unix:{folder}/hearth.sock"
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def gpu(target: str) -> Iterator[hearth.Device]:
    with hearth.connect(target) as node:
        yield node.device(0)


def vector(x: hearth.DeviceArray, factor: float) -> hearth.Struct:
    """Returns the struct as bytes with the alignment of the kernel's type, which NumPy's dtype does not have."""
    data = np.int32(x.size).tobytes() + bytes(12) + np.array([0, factor, 0, 0], np.float32).tobytes()
    return hearth.Struct(data, align=16, pointers={8: x})


def test_structs_in_ordinary_cooperative_and_clustered_launches(gpu: hearth.Device) -> None:
    """cuLaunchKernel takes the block of parameters, and cuLaunchKernelEx the address of each parameter in it."""
    scale, x = gpu.RawModule(code=KERNELS).get_function("scale"), gpu.ones(64, np.float32)
    args = (np.int8(1), vector(x, 2), np.int8(2))
    scale(2, 32, args)
    scale(2, 32, args, cooperative=True)
    factor = 4
    if gpu.properties.compute_capability >= (9, 0):
        scale(2, 32, args, cluster=2)
        factor = 8
    assert x.get().tolist() == [factor] * 64
    y = np.zeros((), VECTOR)
    y["n"], y["data"], y["factor"][1] = 32, hearth.pointer(x, 128), 3
    scale(2, 32, (np.int8(1), y, np.int8(2)))
    assert x.get().tolist() == [factor] * 32 + [3 * factor] * 32


def test_graph_nodes_take_structs_with_other_pointers(gpu: hearth.Device) -> None:
    scale = gpu.RawModule(code=KERNELS).get_function("scale")
    x, y = gpu.ones(64, np.float32), gpu.ones(64, np.float32)
    with gpu.graph() as graph:
        scale(2, 32, (np.int8(1), vector(x, 2), np.int8(2)))
    graph.launch(3)
    graph.nodes[0].set_args((np.int8(1), vector(y, 5), np.int8(2)))
    graph.launch(2)
    assert x.get().tolist() == [8] * 64 and y.get().tolist() == [25] * 64


def test_arrays_of_pointers_hold_the_addresses_of_launches(gpu: hearth.Device) -> None:
    addresses, out = gpu.RawModule(code=KERNELS).get_function("addresses"), gpu.zeros(3, np.uint64)
    x, far = gpu.zeros(8, np.float32), gpu.zeros(1 << 20, np.float32)
    rows = gpu.pointers([(x, 12), far[1 << 19 :]])
    addresses(1, 1, (x, rows, out))
    first, inside, half = out.get().tolist()
    assert inside == first + 12 and rows.get().tolist() == [inside, half]
    assert first % 16 == 0
