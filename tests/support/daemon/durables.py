"""Shared parts of the tests of durable arrays: ways to lose a device, and the daemon's durable stores."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hearth
from tests.support.daemon.harness import DaemonProcess, wait_until

FAULTS = """
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
extern "C" __global__ void set_all(int* x, int n, int value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = value;
}
"""
FAR = np.int64(1 << 45)
MIB = 1 << 20
QUICK = {"max_restarts": 1000, "restart_window": "1ms", "max_faults": 1000}
"""Settings with which a device that is lost repeatedly is restarted immediately, whichever session causes the loss."""


def kill(daemon: DaemonProcess, ordinal: int = 0) -> None:
    """Kills a device's process; returns when the daemon has noticed."""

    def pid() -> int:
        return int(daemon.status()["devices"][ordinal]["pid"])

    killed = wait_until(pid, "a device process")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pid() != killed, "the end of the device process")


def lose(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    """Kills the device's process; returns when the next process serves."""
    kill(daemon, gpu.ordinal)
    wait_serving(gpu)


def wait_serving(gpu: hearth.Device) -> None:
    """Waits until the device serves. The error of the loss is consumed here, if there was anything to report."""
    wait_until(lambda: gpu.state == "serving", "the device's return")
    with contextlib.suppress(hearth.DeviceLostError):
        gpu.synchronize()


class DurableFiles(NamedTuple):
    """Files of durable arrays that a process has open, and the size of their memory."""

    files: int
    bytes: int


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def durable_files(pid: int) -> DurableFiles:
    files = list(_files(pid))
    return DurableFiles(len(files), sum(path.stat().st_blocks * 512 for path in files))


def _files(pid: int) -> Iterator[Path]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("/memfd:hearth-durable"):
                yield entry


def damage(pid: int) -> None:
    """Truncates all files that the process has open for durable arrays."""
    for path in _files(pid):
        os.truncate(path, 0)


def noise(size: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
