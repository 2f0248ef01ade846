"""Resident memory of the front."""

from __future__ import annotations

import time

from tests.bench import processes
from tests.bench.context import Context
from tests.bench.stats import Row, Summary


def measure(context: Context) -> list[Row]:
    """A fresh daemon that nobody has talked to; and, for comparison, the one that served the rows before."""
    with processes.daemon(context.folder, context.backend, context.device_count) as idle:
        time.sleep(0.5)
        samples = []
        for _ in range(5):
            time.sleep(0.1)
            samples.append(idle.resident_mib())
    used = context.daemon.resident_mib()
    return [
        Row("memory", "idle front, resident memory", "MiB", Summary.of(samples), "lower", at_least=120, aim=80),
        Row("memory", "front after the rows above", "MiB", Summary.of([used]), "lower"),
    ]
