"""Worker of the profile: a client that repeats one operation, with and without a recorder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.profile.steps import CLIENT, END, OPERATIONS, START

WARM_UP = 300


def _operation(name: str, gpu: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns the function of one operation, and that of the wait after many."""
    import numpy as np

    from tests.bench.kernels import saxpy_on

    launch, host = saxpy_on(gpu), np.ones(1024, np.float32)
    x = gpu.asarray(host)

    def launch_and_wait() -> None:
        launch()
        gpu.synchronize()

    def set_and_get() -> None:
        x.set(host)
        x.get(out=host)

    return {"launch": launch_and_wait, "copy": set_and_get, "pipelined": launch}[name], gpu.synchronize


def plain(target: str, operation: str, count: int) -> float:
    """Measures without a recorder: returns microseconds of one operation."""
    import hearth

    with hearth.connect(target) as node:
        once, wait = _operation(operation, node.device(0))
        for _ in range(WARM_UP):
            once()
            wait()
        samples: list[float] = []
        if OPERATIONS[operation].waits:
            for _ in range(count):
                started = time.perf_counter_ns()
                once()
                samples.append(time.perf_counter_ns() - started)
        else:
            started = time.perf_counter_ns()
            for _ in range(count):
                once()
            wait()
            samples.append((time.perf_counter_ns() - started) / count)
    return statistics.median(samples) / 1e3


def recorded(target: str, operation: str, count: int, control: str, counts: bool) -> dict[str, Any]:
    """Measures with a recorder on both sides: returns the reports of client and device process, and the total time in
    microseconds. `counts`: records calls instead of times."""
    from tests.bench.profile import device
    from tests.bench.profile.recorder import Recorder

    shared, recorder = device.Control(Path(control)), Recorder()
    recorder.install(OPERATIONS[operation].probes(CLIENT))
    import hearth

    with hearth.connect(target) as node:
        once, wait = _operation(operation, node.device(0))
        recorder.exclude(*(function for function in (once, wait) if hasattr(function, "__code__")))
        waits, note = OPERATIONS[operation].waits, recorder.note
        for _ in range(WARM_UP):
            once()
            wait()
        shared.command = device.COUNT if counts else device.TIME
        wait()
        wait()
        (recorder.begin_counting if counts else recorder.begin)()
        started = time.perf_counter_ns()
        if waits:
            for _ in range(count):
                note(START)
                once()
                note(END)
        else:
            note(START)
            for _ in range(count):
                once()
            note(END)
            wait()
        total = (time.perf_counter_ns() - started) / 1e3
        recorder.end()
        shared.command = device.REPORT
        wait()
        wait()
        reports = {"client": device.report_of(recorder), "device": shared.read(), "total_us": total}
        shared.command = device.OFF
        wait()
    return reports
