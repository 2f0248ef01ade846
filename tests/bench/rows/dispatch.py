"""Dispatch: arrays in, kernel, array out, one call after another; the inputs change each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.bench.context import Context, Side
from tests.bench.kernels import SAXPY
from tests.bench.stats import Row, Samples, Summary

SMALL, LARGE = 16 << 10, 16 << 20
"""Bytes of each array: small enough for the message, and large enough for transfer streams."""


def measure(context: Context) -> list[Row]:
    """Compares with the same work in steps (create arrays, run the kernel, read the result), and with CuPy in its own
    process."""
    rows = []
    for size, label, count in ((SMALL, "16 KiB", context.pick(200, 1000)), (LARGE, "16 MiB", context.pick(10, 40))):
        arguments = {"target": context.daemon.unix, "size": size, "count": count}
        sides = {name: Side(f"rows.dispatch:{name}", arguments) for name in ("hearth", "steps")}
        if context.cuda:
            sides["cupy"] = Side("rows.dispatch:cupy", {"size": size, "count": count})
        measured = {name: Summary.of(samples["us"]) for name, samples in context.take_turns(sides).items()}
        what = f"dispatch, two arrays of {label} in, one out"
        ours = measured["hearth"]
        steps = measured["steps"]
        rows.append(Row("dispatch", what, "us", ours, "lower", "the same in steps", steps, 1.1, 0.8))
        if context.cuda:
            rows.append(Row("dispatch", what, "us", ours, "lower", "CuPy in the process", measured["cupy"]))
    return rows


def _times(once: Callable[[float], Any], size: int, count: int) -> Samples:
    """Returns microseconds of each of `count` calls, after a tenth of that number as warm-up; checks every result."""
    samples = []
    for index in range(-max(5, count // 10), count):
        started = time.perf_counter_ns()
        out = once(float(index))
        elapsed = (time.perf_counter_ns() - started) / 1e3
        assert out[0] == out[-1] == 2 * index + 1 and out.nbytes == size
        if index >= 0:
            samples.append(elapsed)
    return {"us": samples}


def hearth(target: str, size: int, count: int) -> Samples:
    """Measures one dispatch call."""
    import numpy as np

    import hearth

    n = size // 4
    x, y = np.empty(n, np.float32), np.ones(n, np.float32)
    with hearth.connect(target) as node:
        gpu = node.device(0)
        kernel = gpu.RawKernel(SAXPY, "saxpy")

        def once(value: float) -> Any:
            x.fill(value)
            args = [np.float32(2), x, hearth.InOut(y), np.int32(n)]
            return gpu.dispatch(kernel, (n + 255) // 256, 256, args)[0]

        return _times(once, size, count)


def steps(target: str, size: int, count: int) -> Samples:
    """Measures the same work in steps."""
    import hearth

    with hearth.connect(target) as node:
        return _by_arrays(node.device(0), size, count)


def cupy(size: int, count: int) -> Samples:
    """Measures the same work in steps, in CuPy's own process."""
    import cupy

    return _by_arrays(cupy, size, count)


def _by_arrays(library: Any, size: int, count: int) -> Samples:
    import numpy as np

    n = size // 4
    x, y = np.empty(n, np.float32), np.ones(n, np.float32)
    kernel = library.RawKernel(SAXPY, "saxpy")

    def once(value: float) -> Any:
        x.fill(value)
        there, out = library.asarray(x), library.asarray(y)
        kernel(((n + 255) // 256,), (256,), (np.float32(2), there, out, np.int32(n)))
        return out.get()

    return _times(once, size, count)
