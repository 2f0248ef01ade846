"""Arrays to and from CuPy and PyTorch in a client's process: DLPack export, import of GPU memory, without a copy
through the host.

The clients are separate processes, because they have a CUDA context. Requires HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon.harness import BACKEND, DaemonProcess, environment, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

BEGIN = """
import gc, sys
import numpy as np
import hearth
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
host = np.arange(3_000_000, dtype=np.float32)
x = gpu.asarray(host)
"""

CUPY = """
import cupy
assert x.__dlpack_device__()[0] == 2 and not hasattr(x, "__cuda_array_interface__")
a = cupy.from_dlpack(x)
a += 1
cupy.cuda.get_current_stream().synchronize()
np.testing.assert_array_equal(x.get(), host + 1)
np.testing.assert_array_equal(np.from_dlpack(x, device="cpu"), host + 1)
part = cupy.from_dlpack(x[:1_000_000].reshape(1000, 1000)[:, 10:20])
np.testing.assert_array_equal(cupy.asnumpy(part), x.get()[:1_000_000].reshape(1000, 1000)[:, 10:20])
del a, part
gc.collect()

given = cupy.arange(1_000_000, dtype=cupy.int32)
with gpu.trace() as trace:
    y = gpu.asarray(given)
assert not [event for event in trace.events if event.name == "write"], "it went by way of the host"
given[:] = 0
np.testing.assert_array_equal(y.get(), np.arange(1_000_000))
with cupy.cuda.Stream(non_blocking=True) as side:
    late = cupy.zeros(10_000_000, cupy.float32)
    for _ in range(50):
        late += 1
    z = gpu.asarray(late)  # waits for the stream that makes it
assert (z.get() == 50).all()

class Foreign:  # cuda.core's protocol
    def __init__(self, stream): self.stream = stream
    def __cuda_stream__(self): return 0, self.stream.ptr
side = cupy.cuda.Stream(non_blocking=True)
with side:
    late = cupy.zeros(10_000_000, cupy.float32)
    for _ in range(50):
        late += 1
assert (gpu.asarray(late, stream=Foreign(side)).get() == 50).all()
assert (gpu.asarray(late, np.int32, stream=Foreign(side)).get() == 50).all()
assert gpu.asarray(cupy.ones((3, 4), cupy.float64), np.float32).get().tolist() == [[1] * 4] * 3
assert gpu.asarray(cupy.zeros((0, 3))).shape == (0, 3) and gpu.asarray(cupy.array(5)).item() == 5
try:
    gpu.asarray(cupy.zeros((4, 6))[:, ::2])
except hearth.UnsupportedError as error:
    assert "ascontiguousarray" in error.fix
else:
    raise AssertionError("a strided array was taken")

class Capsules:  # speaks DLPack alone
    def __init__(self, array): self.array = array
    def __dlpack_device__(self): return self.array.__dlpack_device__()
    def __dlpack__(self, stream=None): return self.array.__dlpack__(stream=stream)
np.testing.assert_array_equal(gpu.asarray(Capsules(cupy.arange(1000))).get(), np.arange(1000))
print("right", flush=True)
"""

TORCH = """
import torch
t = torch.from_dlpack(x)
assert t.is_cuda and t.dtype == torch.float32
t += 1
torch.cuda.synchronize()
np.testing.assert_array_equal(x.get(), host + 1)
w = gpu.zeros((4, 8), "bfloat16")
torch.from_dlpack(w).fill_(1.5)
torch.cuda.synchronize()
assert (w.get().view(np.uint16) == 0x3FC0).all()  # 1.5, whether or not NumPy knows the dtype
np.testing.assert_array_equal(gpu.asarray(torch.arange(1000, device="cuda")).get(), np.arange(1000))
half = torch.full((7,), 2.5, dtype=torch.bfloat16)
assert gpu.asarray(half).get().view(np.uint16).tolist() == [0x4020] * 7
assert gpu.asarray(half.cuda()).get().view(np.uint16).tolist() == [0x4020] * 7
for bad in (torch.ones(3, requires_grad=True), torch.ones(3, device="cuda", requires_grad=True)):
    try:
        gpu.asarray(bad)
    except hearth.HearthError as error:
        assert "grad" in str(error)
    else:
        raise AssertionError("gradients were dropped")
del t
print("right", flush=True)
"""

CASTS = """
import ml_dtypes
bfloat16 = np.dtype(ml_dtypes.bfloat16)
for wanted in (bfloat16, np.float16, np.int64, np.complex128, np.bool_):
    y = x[:70_000].astype(wanted)
    np.testing.assert_array_equal(y.get(), host[:70_000].astype(wanted))
    np.testing.assert_array_equal(y.astype(np.float32).get() if y.dtype != np.complex128 else y.get().real,
                                  y.get().astype(np.float32) if y.dtype != np.complex128 else host[:70_000])
x[1:100] = -3
assert (x[1:100].get() == -3).all()
print("right", flush=True)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@pytest.mark.parametrize(
    ("package", "program"), [("cupy", CUPY), ("torch", TORCH), ("ml_dtypes", CASTS)], ids=["cupy", "torch", "casts"]
)
def test_arrays_are_exchanged_in_both_directions(daemon: DaemonProcess, package: str, program: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, daemon.unix],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "the end of the exports")
