"""Functions of the client that are called when the device reaches an event."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import pytest

import hearth
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import common, gated


@pytest.fixture(params=["lane", "stream"])
def gpu(daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[hearth.Device]:
    with daemon.connect(lanes=request.param == "lane") as node:
        yield node.device(0)


def test_host_functions_are_called_in_order_after_the_work(gpu: hearth.Device) -> None:
    x, called = gpu.zeros(1, np.int32), SimpleQueue[object]()
    with gated(gpu) as gate:
        gate.hold(x)
        for number in range(3):
            gpu.default_stream.launch_host_func(called.put, number)
        gpu.default_stream.add_callback(lambda *args: called.put(args), "argument")
        later = gpu.stream()
        later.launch_host_func(called.put, "another stream")
        assert called.get(timeout=60) == "another stream"
        assert called.empty()
        gate.open()
        # without any further call of the program
        assert [called.get(timeout=60) for _ in range(4)] == [0, 1, 2, (gpu.default_stream, 0, "argument")]


def test_a_host_function_may_use_the_device(gpu: hearth.Device) -> None:
    x, read = gpu.full(4, 3, np.int32), SimpleQueue[object]()
    gpu.default_stream.launch_host_func(lambda: read.put(x.get().tolist()))
    assert read.get(timeout=60) == [3, 3, 3, 3]


def test_done_callbacks_of_an_event(gpu: hearth.Device) -> None:
    called = SimpleQueue[object]()
    event, stream = gpu.event(), gpu.stream()
    event.add_done_callback(called.put)  # never recorded: done
    assert called.get(timeout=60) is event
    with gated(gpu) as gate:
        gate.hold(stream=stream)
        stream.record(event)
        event.add_done_callback(called.put)
        assert called.empty()
        gate.open()
        assert called.get(timeout=60) is event
    event.add_done_callback(called.put)  # already done
    assert called.get(timeout=60) is event


def test_an_exception_of_a_callback_is_logged(gpu: hearth.Device, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()
    with caplog.at_level(logging.ERROR, "hearth"):
        gpu.default_stream.launch_host_func(lambda: 1 // 0)
        gpu.default_stream.launch_host_func(called.set)
        assert called.wait(60)
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_a_failure_of_the_work_does_not_prevent_the_call(gpu: hearth.Device) -> None:
    called = threading.Event()
    add = common(gpu, "add_one")
    add((1,), (1,), (gpu.zeros(1, np.int32), np.int32(1)), shared_mem=1 << 30)
    gpu.default_stream.launch_host_func(called.set)
    assert called.wait(60)
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()


def test_a_recording_takes_no_host_function(gpu: hearth.Device) -> None:
    with gpu.graph(), pytest.raises(hearth.LaunchError, match="cannot be recorded"):
        gpu.current_stream.launch_host_func(print)


def test_the_thread_of_callbacks_ends_with_the_node(daemon: DaemonProcess) -> None:
    called: list[int] = []
    with daemon.connect() as node:
        gpu = node.device(0)
        with gated(gpu) as gate:
            gate.hold()
            gpu.default_stream.launch_host_func(called.append, 1)
            name = f"hearth-callbacks-{connection_of(gpu).ordinal}"
            assert name in {thread.name for thread in threading.enumerate()}
            gate.open()
            wait_until(lambda: called == [1], "the call")
    wait_until(lambda: name not in {thread.name for thread in threading.enumerate()}, "the end of the thread")
