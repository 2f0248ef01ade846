"""Work that prevents a daemon from ending, and the signal that terminates the daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np

import hearth
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.slow_compile import processes

ENDLESS = 'extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }'


def terminate(daemon: DaemonProcess) -> float:
    """Sends SIGTERM once; returns the monotonic time at which it was sent."""
    daemon.process.send_signal(signal.SIGTERM)
    return time.monotonic()


def endless(gpu: hearth.Device) -> hearth.DeviceArray:
    """Launches a kernel that never ends. Returns the array that the kernel polls, which the caller must keep alive."""
    x = gpu.zeros(8, np.int32)
    gpu.RawKernel(ENDLESS, "endless")((1,), (1,), (x,))
    gpu.flush()
    return x


def compiling(daemon: DaemonProcess) -> bool:
    """Returns whether a compile has begun: a child of the device process has used processor time."""
    ticks = 0
    for pid in processes(daemon.device_pid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks = max(ticks, int(fields[11]))
    return ticks > 0.1 * os.sysconf("SC_CLK_TCK")
