"""Cost of the objects that a session holds, for the session and for others: streams, modules and buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.bench.context import Context, Side
from tests.bench.kernels import SAXPY, saxpy_on
from tests.bench.stats import Row, Samples, Summary

_STREAMS = 1000
_MODULES = 200
_BUFFERS = 100_000
_FREE_AT, _CLOSE_AT, _END_AT = 0.5, 4.0, 8.0
"""Seconds after the start at which the client that holds buffers frees half of them, at which it ends, and at which the
other client stops measuring."""


def measure(context: Context) -> list[Row]:
    """Compares launch + synchronize of a client that holds many objects with one that holds none; and measures the
    longest wait of another client for an answer while many objects are freed."""
    count = context.pick(300, 1000)
    unix = {"target": context.daemon.unix, "count": count}
    held = {"streams": _STREAMS, "modules": _MODULES, "buffers": _BUFFERS}
    sides = {"nothing": Side("rows.scale:hearth", unix)}
    sides |= {kind: Side("rows.scale:hearth", {**unix, kind: number}) for kind, number in held.items()}
    measured = {name: Summary.of(samples["us"]) for name, samples in context.take_turns(sides).items()}
    rows = [
        Row(
            "scale",
            f"launch + synchronize, {number} {kind} held",
            "us",
            measured[kind],
            "lower",
            "the same, nothing held",
            measured["nothing"],
            1.5,
            1.1,
        )
        for kind, number in held.items()
    ]
    stalls: dict[str, list[float]] = {}
    for _ in range(context.rounds):
        roles = [{"target": context.daemon.unix, "role": role} for role in ("holds", "waits")]
        for name, longest in context.run_together("rows.scale:beside", roles, barrier=True)[1].items():
            stalls.setdefault(name, []).append(longest)
    what = {"idle": "beside them", "free": "while half of them is freed", "close": "while their session ends"}
    for name, samples in stalls.items():
        text = f"{_BUFFERS} buffers held by another, longest wait {what[name]}"
        rows.append(Row("scale", text, "ms", Summary.of(samples), "lower", at_least=100, aim=20))
    return rows


def hearth(target: str, count: int, streams: int = 0, modules: int = 0, buffers: int = 0) -> Samples:
    """Measures a client that holds the given numbers of objects; returns microseconds of each launch + synchronize."""
    import hearth

    with hearth.connect(target, timeout=60) as node:
        gpu = node.device(0)
        held: list[Any] = [gpu.stream() for _ in range(streams)]
        held += [_module(gpu, number) for number in range(modules)]
        held += [gpu.empty(64, "u1") for _ in range(buffers)]
        launch = saxpy_on(gpu)

        def once() -> None:
            launch()
            gpu.synchronize()

        samples = _times(once, count)
    return {"us": samples}


def beside(target: str, role: str) -> dict[str, float]:
    """Runs one of two clients: one holds buffers and frees them; the other measures the longest wait for an answer, in
    milliseconds, for each phase of the first."""
    import hearth
    from tests.bench.worker import ready

    longest = {"idle": 0.0, "free": 0.0, "close": 0.0}
    with hearth.connect(target, timeout=60) as node:
        gpu = node.device(0)
        held = [gpu.empty(64, "u1") for _ in range(_BUFFERS if role == "holds" else 0)]
        gpu.synchronize()
        begin = ready()
        if role == "holds":
            _sleep_until(begin + _FREE_AT)
            del held[::2]
            gpu.synchronize()
            _sleep_until(begin + _CLOSE_AT)
            return longest
        while (now := time.monotonic()) < begin + _END_AT:
            gpu.synchronize()
            phase = "idle" if now < begin + _FREE_AT else "free" if now < begin + _CLOSE_AT else "close"
            longest[phase] = max(longest[phase], (time.monotonic() - now) * 1e3)
    return longest


def _module(gpu: Any, number: int) -> Any:
    """Loads a separate module."""
    module = gpu.RawModule(code=SAXPY, options=(f"-DNUMBER={number % 4}",))
    module.compile()
    return module


def _times(once: Callable[[], None], count: int) -> list[float]:
    """Returns microseconds of each of `count` calls, after a tenth of that number as warm-up."""
    samples = []
    for index in range(-max(20, count // 10), count):
        started = time.perf_counter_ns()
        once()
        if index >= 0:
            samples.append((time.perf_counter_ns() - started) / 1e3)
    return samples


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
