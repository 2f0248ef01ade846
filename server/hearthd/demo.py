"""`hearthd demo`: a daemon of its own, and a client that uses it as any other would; every result is checked.

The client part knows nothing of the daemon but its socket. It is what `make demo` runs.
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

import numpy as np
from rich.console import Console
from rich.table import Table

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


class Steps:
    """Runs steps, times them, and collects what they say of their result."""

    def __init__(self) -> None:
        self.table = Table(title="Hearth demo", title_justify="left")
        for column in ("step", "result", "client"):
            self.table.add_column(column)
        self.failed = 0

    def run(self, name: str, step: Callable[[], str]) -> None:
        started = time.perf_counter()
        try:
            result = step()
        except Exception as error:
            self.failed += 1
            result = f"[red]failed[/red]: {error}"
        self.table.add_row(name, result, f"{(time.perf_counter() - started) * 1e3:.1f} ms")


def run_client(target: str) -> int:
    """Every feature once against the daemon at `target`; the number of steps that failed."""
    import hearth

    steps = Steps()
    rng = np.random.default_rng(1)
    n = 1 << 20
    x_host = rng.standard_normal(n, dtype=np.float32)
    y_host = rng.standard_normal(n, dtype=np.float32)
    with hearth.connect(target) as node:
        devices = Table(title=f"Devices of {node.name}", title_justify="left")
        for column in ("device", "name", "backend", "memory", "multiprocessors"):
            devices.add_column(column)
        for device in node.devices:
            properties = device.properties
            devices.add_row(
                str(device.ordinal),
                properties.name,
                properties.backend,
                f"{properties.total_memory / 2**30:.1f} GiB",
                str(properties.multiprocessor_count),
            )
        gpu = node.device(0)
        mod = gpu.RawModule(code=SOURCE, name_expressions=["matmul<16>"])

        def compile_source() -> str:
            mod.compile()
            return "3 kernels"

        def upload() -> str:
            back = gpu.asarray(x_host).get()
            return _check(back, x_host, f"{x_host.nbytes / 2**20:.0f} MiB up and down")

        def saxpy() -> str:
            x, y = gpu.asarray(x_host), gpu.asarray(y_host)
            with gpu.profile() as profile:
                mod.get_function("saxpy")((n // 256,), (256,), (np.float32(2), x, y, np.int32(n)))
            return _check(y.get(), 2 * x_host + y_host, f"device time {profile.device_ns / 1e3:.1f} us")

        def reduce() -> str:
            total = gpu.zeros(1, np.float64)
            mod.get_function("reduce")((n // 256,), (256,), (gpu.asarray(x_host), total, np.int32(n)))
            return _check(total.get(), [x_host.sum(dtype=np.float64)], "shared memory and atomics")

        def matmul() -> str:
            size = 256
            a = rng.standard_normal((size, size), dtype=np.float32)
            b = rng.standard_normal((size, size), dtype=np.float32)
            c = gpu.empty((size, size), np.float32)
            kernel = mod.get_function("matmul<16>")
            with gpu.profile() as profile:
                kernel((size // 16, size // 16), (16, 16), (gpu.asarray(a), gpu.asarray(b), c, np.int32(size)))
            return _check(c.get(), a @ b, f"{size} x {size}, device time {profile.device_ns / 1e3:.1f} us")

        def all_reduce() -> str:
            group = hearth.Group(node.devices)
            parts = [device.asarray(x_host * (i + 1)) for i, device in enumerate(node.devices)]
            group.all_reduce(parts, op="mean")
            expected = x_host * ((len(parts) + 1) / 2)
            for part in parts:
                _check(part.get(), expected, "")
            return f"equal to NumPy: mean over {len(parts)} devices"

        def errors() -> str:
            try:
                gpu.RawModule(code='extern "C" __global__ void f(int* p) { *p = q; }').compile()
            except hearth.CompileError as error:
                return f"as it should: {str(error).splitlines()[0][:60]}"
            raise AssertionError("source with an error compiled")

        steps.run("compile", compile_source)
        steps.run("upload, download", upload)
        steps.run("saxpy", saxpy)
        steps.run("reduction", reduce)
        steps.run("matrix product", matmul)
        steps.run("all_reduce", all_reduce)
        steps.run("compile error", errors)
        console = Console(width=max(100, Console().width))
        console.print(devices)
        console.print(steps.table)
    return steps.failed


def _check(got: object, expected: object, what: str) -> str:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-4, atol=1e-3)
    return f"equal to NumPy: {what}"


@contextlib.contextmanager
def daemon() -> Iterator[str]:
    """A daemon on a Unix socket of its own; yields the target."""
    with tempfile.TemporaryDirectory(prefix="hearth-demo-") as folder:
        socket = Path(folder) / "hearth.sock"
        command = [sys.executable, "-m", "hearthd", "serve", "--grpc", "", "--http", "", "--unix", str(socket)]
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # it says when it is ready, or ends
                raise SystemExit(process.wait() or 1)
            yield f"unix:{socket}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    """Runs the demo; 0 when every result was right."""
    os.environ.pop("HEARTH_TARGET", None)
    with daemon() as target:
        failed = run_client(target)
    if failed:
        print(f"{failed} steps failed", file=sys.stderr)
    return 1 if failed else 0
