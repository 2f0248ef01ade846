"""A client as users run it: a process without CUDA and without the server package, which starts quickly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.daemon.harness import DaemonProcess, environment

DRIVES = """
import sys
for name in ("cupy", "cupyx", "cupy_backends", "cuda", "pynvml", "hearthd", "structlog", "pydantic", "aiohttp"):
    sys.modules[name] = None  # importing it fails
import numpy as np, hearth
source = '''
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
__device__ int v = 3;
'''
with hearth.connect(sys.argv[1]) as node:
    gpu = node.device(0)
    assert node.describe().devices and node.sessions() and gpu.properties.name
    module = gpu.RawModule(code=source)
    module.compile()
    saxpy = module.get_function("saxpy")
    host = np.arange(1 << 20, dtype=np.float32)
    x, y = gpu.asarray(host), gpu.zeros(1 << 20, np.float32)
    with gpu.profile() as profile, gpu.stream() as stream:
        saxpy((4096,), (256,), (np.float32(2), x, y, np.int32(1 << 20)))
        stream.synchronize()
    assert (np.asarray(y) == 2 * host).all() and profile.wall_ns > 0
    assert module.get_global("v", np.int32).get()[0] == 3 and saxpy.parameters
    hearth.Group(node.devices).all_reduce([device.ones(4, np.float32) for device in node.devices])
    for device in node.devices:
        device.synchronize()
    event = gpu.default_stream.record()
    event.synchronize()
    assert event.done and gpu.memory_usage().allocations == 2
    try:
        gpu.RawModule(code="}").compile()
    except hearth.CompileError as error:
        assert error.log
    saxpy((1,), (5000,), (np.float32(2), x, y, np.int32(1)))
    try:
        gpu.synchronize()
    except hearth.LaunchError:
        print("all of it")
"""

IMPORT = "import time; began = time.process_time(); import hearth; print(time.process_time() - began)"
FIRST_RESULT = """
import time; began = time.process_time()
import sys, numpy as np, hearth
with hearth.connect(sys.argv[1]) as node:
    assert node.device(0).ones(4).get().sum() == 4
    print(time.process_time() - began)
"""


def run(code: str, *arguments: str) -> str:
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["unix", "grpc"])
def test_client_uses_every_feature_without_cuda(daemon: DaemonProcess, way: str) -> None:
    assert run(DRIVES, daemon.unix if way == "unix" else daemon.grpc) == "all of it\n"


def test_the_import_is_quick() -> None:
    """The import takes less than 0.2 s of processor time, measured as the minimum of several runs to reduce the effect
    of other work.

    The limit is scaled on a machine on which even an empty interpreter is slow: it applies where starting Python takes
    up to 50 ms, and grows with that time beyond.
    """
    bare = min(float(run("import time; b = time.process_time(); import json, ssl; print(time.process_time() - b)"))
               for _ in range(3))  # fmt: skip
    slack = max(1.0, bare / 0.05)
    assert min(float(run(IMPORT)) for _ in range(5)) < 0.2 * slack


def test_a_new_process_has_its_first_result_in_time(daemon: DaemonProcess) -> None:
    """Not a benchmark: it shows that the client does not spend the seconds of processor time that a new CUDA process
    needs."""
    assert min(float(run(FIRST_RESULT, daemon.unix)) for _ in range(3)) < 3


def test_target_is_read_from_environment(daemon: DaemonProcess) -> None:
    code = (
        f"import os; os.environ['HEARTH_TARGET'] = {daemon.unix!r}\nimport hearth\nprint(len(hearth.connect().devices))"
    )
    assert int(run(code)) >= 1
