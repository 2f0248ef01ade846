"""A kernel that faults: the time until the same client launches successfully again."""

from __future__ import annotations

import time

from tests.bench import processes
from tests.bench.context import Context
from tests.bench.kernels import SAXPY, WILD
from tests.bench.stats import Row, Samples, Summary


def measure(context: Context) -> list[Row]:
    """Uses a separate daemon with one device, without limits on restarts and on a session's faults."""
    settings = {"HEARTH_DEVICES_MAX_RESTARTS": "1000", "HEARTH_DEVICES_MAX_FAULTS": "1000"}
    if context.cuda:
        settings["HEARTH_DEVICES_VISIBLE"] = "0"
    with processes.daemon(context.folder, context.backend, 1, settings) as daemon:
        arguments = {"target": daemon.unix, "repeats": context.pick(4, 8)}
        measured: Samples = processes.run_worker(
            "rows.faults:hearth", arguments, processes.environment(context.folder, {})
        )
    kernel = "illegal address" if context.cuda else "wild pointer"
    whole, noticed = Summary.of(measured["back"]), Summary.of(measured["noticed"])
    what = f"faulted device back in service ({kernel})"
    note = "from the launch that faults to the end of the next launch + synchronize that succeeds"
    return [
        Row("faults", what, "s", whole, "lower", at_least=1.0, aim=0.4, note=note),
        Row("faults", "of it, until the client has the error", "s", noticed, "lower"),
    ]


def hearth(target: str, repeats: int) -> Samples:
    """A client that keeps using its functions, which are loaded again automatically."""
    import numpy as np

    import hearth

    noticed, back = [], []
    with hearth.connect(target, timeout=60) as node:
        gpu = node.device(0)
        saxpy, wild = gpu.RawKernel(SAXPY, "saxpy"), gpu.RawKernel(WILD, "wild")

        def work() -> None:
            x, y = gpu.zeros(128, np.float32), gpu.zeros(128, np.float32)
            saxpy((1,), (128,), (np.float32(2), x, y, np.int32(128)))
            gpu.synchronize()

        for repeat in range(repeats + 1):
            work()
            started = time.perf_counter()
            told = 0.0
            wild((1,), (1,), (np.int64(16),))
            while True:
                try:
                    work()
                    if told:
                        break
                    raise SystemExit("the fault went unnoticed")
                except hearth.HearthError:
                    told = told or time.perf_counter() - started
                    if time.perf_counter() - started > 60:
                        raise
            if repeat:
                noticed.append(told)
                back.append(time.perf_counter() - started)
    return {"noticed": noticed, "back": back}
