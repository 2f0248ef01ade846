"""Kernels on the CPU backend, compared with the same work as a C++ loop and in NumPy.

Measured without a daemon: a module is loaded and launched in the worker's own process. A daemon adds the same time to
every launch, which `launches` and `roundtrip` measure, and takes processor time from the kernel. The rows exist on
machines with GPUs too, whose daemon serves no CPU device. Both sides use one thread: the runtime's pool has one worker,
NumPy's BLAS one thread, and the loops are not parallel. A value is thus the time of one core, and can be compared
between machines with different numbers of cores.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.context import Context, Side
from tests.bench.stats import Row, Samples, Summary

if TYPE_CHECKING:
    from hearthd.device.cpu.toolchain import Toolchain

PROGRAMS = Path(__file__).parents[1] / "programs"
MI = 1 << 20
BLOCK = 256
ROUNDS = 1000
"""Number of barriers of each thread in a launch of `barriers`."""

SHUFFLED = 8
"""Number of reductions of each thread in a launch of `warp_sums`, of five shuffles each."""

SIDE = 512
"""Number of rows and of columns of the matrices."""


@dataclass(frozen=True)
class Work:
    """A launch, its expected result, and the same work in NumPy.

    `out` is cleared before the first launch, which is compared with `expected`; later launches may add to `out`.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Any, ...]
    out: Any = None
    expected: Any = None
    numpy: Callable[[], object] | None = None

    def check(self, name: str) -> None:
        """Raises `AssertionError` if the result differs from the expected one."""
        import numpy as np

        if self.out is not None:
            np.testing.assert_allclose(self.out, self.expected, rtol=1e-4, atol=1e-4, err_msg=name)


def measure(context: Context) -> list[Row]:
    """Measures three sides alternately: kernels, loops, NumPy."""
    common = {"cache": str(context.folder / "cpu"), "seconds": 0.2 if context.quick else 0.4}
    measured = context.take_turns({side: Side(f"rows.cpu:{side}", common) for side in ("hearth", "loops", "numpy")})
    return rows(measured["hearth"], measured["loops"], measured["numpy"])


def rows(hearth: Samples, loops: Samples, numpy: Samples) -> list[Row]:
    """Returns the rows, from the seconds of each launch or call by name."""
    sides = {"C++ loop": loops, "NumPy": numpy}
    threads, small = MI, 256 * BLOCK
    free = "a barrier in a branch that no thread takes"
    first = "includes what it costs to suspend a thread for the first time"

    def scaled(samples: Samples, name: str, factor: float = 1e3) -> Summary:
        return Summary.of([factor * value for value in samples[name]])

    def against(name: str, what: str, unit: str = "ms", factor: float = 1e3) -> list[Row]:
        """Returns a row for each baseline that implements the work."""
        ours = scaled(hearth, name, factor)
        return [
            Row("cpu", what, unit, ours, "lower", side, scaled(samples, name, factor))
            for side, samples in sides.items()
            if name in samples
        ]

    def one(name: str, what: str, each: float, at_least: float, aim: float | None = None, note: str = "") -> Row:
        """Returns a row with a bound on the nanoseconds for one of `each` units of work."""
        ours = scaled(hearth, name, 1e9 / each)
        return Row("cpu", what, "ns", ours, "lower", at_least=at_least, aim=aim, note=note)

    unreached, without, naive, tiled = (scaled(hearth, name) for name in ("unreached", "without", "naive", "tiled"))
    return [
        *against("empty", "empty kernel, a block of 256 threads", "us", 1e6),
        *against("saxpy", "saxpy, 16 Mi"),
        *against("sine", "sinf, 1 Mi"),
        *against("counters", "atomicAdd, a counter for each block, 1 Mi threads"),
        *against("histogram", "histogram of 256 bins, 1 Mi bytes"),
        one("unreached", "barrier never reached: saxpy, for a thread", threads, 3, 1.5, free),
        Row("cpu", "barrier never reached: saxpy, 1 Mi", "ms", unreached, "lower", "saxpy without it", without),
        *against("reverse", "one barrier: each block reversed, 1 Mi"),
        one("reverse", "one barrier: for a thread", threads, 10, note=first),
        one("barriers", f"{ROUNDS} barriers: one, for a thread", BLOCK * ROUNDS, 10),
        *against("block_sums", "block reduction in shared memory, 64 Ki"),
        *against("warp_sums", f"warp reduction by shuffle, 64 Ki, {SHUFFLED} times"),
        one("warp_sums", "warp reduction: a shuffle, for a thread", small * SHUFFLED * 5, 10),
        *against("naive", f"naive product, {SIDE}^3"),
        Row("cpu", f"tiled product, {SIDE}^3", "ms", tiled, "lower", "the naive kernel", naive, 1.0),
        *against("tiled", f"tiled product, {SIDE}^3"),
    ]


def hearth(cache: str, seconds: float, only: Sequence[str] = ()) -> Samples:
    """Launches the kernels from this thread with a pool of one worker. Returns seconds for each launch."""
    from hearthd.device.cpu.module import CpuModule, load_runtime
    from tests.support.cpu.kernels import compile_source

    toolchain = _toolchain(cache)
    load_runtime(toolchain).hearth_set_workers(1)
    image = compile_source(toolchain, (PROGRAMS / "cpu_kernels.cu").read_text())
    module = CpuModule(image, toolchain)
    measured: Samples = {}
    for name, work in _works(only).items():
        kernel = "saxpy" if name == "without" else name
        params = b"".join(map(_packed, work.args))
        launch = functools.partial(module.function(kernel).launch, work.grid, work.block, 0, params)
        measured[name] = _timed(name, work, launch, seconds)
    return measured


