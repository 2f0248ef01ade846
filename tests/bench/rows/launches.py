"""Pipelined launches of one client."""

from __future__ import annotations

import functools
import queue
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.bench import echo_client
from tests.bench.context import Context, Side
from tests.bench.kernels import PACE_NS, paced_on, saxpy_on
from tests.bench.stats import Row, Samples, Summary

MODES = {"checked": (0.6, 1.0), "unchecked": (0.8, 1.2)}
_PER_BATCH = 64
_IN_FLIGHT = 64


def measure(context: Context) -> list[Row]:
    """Compares both modes with CuPy if there is a GPU, otherwise with batches of the same bytes that are not
    executed."""
    common = {"count": 40_000 if context.cuda and not context.quick else 10_000, "repeats": context.pick(5, 4)}
    sides = {
        "hearth": Side("rows.launches:hearth", {"target": context.daemon.unix, **common}),
        "bare": Side("rows.launches:bare", {"target": context.echo_unix, **common}),
    }
    if context.cuda:
        sides["cupy"] = Side("rows.launches:cupy", common)
        paced = {"count": common["count"] // 4, "repeats": common["repeats"]}
        sides["hearth paced"] = Side("rows.launches:hearth_paced", {"target": context.daemon.unix, **paced})
        sides["cupy paced"] = Side("rows.launches:cupy_paced", paced)
    measured = context.take_turns(sides)
    bare = Summary.of(measured["bare"]["batches"])
    rows = []
    for mode, (at_least, aim) in MODES.items():
        what, ours = f"pipelined launches, {mode}", Summary.of(measured["hearth"][mode])
        if context.cuda:
            theirs = Summary.of(measured["cupy"]["loop"])
            rows.append(Row("launches", what, "1/s", ours, "higher", "CuPy RawKernel loop", theirs, at_least, aim))
        name = f"bare gRPC, {_PER_BATCH} records a message"
        rows.append(Row("launches", what, "1/s", ours, "higher", name, bare, note="the baseline executes nothing"))
    if context.cuda:
        what = f"pipelined launches of kernels of {PACE_NS // 1000} us, unchecked"
        ours, theirs = (Summary.of(measured[f"{side} paced"]["loop"]) for side in ("hearth", "cupy"))
        note = "the device has more to do than the host: neither side should make it wait"
        rows.append(Row("launches", what, "1/s", ours, "higher", "CuPy RawKernel loop", theirs, note=note))
    return rows


def _rates(launch: Callable[[], Any], finish: Callable[[], Any], count: int, repeats: int) -> list[float]:
    """Returns launches per second; each sample covers `count` launches and the wait for the last of them."""
    samples = []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        for _ in range(count):
            launch()
        finish()
        if repeat:  # the first sample is a warm-up
            samples.append(count / (time.perf_counter() - started))
    return samples


def hearth(target: str, count: int, repeats: int) -> Samples:
    """Measures a client of Hearth."""
    import hearth

    with hearth.connect(target) as node:
        gpu = node.device(0)
        launch = saxpy_on(gpu)
        return {mode: _rates(functools.partial(launch, mode=mode), gpu.synchronize, count, repeats) for mode in MODES}


def cupy(count: int, repeats: int) -> Samples:
    """Measures the same loop with CuPy in its own process."""
    import cupy

    finish = cupy.cuda.get_current_stream().synchronize
    return {"loop": _rates(saxpy_on(cupy), finish, count, repeats)}


def hearth_paced(target: str, count: int, repeats: int) -> Samples:
    """Measures a client whose kernels take longer than their launches, so that the daemon's queue is always full."""
    import hearth

    with hearth.connect(target) as node:
        gpu = node.device(0)
        return {"loop": _rates(functools.partial(paced_on(gpu), mode="unchecked"), gpu.synchronize, count, repeats)}


def cupy_paced(count: int, repeats: int) -> Samples:
    """Measures the paced loop with CuPy in its own process."""
    import cupy

    return {"loop": _rates(paced_on(cupy), cupy.cuda.get_current_stream().synchronize, count, repeats)}


def bare(target: str, count: int, repeats: int) -> Samples:
    """Sends records of a launch's size, packed one by one, in batches over a bare stream; the server parses and
    acknowledges them."""
    from hearth_proto.v1 import commands_pb2, device_pb2

    record = struct.Struct("<104s")
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    window = threading.Semaphore(_IN_FLIGHT)
    with echo_client.connect(target) as channel:
        acks = channel.stream_stream(echo_client.path("Batches"))(iter(outgoing.get, None))

        def receive() -> None:
            for message in acks:
                device_pb2.ExecuteResponse.FromString(message)
                window.release()

        receiver = threading.Thread(target=receive)
        receiver.start()
        records: list[bytes] = []

        def send() -> None:
            command = commands_pb2.Command(launches=b"".join(records))
            records.clear()
            window.acquire()
            batch = commands_pb2.Batch(seq=1, commands=[command])
            outgoing.put(device_pb2.ExecuteRequest(batch=batch).SerializeToString())

        def launch() -> None:
            records.append(record.pack(b"x"))
            if len(records) == _PER_BATCH:
                send()

        def finish() -> None:
            if records:
                send()
            for _ in range(_IN_FLIGHT):
                window.acquire()
            for _ in range(_IN_FLIGHT):
                window.release()

        rates = _rates(launch, finish, count, repeats)
        outgoing.put(None)
        receiver.join()
    return {"batches": rates}
