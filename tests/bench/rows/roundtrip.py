"""Launch + synchronize, and short copies: one after another, the median of many; over gRPC alone, and over a lane."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Callable
from typing import Any

from tests.bench import echo_client
from tests.bench.context import Context, Side
from tests.bench.kernels import saxpy_on
from tests.bench.stats import Row, Samples, Summary

_MESSAGE = b"x" * 160
"""About the size of a batch with a launch and a synchronize."""

_STEPS = ("get 4 KiB", "set, launch, get 4 KiB")


def measure(context: Context) -> list[Row]:
    """Compares with an echo on the same kind of socket; over a lane, which clients on the same host use, also with CuPy
    in its own process."""
    count = {"count": context.pick(400, 1500)}
    sides = {
        "tcp": Side("rows.roundtrip:hearth", {"target": context.daemon.tcp, "lanes": False, **count}),
        "unix": Side("rows.roundtrip:hearth", {"target": context.daemon.unix, "lanes": False, **count}),
        "lane": Side("rows.roundtrip:hearth", {"target": context.daemon.unix, "lanes": True, **count}),
        "echo lane": Side("rows.roundtrip:sockets", count),
        "echo tcp": Side("rows.roundtrip:echo", {"target": context.echo_tcp, **count}),
        "echo unix": Side("rows.roundtrip:echo", {"target": context.echo_unix, **count}),
    }
    for step in _STEPS:
        sides[step] = Side("rows.roundtrip:hearth_step", {"target": context.daemon.unix, "step": step, **count})
    if context.cuda:
        sides["cupy"] = Side("rows.roundtrip:cupy", count)
        for step in _STEPS:
            sides[f"cupy {step}"] = Side("rows.roundtrip:cupy_step", {"step": step, **count})
    measured = {name: Summary.of(samples["us"]) for name, samples in context.take_turns(sides).items()}
    rows = [
        Row(
            "roundtrip",
            f"launch + synchronize, gRPC on {label}",
            "us",
            measured[name],
            "lower",
            "echo, bare grpc.aio stream",
            measured[f"echo {name}"],
            1.8,
            1.2,
        )
        for name, label in (("tcp", "TCP"), ("unix", "Unix"))
    ]
    what = "launch + synchronize, lane"
    rows.append(
        Row("roundtrip", what, "us", measured["lane"], "lower", "echo, bare Unix socket", measured["echo lane"])
    )
    if context.cuda:
        what = "launch + synchronize, same host"
        ours, theirs = measured["lane"], measured["cupy"]
        rows.append(Row("roundtrip", what, "us", ours, "lower", "CuPy launch + synchronize", theirs, 6, 3))
    for step in _STEPS:
        against: tuple[str, Summary] | tuple[()] = ("CuPy", measured[f"cupy {step}"]) if context.cuda else ()
        rows.append(Row("roundtrip", f"{step}, same host", "us", measured[step], "lower", *against))
    return rows


def _times(once: Callable[[], Any], count: int) -> Samples:
    """Returns microseconds of each of `count` calls, after a tenth of that number as warm-up."""
    samples = []
    for index in range(-max(20, count // 10), count):
        started = time.perf_counter_ns()
        once()
        if index >= 0:
            samples.append((time.perf_counter_ns() - started) / 1e3)
    return {"us": samples}


def hearth(target: str, lanes: bool, count: int) -> Samples:
    """Measures a client of Hearth."""
    import hearth

    with hearth.connect(target, lanes=lanes) as node:
        gpu = node.device(0)
        launch = saxpy_on(gpu)

        def once() -> None:
            launch()
            gpu.synchronize()

        return _times(once, count)


def cupy(count: int) -> Samples:
    """Measures CuPy in its own process."""
    import cupy

    launch, stream = saxpy_on(cupy), cupy.cuda.get_current_stream()

    def once() -> None:
        launch()
        stream.synchronize()

    return _times(once, count)


def _step(step: str, gpu: Any, get: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """Returns the function that is timed; `get` copies an array of `gpu` to a host array."""
    import numpy as np

    launch, host = saxpy_on(gpu), np.ones(1024, np.float32)
    x = gpu.asarray(host)
    if step == "get 4 KiB":
        return lambda: get(x, host)

    def once() -> None:
        x.set(host)
        launch()
        get(x, host)

    return once


def hearth_step(target: str, step: str, count: int) -> Samples:
    """Measures a client of Hearth."""
    import hearth

    with hearth.connect(target) as node:
        return _times(_step(step, node.device(0), lambda x, out: x.get(out=out)), count)


def cupy_step(step: str, count: int) -> Samples:
    """Measures CuPy in its own process."""
    import cupy

    return _times(_step(step, cupy, lambda x, out: x.get(out=out)), count)


def echo(target: str, count: int) -> Samples:
    """Measures gRPC's synchronous client, which Hearth's client also uses, without further work."""
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with echo_client.connect(target) as channel:
        answers = channel.stream_stream(echo_client.path("Echo"))(iter(outgoing.get, None))

        def once() -> None:
            outgoing.put(_MESSAGE)
            next(answers)

        samples = _times(once, count)
        outgoing.put(None)
    return samples


def sockets(count: int) -> Samples:
    """Measures Python at both ends of a Unix socket, where each thread waits in `recv`."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        while data := theirs.recv(65536):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()

    def once() -> None:
        ours.sendall(_MESSAGE)
        ours.recv(65536)

    with ours:
        samples = _times(once, count)
    os.waitpid(child, 0)
    return samples
