"""Memory of the front and of a device process: idle, for each session, and after sessions have closed."""

from __future__ import annotations

import contextlib
import time

from tests.bench import processes
from tests.bench.context import Context
from tests.bench.processes import TIMEOUT, Child, Daemon, memory_kib
from tests.bench.stats import Row, Summary
from tests.bench.worker import READY

_PROCESSES = 4
_BUFFERS = 16
_SETTLED_S = 1.5
"""Seconds after which all freed memory has been returned to the system."""
_GIVEN_BACK_S = 8.0
"""Seconds after which the front has released the memory that it keeps for further chunks; see
`hearthd.front.daemon.heap_trim`."""


def measure(context: Context) -> list[Row]:
    """Measures a new daemon with HTTP: before any client has connected; then with attached sessions that each hold a
    stream, a module and some buffers; then after they have closed. For comparison, also the front that served the
    earlier rows."""
    count = context.pick(40, 200)
    with processes.daemon(context.folder, context.backend, 1, http="127.0.0.1:0") as daemon:
        time.sleep(0.5)
        idle = []
        for _ in range(5):
            time.sleep(0.1)
            idle.append(daemon.resident_mib())
        _hold(context, daemon, 4)  # excludes memory that only the very first session allocates
        time.sleep(_SETTLED_S)
        before = _held(daemon)
        front, device = _hold(context, daemon, count)
        time.sleep(_SETTLED_S)
        after = _held(daemon)
        time.sleep(_GIVEN_BACK_S)
        at_last = daemon.resident_mib()
    used = context.daemon.resident_mib()
    what = f"{count} sessions, attached, with a stream, a module and {_BUFFERS} buffers each"
    return [
        Row("memory", "idle front, resident memory", "MiB", Summary.of(idle), "lower", at_least=120, aim=80),
        _row("front, by session", "KiB", (front - before[0]) / count, f"Pss; {what}"),
        _row("device process, by session", "KiB", (device - before[1]) / count, f"Pss; {what}"),
        _row("front, by session that has ended", "KiB", (after[0] - before[0]) / count, "stays for the next ones"),
        _row("device process, by session that has ended", "KiB", (after[1] - before[1]) / count, "the same"),
        _row("idle front after them, resident memory", "MiB", at_last, f"{_GIVEN_BACK_S:g} s after the last"),
        Row("memory", "front after the rows above", "MiB", Summary.of([used]), "lower"),
    ]


def _row(what: str, unit: str, value: float, note: str) -> Row:
    return Row("memory", what, unit, Summary.of([value]), "lower", note=note)


def _held(daemon: Daemon) -> tuple[int, int]:
    """Returns the memory of the front and of the device process in KiB."""
    (device,) = daemon.device_pids()
    return memory_kib(daemon.child.process.pid)["Pss"], memory_kib(device)["Pss"]


def _hold(context: Context, daemon: Daemon, count: int) -> tuple[int, int]:
    """Returns the same while `count` sessions are open; they are closed before this returns."""
    env = processes.environment(context.folder)
    share = {"target": daemon.unix, "sessions": count // _PROCESSES}
    children: list[Child] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_PROCESSES):
            children.append(processes.start_worker("rows.memory:hold", share, env))
            stack.callback(children[-1].end)
        for child in children:
            child.line(lambda text: text == READY, TIMEOUT)
        time.sleep(_SETTLED_S)
        held = _held(daemon)
        for child in children:
            child.go(0.0)
        for child in children:
            child.result()
            child.process.wait(30)
    return held


def hold(target: str, sessions: int) -> int:
    """Opens `sessions` sessions, uses their device, and closes them at the parent's signal."""
    import hearth
    from tests.bench.kernels import saxpy_on
    from tests.bench.worker import ready

    with contextlib.ExitStack() as stack:
        kept: list[object] = []
        for _ in range(sessions):
            gpu = stack.enter_context(hearth.connect(target, timeout=60)).device(0)
            launch = saxpy_on(gpu)
            with gpu.stream() as stream:
                launch()
            kept += [stream, launch, *(gpu.empty(256, "f4") for _ in range(_BUFFERS))]
            gpu.synchronize()
        ready()
    return sessions
