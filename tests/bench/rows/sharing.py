"""Several clients on one device: their total launches per second, and the fairness of their shares."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from tests.bench.context import Context
from tests.bench.kernels import saxpy_on
from tests.bench.stats import Row, Summary, jain

_AT_A_TIME = 64
_IN_FLIGHT = 8
"""Launches between two events, and number of outstanding events of a client: enough that it never waits for a reply."""
_WARM_UP = 0.75
"""Seconds that all clients launch before the measurement: launches in flight at its start compensate for those at its
end."""


def measure(context: Context) -> list[Row]:
    """Runs each client in a separate process; all launch at the same time, and the launches completed in that time are
    counted."""
    seconds = 1.5 if context.quick else 2.0
    alone: list[float] = []
    together: dict[int, list[float]] = {}
    fairness: dict[int, list[float]] = {}
    repeats = context.pick(1, 2)
    crowds = (4, 16, 32)
    for _ in range(repeats):
        alone.append(sum(_crowd(context, 1, seconds)))
        for clients in crowds:
            rates = _crowd(context, clients, seconds)
            together.setdefault(clients, []).append(sum(rates))
            fairness.setdefault(clients, []).append(jain(rates))
    rows = []
    for clients in crowds:
        bounds: tuple[Any, Any] = (0.9, 1.0) if clients == 32 else (None, None)
        total, one = Summary.of(together[clients]), Summary.of(alone)
        what = f"{clients} clients at once, launches together"
        rows.append(Row("sharing", what, "1/s", total, "higher", "one client", one, *bounds))
        least = 0.95 if clients == 32 else None
        what = f"{clients} clients at once, Jain fairness"
        rows.append(Row("sharing", what, "", Summary.of(fairness[clients]), "higher", at_least=least, aim=least))
    return rows


def _crowd(context: Context, clients: int, seconds: float) -> list[float]:
    arguments = [{"target": context.daemon.unix, "seconds": seconds}] * clients
    return context.run_together("rows.sharing:hearth", arguments, barrier=True)


def hearth(target: str, seconds: float) -> float:
    """Runs one client; returns the launches per second that completed in time."""
    import hearth
    from tests.bench.worker import ready

    with hearth.connect(target, timeout=60) as node:
        gpu = node.device(0)
        stream = gpu.default_stream
        launch = saxpy_on(gpu)
        for _ in range(_AT_A_TIME):
            launch()
        gpu.synchronize()
        begin = ready() + _WARM_UP
        done = 0
        pending: deque[hearth.Event] = deque()
        end = begin + seconds
        while time.monotonic() < end:
            for _ in range(_AT_A_TIME):
                launch()
            pending.append(stream.record())
            if len(pending) > _IN_FLIGHT:
                pending.popleft().synchronize()
                done += _AT_A_TIME if begin <= time.monotonic() < end else 0
        gpu.synchronize()
    return done / seconds
