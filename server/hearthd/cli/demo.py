"""`hearthd demo`: starts a daemon, and a client that uses it as any other client would; every result is checked.

The client part uses only the daemon's socket. `make demo` runs this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import hearth

_VARIABLES = (
    "HEARTH_CONFIG", "HEARTH_AUDIT_PATH", "HEARTH_TARGET", "HEARTH_TOKEN", "HEARTH_TOKEN_FILE", "HEARTH_CA",
    "HEARTH_CERTIFICATE", "HEARTH_KEY",
)  # fmt: skip
"""Variables that are removed from the environment: the demo's daemon needs no file, its client no credentials."""

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

// Sums 256 elements a block in shared memory, then across blocks with one atomic each.
extern "C" __global__ void reduce(const float* x, double* sum, int n) {
    __shared__ double part[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0;
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

template <int TILE>
__global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < n; tile += TILE) {
        as[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""


ELEMENTS = 1 << 20
SIDE = 256


class DemoSteps:
    """Steps of the demo. Each uses one feature of a node, checks the result, and returns a description of it."""

    def __init__(self, node: hearth.Node) -> None:
        self._node = node
        self._gpu = node.device(0)
        self._mod = self._gpu.RawModule(code=SOURCE, name_expressions=["matmul<16>"])
        self._rng = np.random.default_rng(1)
        self._x = self._rng.standard_normal(ELEMENTS, dtype=np.float32)

    def all(self) -> dict[str, Callable[[], str]]:
        """Returns the steps by name, in the order in which they are run."""
        return {
            "compile": self.compile,
            "upload, download": self.copy,
            "saxpy": self.saxpy,
            "reduction": self.reduce,
            "matrix product": self.matmul,
            "all_reduce": self.all_reduce,
            "compile error": self.compile_error,
        }

    def compile(self) -> str:
        """Compiles the module with the three kernels of the demo."""
        self._mod.compile()
        return "3 kernels"

    def copy(self) -> str:
        """Uploads an array of `ELEMENTS` floats, downloads it, and compares both."""
        downloaded = self._gpu.asarray(self._x).get()
        return _check(downloaded, self._x, f"{self._x.nbytes / 2**20:.0f} MiB up and down")

    def saxpy(self) -> str:
        """Computes ``2 * x + y`` on the device, and measures the device time with a profile."""
        y_host = self._rng.standard_normal(ELEMENTS, dtype=np.float32)
        x, y = self._gpu.asarray(self._x), self._gpu.asarray(y_host)
        saxpy = self._mod.get_function("saxpy")
        with self._gpu.profile() as profile:
            saxpy((ELEMENTS // 256,), (256,), (np.float32(2), x, y, np.int32(ELEMENTS)))
        return _check(y.get(), 2 * self._x + y_host, f"device time {profile.device_ns / 1e3:.1f} us")

    def reduce(self) -> str:
        """Sums an array with shared memory and atomics."""
        total = self._gpu.zeros(1, np.float64)
        x = self._gpu.asarray(self._x)
        self._mod.get_function("reduce")((ELEMENTS // 256,), (256,), (x, total, np.int32(ELEMENTS)))
        return _check(total.get(), [self._x.sum(dtype=np.float64)], "shared memory and atomics")

    def matmul(self) -> str:
        """Multiplies two `SIDE` x `SIDE` matrices with a template kernel, and measures the device time."""
        a = self._rng.standard_normal((SIDE, SIDE), dtype=np.float32)
        b = self._rng.standard_normal((SIDE, SIDE), dtype=np.float32)
        c = self._gpu.empty((SIDE, SIDE), np.float32)
        arguments = (self._gpu.asarray(a), self._gpu.asarray(b), c, np.int32(SIDE))
        with self._gpu.profile() as profile:
            self._mod.get_function("matmul<16>")((SIDE // 16, SIDE // 16), (16, 16), arguments)
        return _check(c.get(), a @ b, f"{SIDE} x {SIDE}, device time {profile.device_ns / 1e3:.1f} us")

    def all_reduce(self) -> str:
        """Computes the mean of one array per device over all devices of the node."""
        import hearth

        devices = self._node.devices
        arrays = [device.asarray(self._x * (rank + 1)) for rank, device in enumerate(devices)]
        hearth.Group(devices).all_reduce(arrays, op="mean")
        for array in arrays:
            result = _check(array.get(), self._x * ((len(arrays) + 1) / 2), f"mean over {len(arrays)} devices")
        return result

    def compile_error(self) -> str:
        """Compiles a source with an error, and returns the first line of the expected `CompileError`."""
        import hearth

        try:
            self._gpu.RawModule(code='extern "C" __global__ void f(int* p) { *p = q; }').compile()
        except hearth.CompileError as error:
            return f"as it should: {str(error).splitlines()[0]}"
        raise AssertionError("source with an error compiled")


def run_client(target: str) -> int:
    """Runs every step once against the daemon at `target` and prints the results as tables.

    Returns the number of failed steps.
    """
    import hearth

    failed = 0
    results = _table("Hearth demo", "step", "result", "client")
    with hearth.connect(target) as node:
        for name, step in DemoSteps(node).all().items():
            started = time.perf_counter()
            try:
                result = step()
            except Exception as error:
                failed += 1
                result = f"[red]failed[/red]: {error}"
            results.add_row(name, result, f"{(time.perf_counter() - started) * 1e3:.1f} ms")
        console = Console(width=max(100, Console().width))
        console.print(_devices(node))
        console.print(results)
    return failed


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _devices(node: hearth.Node) -> Table:
    table = _table(f"Devices of {node.name}", "device", "name", "backend", "memory", "multiprocessors")
    for device in node.devices:
        properties = device.properties
        memory = f"{properties.total_memory / 2**30:.1f} GiB"
        multiprocessors = str(properties.multiprocessor_count)
        table.add_row(str(device.ordinal), properties.name, properties.backend, memory, multiprocessors)
    return table


def _check(actual: object, expected: object, description: str) -> str:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-4, atol=1e-3)
    return f"equal to NumPy: {description}"


@contextlib.contextmanager
def daemon() -> Iterator[str]:
    """Runs a daemon on a temporary Unix socket. Yields the address to connect to."""
    with tempfile.TemporaryDirectory(prefix="hearth-demo-") as folder:
        socket = Path(folder) / "hearth.sock"
        command = [sys.executable, "-m", "hearthd", "serve", "--grpc", "", "--http", "", "--lanes", "", "--unix"]
        command += [str(socket)]
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # the daemon prints a line when it is ready, or ends
                raise SystemExit(process.wait() or 1)
            yield f"unix:{socket}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def next_steps(folder: Path) -> str:
    """Returns suggestions for after the demo, with the commands of this environment."""
    return f"""Next:
  {folder / "hearthd"} serve      starts a daemon that keeps running; its status page is at http://127.0.0.1:7422/
  {folder / "python"}             runs the program of README.md, "Sixty seconds", in another terminal
  {folder / "hearth"} top         shows sessions and devices, live
docs/guide.md continues."""


def main() -> int:
    """Runs the demo. Returns 0 if every result was correct, otherwise 1."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    with daemon() as target:
        failed = run_client(target)
    if failed:
        print(f"{failed} steps failed", file=sys.stderr)
    else:
        print(next_steps(Path(sys.executable).parent))
    return 1 if failed else 0
