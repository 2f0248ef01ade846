"""A kernel that crashes its process is named, with the fault; the fault is attributed only to the session that launched
the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu, wait_until
from tests.support.daemon.kernels import saxpy_works

pytestmark = on_cpu

CODE = r"""
#include <cassert>
extern "C" int raise(int);
extern "C" __global__ void wild(char* x, long long far) { if (blockIdx.x == gridDim.x - 1) x[far] = 1; }
extern "C" __global__ void trap(char* x, long long n) { if (threadIdx.x == n) __trap(); }
extern "C" __global__ void check(char* x, long long n) { assert(threadIdx.x < n); }
extern "C" __global__ void illegal(char* x, long long) { __builtin_trap(); }
extern "C" __global__ void raises(char* x, long long number) { raise(int(number)); }
__device__ volatile int begun;
extern "C" __global__ void goes_on(volatile char* x, long long) { begun = 1; while (x[0] == 0) __nanosleep(1000000); }
extern "C" __global__ void fine(char* x, long long n) { x[threadIdx.x] = char(n); }
"""
FAR = 1 << 45


@pytest.fixture(scope="module")
def node(cache: Path) -> Iterator[DaemonProcess]:
    """The module's daemon. It soon forgets losses: otherwise it would delay the replacement of its process."""
    process = DaemonProcess(cache, {"devices": {"max_restarts": 100, "max_faults": 100, "restart_window": "1s"}}, 1)
    yield process
    assert process.stop() == 0
    left = process.left_behind()
    process.remove()
    assert not left


class Client:
    """A session with the kernels above and an array."""

    def __init__(self, daemon: DaemonProcess, **options: Any) -> None:
        self.daemon = daemon
        self.node = daemon.connect(**options)
        self.gpu = self.node.device(0)
        self.module = self.gpu.RawModule(code=CODE)
        self.again()

    def again(self) -> None:
        """Creates a new array on a process that serves."""
        wait_until(lambda: self.gpu.state == "serving", "the device's return")
        self.x = self.gpu.zeros(64, np.int8)
        self.launch("fine", 3)
        assert (self.x.get()[:4] == 3).all()
        self.x.fill(0)
        self.gpu.synchronize()

    def launch(self, name: str, value: int, grid: int = 1, **options: Any) -> None:
        self.module.get_function(name)((grid,), (4,), (self.x, np.int64(value)), **options)

    def lost(self) -> hearth.DeviceLostError:
        with pytest.raises(hearth.DeviceLostError) as caught:
            self.gpu.synchronize()
        return caught.value

    def holds_the_device(self) -> None:
        """Launches a kernel that runs without end, and waits until it has started."""
        begun, side = self.module.get_global("begun", np.int32), self.gpu.stream()
        self.launch("goes_on", 0)
        wait_until(lambda: begun.get(stream=side)[0], "the kernel's begin")


def newest(daemon: DaemonProcess) -> dict[str, Any]:
    fault: dict[str, Any] = daemon.status()["faults"][0]
    return fault


@pytest.mark.parametrize(
    ("kernel", "value", "number", "said"),
    [
        ("wild", FAR, "SIGSEGV", r"in kernel wild at address 0x[0-9a-f]+, block \(2, 0, 0\)"),
        ("trap", 2, "SIGABRT", r"in kernel trap, block \([0-2], 0, 0\): hearth: __trap\(\): .*thread: \[2,0,0\]"),
        ("check", 1, "SIGABRT", r"in kernel check, .*Assertion `threadIdx.x < n` failed"),
        ("illegal", 0, "SIGILL", r"in kernel illegal, block \([0-2], 0, 0\)"),
        ("raises", signal.SIGFPE, "SIGFPE", r"in kernel raises, block"),
        ("raises", signal.SIGBUS, "SIGBUS", r"in kernel raises, block"),
    ],
)
def test_crash_is_named_in_every_report(node: DaemonProcess, kernel: str, value: int, number: str, said: str) -> None:
    client = Client(node)
    generation = client.gpu.generation
    client.launch(kernel, value, grid=3)
    with pytest.raises(hearth.DeviceLostError, match=f"killed by {number} {said}") as caught:
        client.gpu.synchronize()
    details = caught.value.details
    assert (details["signal"], details["kernel"], details["kernels"], details["in_flight"]) == (number, *(kernel,) * 3)
    assert "sessions" not in details
    assert ("address" in details) == (kernel == "wild")
    fault = newest(node)
    assert (fault["reason"], fault["kernels"], fault["generation"]) == ("signal", [kernel], generation)
    assert number in fault["detail"] and kernel in fault["detail"]
    log = node.log()
    assert f'"kernels": ["{kernel}"]' in log and f'"session": "{client.node.session_id}"' in log
    client.again()
    shown = subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", "status"],
        capture_output=True, text=True, env=environment(COLUMNS="300", HEARTH_TARGET=node.unix), timeout=60, check=True,
    ).stdout  # fmt: skip
    assert f"killed by {number} in kernel {kernel}" in shown and f"(kernels: {kernel})" in shown
    client.node.close()


def test_faulting_session_is_quarantined_and_its_neighbour_continues(start_daemon: StartDaemon) -> None:
    """Both sessions have a kernel on the device each time, so that running work alone does not distinguish them."""
    node = start_daemon(devices={"max_faults": 1})
    culprit, bystander = Client(node), Client(node)
    for fault in range(2):
        bystander.holds_the_device()
        culprit.launch("wild", FAR)
        error = culprit.lost()
        assert error.details["kernels"] == "wild"
        error = bystander.lost()
        assert error.details["kernels"] == "wild", "the error names the kernel that caused the loss"
        bystander.again()
        if not fault:
            culprit.again()
    with pytest.raises(hearth.HearthError) as caught:
        culprit.again()
    assert caught.value.reason == "SESSION_BARRED"
    bystander.again()
    for client in (culprit, bystander):
        client.node.close()


def test_the_running_kernel_of_a_graph_is_named(node: DaemonProcess) -> None:
    client = Client(node)
    with client.gpu.graph() as graph:
        client.launch("fine", 1)
        client.launch("wild", FAR)
        client.launch("fine", 2)
    graph.launch()
    error = client.lost()
    assert error.details["kernels"] == "wild" and error.details["signal"] == "SIGSEGV"
    assert f'"session": "{client.node.session_id}"' in node.log()
    client.node.close()


def test_killed_process_reports_the_running_kernel(node: DaemonProcess) -> None:
    client = Client(node)
    client.holds_the_device()
    os.kill(node.device_pid(), signal.SIGKILL)
    error = client.lost()
    assert "killed by SIGKILL while kernel goes_on was running" in str(error)
    assert error.details["kernels"] == "goes_on" and "kernel" not in error.details
    client.again()
    client.node.close()


def test_external_signal_is_attributed_to_no_session(node: DaemonProcess) -> None:
    client = Client(node)
    for _ in range(3):
        os.kill(node.device_pid(), signal.SIGSEGV)
        error = client.lost()
        assert f"killed by SIGSEGV, sent by process {os.getpid()}" in str(error)
        assert error.details["sender"] == str(os.getpid()) and "kernels" not in error.details
        client.again()
    client.node.close()


def test_a_signal_without_a_name(node: DaemonProcess) -> None:
    with node.connect() as connected:
        gpu = connected.device(0)
        saxpy_works(gpu)
        os.kill(node.device_pid(), signal.SIGRTMIN + 5)
        with pytest.raises(hearth.DeviceLostError, match=f"killed by signal {signal.SIGRTMIN + 5}"):
            gpu.synchronize()
        saxpy_works(gpu)