def loops(cache: str, seconds: float, only: Sequence[str] = ()) -> Samples:
    """Measures the same work by the functions of cpu_loops.cpp. Returns seconds for each call."""
    library = _compiled(_toolchain(cache))
    measured: Samples = {}
    for name, work in _works(only).items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = None
            call = functools.partial(function, *map(_argument, work.args))
            measured[name] = _timed(name, work, call, seconds)
    return measured


def numpy(cache: str, seconds: float, only: Sequence[str] = ()) -> Samples:
    """Measures the same work in NumPy on one thread. Returns seconds for each call."""
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    return {name: _samples(work.numpy, seconds) for name, work in _works(only).items() if work.numpy is not None}


def _works(only: Sequence[str]) -> Mapping[str, Work]:
    import numpy as np

    random = np.random.default_rng(1)

    def floats(*shape: int) -> Any:
        return random.integers(0, 8, shape).astype(np.float32)

    def line(threads: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        return (-(-threads // BLOCK), 1, 1), (BLOCK, 1, 1)

    x, y, to = floats(16 * MI), np.zeros(16 * MI, np.float32), np.empty(16 * MI, np.float32)
    one, one_to, small = x[:MI], to[:MI], x[: 256 * BLOCK]
    zeros = functools.partial(np.zeros, dtype=np.float32)
    data = random.integers(0, 256, MI, np.uint8)
    counts, bins, passed = np.zeros(MI // BLOCK, np.uint32), np.zeros(256, np.uint32), np.zeros(BLOCK, np.uint32)
    reversed_, sums, warps = zeros(MI), zeros(len(small) // BLOCK), zeros(len(small) // 32)
    sines, near, without = zeros(MI), zeros(MI), zeros(MI)
    a, b, c, d = floats(SIDE, SIDE), floats(SIDE, SIDE), zeros((SIDE, SIDE)), zeros((SIDE, SIDE))
    square, tile = (SIDE // 16, SIDE // 16, 1), (16, 16, 1)

    def saxpy() -> None:
        np.multiply(x, np.float32(2), to)
        np.add(to, y, y)

    def warp_sums() -> Any:
        return sum((small + np.float32(r)).reshape(-1, 32).sum(1) for r in range(SHUFFLED))

    works = {
        "empty": Work(*line(BLOCK), (BLOCK,)),
        "saxpy": Work(*line(len(x)), (2.0, x, y, len(x)), y, 2 * x, saxpy),
        "sine": Work(*line(MI), (one, sines, MI), sines, np.sin(one), lambda: np.sin(one, one_to)),
        "counters": Work(*line(MI), (counts, MI), counts, np.full_like(counts, BLOCK)),
        "histogram": Work(*line(MI), (data, bins, MI), bins, np.bincount(data), lambda: np.bincount(data)),
        "without": Work(*line(MI), (2.0, one, without, MI), without, 2 * one),
        "unreached": Work(*line(MI), (2.0, one, near, MI), near, 2 * one),
        "reverse": Work(*line(MI), (one, reversed_, MI), reversed_, one.reshape(-1, BLOCK)[:, ::-1].ravel()),
        "barriers": Work(*line(BLOCK), (passed, ROUNDS), passed, np.full_like(passed, ROUNDS)),
        "block_sums": Work(*line(len(small)), (small, sums, len(small)), sums, small.reshape(-1, BLOCK).sum(1),
                           lambda: small.reshape(-1, BLOCK).sum(1)),
        "warp_sums": Work(*line(len(small)), (small, warps, SHUFFLED), warps, warp_sums(), warp_sums),
        "naive": Work(square, tile, (a, b, c, SIDE), c, a @ b, lambda: np.matmul(a, b, d)),
        "tiled": Work(square, tile, (a, b, d, SIDE), d, a @ b, lambda: np.matmul(a, b, d)),
    }  # fmt: skip
    return {name: work for name, work in works.items() if not only or name in only}


def _timed(name: str, work: Work, run: Callable[[], object], seconds: float) -> list[float]:
    """Checks the result of `run`, then returns samples of its duration."""
    run()
    work.check(name)
    return _samples(run, seconds)


def _samples(run: Callable[[], object], seconds: float) -> list[float]:
    """Returns seconds for one call: at least five samples, each of enough calls to take a millisecond."""
    started = time.perf_counter()
    run()
    calls = max(1, int(1e-3 / max(time.perf_counter() - started, 1e-7)))
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < 5 or (time.perf_counter() < until and len(samples) < 200):
        started = time.perf_counter()
        for _ in range(calls):
            run()
        samples.append((time.perf_counter() - started) / calls)
    return samples


def _toolchain(cache: str) -> Toolchain:
    from hearthd.device.cpu.toolchain import find_toolchain

    return find_toolchain(Path(cache))


def _compiled(toolchain: Toolchain) -> ctypes.CDLL:
    """Compiles cpu_loops.cpp to a library, with the compiler and the options of kernels."""
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        library = Path(name) / "loops.so"
        options = [*toolchain.compile_options("gnu++17"), "-shared", "-x", "c++", "-", "-o", str(library), "-lm"]
        done = toolchain.run(options, Path(name), (PROGRAMS / "cpu_loops.cpp").read_bytes())
        if done.status != 0:
            raise RuntimeError(f"cpu_loops.cpp does not compile: {done.log}")
        return ctypes.CDLL(str(library))


def _packed(value: Any) -> bytes:
    """Returns the eight bytes of a value in a parameter block."""
    if hasattr(value, "ctypes"):
        return struct.pack("=Q", value.ctypes.data)
    return struct.pack("=d" if isinstance(value, float) else "=q", value)


def _argument(value: Any) -> Any:
    if hasattr(value, "ctypes"):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_longlong(value)
