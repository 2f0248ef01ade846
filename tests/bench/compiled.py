"""Compares the sources with their compiled form (`make compiled`), by turns: `python -m tests.bench.compiled`.

Each round starts a daemon and a client for each form, in alternating order. A figure is the median over the rounds; its
minimum or maximum shows the undisturbed machine. CPU times do not depend on other load, except on machines with four
cores or more, where both processes poll while they wait.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.kernels import saxpy_on
from tests.bench.processes import ROOT, daemon, environment, run_worker

SOURCES = ":".join(str(ROOT / folder) for folder in ("client", "server", "proto"))

PIPELINED = 20_000
"""Launches of one measurement of the rate."""


def cpu_ns(pids: list[int]) -> int:
    """Returns the CPU time of all threads of the processes, in nanoseconds."""
    threads = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads)


def measure(target: str, pids: list[int], count: int) -> dict[str, float]:
    """Measures one form in a new process: microseconds of an operation, and launches per second."""
    import numpy as np

    import hearth
    import hearthd.device.outbox
    from hearth_proto import frames

    figures: dict[str, float] = {"compiled": float(not str(frames.__file__).endswith(".py"))}
    assert str(hearthd.device.outbox.__file__).endswith(".py") == (not figures["compiled"])
    with hearth.connect(target) as node:
        gpu = node.device(0)
        launch, host = saxpy_on(gpu), np.ones(1024, np.float32)
        x = gpu.asarray(host)

        def synchronized() -> None:
            launch()
            gpu.synchronize()

        def steps() -> None:
            x.set(host)
            launch()
            x.get(out=host)

        def timed(name: str, once: Callable[[], Any]) -> None:
            for _ in range(max(20, count // 10)):
                once()
            samples, device, client = [], cpu_ns(pids), time.process_time_ns()
            for _ in range(count):
                started = time.perf_counter_ns()
                once()
                samples.append((time.perf_counter_ns() - started) / 1e3)
            figures[f"{name}, us"] = statistics.median(samples)
            figures[f"{name}, client CPU us"] = (time.process_time_ns() - client) / 1e3 / count
            figures[f"{name}, device CPU us"] = (cpu_ns(pids) - device) / 1e3 / count

        timed("launch + synchronize", synchronized)
        timed("set, launch, get 4 KiB", steps)
        for mode in ("checked", "unchecked"):
            name, once = f"pipelined launches, {mode}", functools.partial(launch, mode=mode)
            for attempt in range(2):  # the first one warms up
                device, client, started = cpu_ns(pids), time.process_time_ns(), time.perf_counter()
                for _ in range(PIPELINED if attempt else PIPELINED // 10):
                    once()
                gpu.synchronize()
            figures[f"{name}, 1/s"] = PIPELINED / (time.perf_counter() - started)
            figures[f"{name}, client CPU us"] = (time.process_time_ns() - client) / 1e3 / PIPELINED
            figures[f"{name}, device CPU us"] = (cpu_ns(pids) - device) / 1e3 / PIPELINED
    return figures


def run(backend: str, path: str, count: int, folder: Path) -> dict[str, float]:
    """Measures the packages of `path` with a new daemon."""
    settings = {"PYTHONPATH": path}
    with daemon(folder, backend, 1, settings, http="127.0.0.1:0") as running:
        run_worker("compiled:measure", {"target": running.unix, "pids": [], "count": 1}, environment(folder, settings))
        arguments = {"target": running.unix, "pids": running.device_pids(), "count": count}
        figures: dict[str, float] = run_worker("compiled:measure", arguments, environment(folder, settings))
    return figures


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", type=Path, default=ROOT / "build" / "compiled", help="the compiled packages")
    parser.add_argument("--pure", default=SOURCES, help="PYTHONPATH of the sources")
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=2000, help="operations of one measurement")
    parser.add_argument("--json", type=Path, help="writes the figures of all rounds into this file")
    options = parser.parse_args()
    forms = {"pure": options.pure, "compiled": str(options.compiled.resolve())}
    rounds: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    with tempfile.TemporaryDirectory(prefix="hb-") as folder:
        for number in range(options.rounds):
            for form in sorted(forms, reverse=bool(number % 2)):
                figures = run(options.backend, forms[form], options.count, Path(folder))
                if figures.pop("compiled") != (form == "compiled"):
                    sys.exit(f"the packages of {forms[form]} are not {form}")
                rounds[form].append(figures)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    rows = []
    print(f"{'':52}{'pure':>10}{'compiled':>10}{'ratio':>8}{'best pure':>12}{'best compiled':>15}")
    for name in rounds["pure"][0]:
        values = {form: [figures[name] for figures in rounds[form]] for form in forms}
        pure, compiled = (statistics.median(values[form]) for form in ("pure", "compiled"))
        best = {form: (max if name.endswith("1/s") else min)(values[form]) for form in forms}
        rows.append({"name": name, "pure": pure, "compiled": compiled, "ratio": compiled / pure, "best": best})
        print(
            f"{name:52}{pure:10.1f}{compiled:10.1f}{compiled / pure:8.2f}{best['pure']:12.1f}{best['compiled']:15.1f}"
        )
    if options.json:
        about = {"backend": options.backend, "count": options.count, "python": sys.version.split()[0]}
        options.json.write_text(json.dumps({"about": about, "rows": rows, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
