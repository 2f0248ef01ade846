"""HEARTH_LAUNCH_BLOCKING=1: each launch waits until it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common

PRINTS = """
extern "C" __global__ void put(int* x, int value) { x[threadIdx.x] = value; printf("put %d\\n", value); }
"""


@pytest.fixture
def gpu(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[hearth.Device]:
    monkeypatch.setenv("HEARTH_LAUNCH_BLOCKING", "1")
    with daemon.connect() as node:
        yield node.device(0)


def test_the_call_that_causes_an_error_raises_it(gpu: hearth.Device) -> None:
    f, x = common(gpu, "add_one"), gpu.zeros(4, np.int32)
    for _ in range(3):
        f(1, 4, (x, 4))
    with pytest.raises(hearth.LaunchError, match="3 arguments are given"):
        f(1, 4, (x, 4, 5))
    with pytest.raises(hearth.CompileError):
        gpu.RawKernel("no kernel", "f")(1, 1, ())
    gpu.synchronize()
    assert x.get().tolist() == [3] * 4


def test_a_launch_has_run_when_the_call_returns(gpu: hearth.Device) -> None:
    printed: list[str] = []
    gpu.on_output(printed.append)
    put, x = gpu.RawKernel(PRINTS, "put"), gpu.zeros(4, np.int32)
    with gpu.stream():
        put(1, 1, (x, 7))
        assert "".join(printed) == "put 7\n"
    y = gpu.empty(4, np.int32)
    y.copy_from(x)
    y.fill(2)
    started = time.monotonic()
    gpu.synchronize()
    assert time.monotonic() - started < 60 and y.get().tolist() == [2] * 4


def test_graphs_and_prepared_lists_work(gpu: hearth.Device) -> None:
    f, x = common(gpu, "add_one"), gpu.zeros(4, np.int32)
    with gpu.graph() as graph:
        f(1, 4, (x, 4))
        x.fill(5)
        f(1, 4, (x, 4))
    assert x.get().tolist() == [0] * 4
    graph.launch(3)
    assert x.get().tolist() == [6] * 4
    with gpu.prepared() as prepared:
        f(1, 4, (x, 4))
    prepared.launch(2)
    assert x.get().tolist() == [8] * 4
    with pytest.raises(RuntimeError), gpu.graph():
        f(1, 4, (x, 4))
        raise RuntimeError
    f(1, 4, (x, 4))
    assert x.get().tolist() == [9] * 4
    stream, side = gpu.stream(), gpu.stream()
    stream.begin_capture()
    side.wait_event(stream.record())
    f(1, 4, (x, 4), stream=side)
    stream.wait_event(side.record())
    graph = stream.end_capture()
    f(1, 4, (x, 4), stream=side)  # waits again
    graph.launch(3, side)
    assert x.get().tolist() == [13] * 4


@pytest.mark.parametrize("value", ["", "0"])
def test_launch_blocking_can_be_disabled(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEARTH_LAUNCH_BLOCKING", value)
    with daemon.connect() as node:
        gpu = node.device(0)
        common(gpu, "add_one")(1, 4, ())
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()
