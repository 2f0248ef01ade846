"""Graph replay and prepared launches of one client. Every kernel increments a counter, and the counts are checked."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from tests.bench.context import Context, Side
from tests.bench.stats import Row, Samples, Summary

COUNTING = r"""
extern "C" __global__ void count(const int* by, int* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) total[i] += by[i];
}
"""
NODES = 20
"""Launches in the graph and in the list; a graph with one launch shows the cost of launching a graph."""

THREADS = 128


def measure(context: Context) -> list[Row]:
    """Compares with the same graph launched by CuPy, and with CuPy's launches; without a GPU, with single launches."""
    kernels = context.pick(40_000, 100_000) if context.cuda else context.pick(10_000, 20_000)
    common = {"kernels": kernels, "repeats": context.pick(4, 5)}
    sides = {"hearth": Side("rows.graphs:hearth", {"target": context.daemon.unix, **common})}
    if context.cuda:
        sides["cupy"] = Side("rows.graphs:cupy", common)
    measured = context.take_turns(sides)
    ours = {name: Summary.of(samples) for name, samples in measured["hearth"].items()}
    if context.cuda:
        theirs = {name: Summary.of(samples) for name, samples in measured["cupy"].items()}
        graph, single, loop = (
            "the same graph, launched by CuPy",
            "the same graph, launched by CuPy",
            "CuPy RawKernel loop",
        )
        bases = theirs["graph"], theirs["single"], theirs["loop"]
    else:
        graph = single = loop = "the launches one by one"
        bases = (ours["loop"],) * 3
    bounds = (0.9, 1.0) if context.cuda else (None, None)
    prepared = (0.8, 1.2) if context.cuda else (None, None)
    what = f"graph replay, {NODES} kernels"
    return [
        Row("graphs", f"{what}, one command", "1/s", ours["graph"], "higher", graph, bases[0], *bounds),
        Row("graphs", f"{what}, launch() in a loop", "1/s", ours["each"], "higher", graph, bases[0], *bounds),
        Row(
            "graphs", "graph replay, 1 kernel, one command", "1/s", ours["single"], "higher", single, bases[1], *bounds
        ),
        Row("graphs", "prepared launches, one command", "1/s", ours["prepared"], "higher", loop, bases[2], *prepared),
    ]


class Counted:
    """The kernel on its arrays, and its expected number of runs."""

    def __init__(self, library: Any) -> None:
        import numpy as np

        self.library = library
        self.total = library.zeros(THREADS, np.int32)
        self.expected = 0
        kernel = library.RawKernel(COUNTING, "count")
        by = library.ones(THREADS, np.int32)
        self.launch = functools.partial(kernel, (1,), (THREADS,), (by, self.total, np.int32(THREADS)))

    def rates(self, run: Callable[[], Any], finish: Callable[[], Any], kernels: int, repeats: int) -> list[float]:
        """Returns kernels per second; each sample covers one `run` of `kernels` and the wait for the last of them."""
        samples = []
        for repeat in range(repeats + 1):
            started = time.perf_counter()
            run()
            finish()
            if repeat:  # the first run is a warm-up
                samples.append(kernels / (time.perf_counter() - started))
            self.expected += kernels
        return samples

    def check(self) -> None:
        """Raises an error if a kernel did not run, or ran twice."""
        found = self.total.get().tolist()
        if found != [self.expected] * THREADS:
            raise AssertionError(f"{self.expected} kernels were to run; {found[0]} did")


def hearth(target: str, kernels: int, repeats: int) -> Samples:
    """Measures a client; returns rates in kernels per second."""
    import hearth

    with hearth.connect(target) as node:
        gpu = node.device(0)
        counted = Counted(gpu)
        rounds = kernels // NODES
        with gpu.graph() as graph:
            for _ in range(NODES):
                counted.launch()
        with gpu.graph() as single:
            counted.launch()
        with gpu.prepared() as prepared:
            for _ in range(NODES):
                counted.launch()

        def each() -> None:
            for _ in range(rounds):
                graph.launch()

        def loop() -> None:
            for _ in range(kernels):
                counted.launch()

        runs: dict[str, Callable[[], Any]] = {
            "graph": lambda: graph.launch(rounds),
            "each": each,
            "single": lambda: single.launch(kernels),
            "prepared": lambda: prepared.launch(rounds),
            "loop": loop,
        }
        samples = {name: counted.rates(run, gpu.synchronize, kernels, repeats) for name, run in runs.items()}
        counted.check()
    return samples


def cupy(kernels: int, repeats: int) -> Samples:
    """Measures CuPy in its own process; returns rates in kernels per second."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    counted = Counted(cupy)
    cupy.cuda.Device().synchronize()
    rounds = kernels // NODES

    def captured(nodes: int) -> Any:
        with stream:
            counted.launch()  # compiles the kernel before the capture
            counted.expected += 1
            stream.begin_capture()
            for _ in range(nodes):
                counted.launch()
            return stream.end_capture()

    graph, single = captured(NODES), captured(1)

    def repeat(made: Any, times: int) -> None:
        for _ in range(times):
            made.launch(stream)

    def loop() -> None:
        with stream:
            for _ in range(kernels):
                counted.launch()

    runs: dict[str, Callable[[], Any]] = {
        "graph": lambda: repeat(graph, rounds),
        "single": lambda: repeat(single, kernels),
        "loop": loop,
    }
    samples = {name: counted.rates(run, stream.synchronize, kernels, repeats) for name, run in runs.items()}
    counted.check()
    return samples
