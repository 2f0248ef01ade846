"""CUDA IPC: an array of the daemon mapped by a client that uses the GPU itself, through CuPy, PyTorch or the driver
API.

The clients are separate processes, because they have a CUDA context and are killed. Requires HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess, environment, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

BEGIN = """
import os, sys, time
import numpy as np
import hearth
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
host = np.arange(3_000_000, dtype=np.float32)
x = gpu.asarray(host)
double = gpu.RawModule(code='''extern "C" __global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}''').get_function("twice")
def twice(x):
    double((-(-x.size // 256),), (256,), (x, np.int32(x.size)))
"""

CUPY = """
import cupy
twice(x)
with x.ipc() as view:
    a = cupy.asarray(view)
    assert a.data.ptr == view.address and a.shape == x.shape and a.dtype == x.dtype
    assert view.__cuda_array_interface__["data"] == (view.address, False)
    np.testing.assert_array_equal(cupy.asnumpy(a), host * 2)
    a += 1
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(x.get(), host * 2 + 1)
    twice(x)
    gpu.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(a), host * 4 + 2)
    b = cupy.from_dlpack(view)
    assert b.data.ptr == view.address
    b[:] = 7
    cupy.cuda.get_current_stream().synchronize()
assert (x.get() == 7).all()
m = gpu.asarray(np.arange(60, dtype=np.int32).reshape(6, 10))
with m[1:4, 2:5].ipc() as part:
    p = cupy.asarray(part)
    np.testing.assert_array_equal(cupy.asnumpy(p), np.arange(60).reshape(6, 10)[1:4, 2:5])
    p *= -1
    cupy.cuda.get_current_stream().synchronize()
assert m.get()[1, 2] == -12 and m.get()[0, 2] == 2
for _ in range(200):  # neither addresses nor memory run out
    with x.ipc() as view:
        cupy.asarray(view)[0] = 1
print("right", flush=True)
"""

TORCH = """
import torch
with x.ipc() as view:
    t = torch.as_tensor(view, device="cuda")
    assert t.data_ptr() == view.address
    t.mul_(3)
    u = torch.from_dlpack(view)
    assert u.data_ptr() == view.address
    u.add_(1)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(x.get(), host * 3 + 1)
    del t, u
print("right", flush=True)
"""

BARE = """
# No CUDA package: the driver alone.
import ctypes
with x.ipc() as view:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), view.__dlpack_device__()[1])
    assert not cuda.cuCtxPushCurrent_v2(context)
    assert not cuda.cuMemsetD32_v2(ctypes.c_ulonglong(view.address), 0x3F800000, ctypes.c_size_t(x.size))
    assert not cuda.cuCtxSynchronize()
    assert (x.get() == 1).all()
assert "cupy" not in sys.modules and "torch" not in sys.modules
print("right", flush=True)
"""

HOLD = """
import cupy
view = x.ipc()
a = cupy.asarray(view)
a += 1
cupy.cuda.get_current_stream().synchronize()
print("ready", flush=True)
sys.stdin.readline()
a += 1
print(float(a[5]), flush=True)
try:
    gpu.synchronize()
except hearth.DeviceLostError:
    pass
try:
    x.get()
    print("there", flush=True)
except hearth.HearthError as error:
    print(error.reason, flush=True)
view.close()
again = gpu.asarray(host)
with again.ipc() as view:
    print(float(cupy.asarray(view)[5]), flush=True)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path, {"sessions": {"lease": "5s"}})
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


def run(daemon: DaemonProcess, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, daemon.unix],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def started(daemon: DaemonProcess, program: str) -> subprocess.Popen[str]:
    client = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, daemon.unix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    return client


def settled(daemon: DaemonProcess, held: int) -> None:
    """Waits until all exports have ended and the memory is free again; mappings of other processes are counted by the
    driver."""
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "the end of the exports")
    with daemon.connect() as node:
        wait_until(lambda: node.device(0).memory_usage().bytes_in_use <= held, "the memory's return")


@pytest.mark.parametrize(
    ("package", "program"), [("cupy", CUPY), ("torch", TORCH), ("ctypes", BARE)], ids=["cupy", "torch", "driver"]
)
def test_writes_of_either_side_are_visible_to_both(daemon: DaemonProcess, package: str, program: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert run(daemon, program) == "right"
    settled(daemon, 0)


def test_the_client_is_killed(daemon: DaemonProcess) -> None:
    pid = daemon.device_pid()
    with started(daemon, HOLD) as client:
        assert daemon.gauge("buffers_exported") == 1
        client.kill()
    settled(daemon, 0)
    assert daemon.device_pid() == pid


def test_the_device_process_is_killed(daemon: DaemonProcess) -> None:
    """The client's mapping outlives the process: physical memory is freed with its last user."""
    with started(daemon, HOLD) as client:
        os.kill(daemon.device_pid(), signal.SIGKILL)
        wait_until(lambda: daemon.status()["devices"][0]["generation"] == 2, "a new process", 60)
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        said = [client.stdout.readline().strip() for _ in range(3)]
        assert client.wait(60) == 0
    assert said == ["7.0", "BUFFER_LOST", "5.0"]
    settled(daemon, 0)


def test_exported_memory_is_returned_to_the_driver(daemon: DaemonProcess) -> None:
    """Exported memory is returned to the driver when both sides have released it."""
    with daemon.connect() as node:
        gpu = node.device(0)
        with gpu.zeros(1, np.uint8).ipc() as view:  # creates the context of this process, which takes memory itself
            assert view.address
        gpu.memory_cleanup()
        before = gpu.memory_usage().device_free
        size = 1 << 30
        for _ in range(3):
            x = gpu.zeros(size, np.uint8)
            with x.ipc() as view:
                assert view.address
                if "PYTEST_XDIST_WORKER" not in os.environ:  # other tests free memory of the device as well
                    wait_until(lambda: gpu.memory_usage().device_free < before - size // 2, "memory that is taken")
            del view
            x.free()
            gpu.synchronize()
            gpu.memory_cleanup()
        wait_until(lambda: gpu.memory_usage().device_free > before - size // 2, "the memory's return")


def test_export_to_a_process_without_the_gpu_is_refused(daemon: DaemonProcess) -> None:
    program = """
try:
    x.ipc()
except hearth.UnsupportedError as error:
    print(error.reason, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, daemon.unix],
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "UNSUPPORTED", done.stderr
    assert daemon.gauge("buffers_exported") == 0


def test_hearth_is_imported_without_cuda() -> None:
    code = "import sys, hearth.interop.ipc; assert not {'cupy', 'torch', 'cuda'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False).returncode == 0
    assert hearth.interop.ipc
