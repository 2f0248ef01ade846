"""Recording of graphs: commands that are refused during a capture, and work of other streams meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hearth
from tests.support.daemon.graph_arrays import SIZE, N
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, saxpy_works

# ---- commands that cannot be captured ----


def test_invalid_launch_fails_only_the_recording(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with pytest.raises(hearth.LaunchError, match="1025 threads") as caught, gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
        add_one((1,), (1025,), (x, SIZE))
        add_one((1,), (N,), (x,))
    assert caught.value.reason == "LAUNCH_INVALID" and len(caught.value.failures) == 2
    assert [failure.command for failure in caught.value.failures] == ["launch add_one"] * 2
    gpu.synchronize()  # all failures have been reported
    assert not x.get().any()  # x is valid, as before
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        graph.launch()


def test_an_exception_discards_the_recording(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    before = gpu.memory_usage()
    with pytest.raises(ZeroDivisionError), gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
        add_one((1,), (1025,), (x, SIZE))
        raise ZeroDivisionError
    assert gpu.current_stream is gpu.default_stream
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        graph.launch()
    gpu.synchronize()
    x.free()
    assert gpu.memory_usage().bytes_in_use == before.bytes_in_use - 4 * N


def test_reads_and_waits_in_the_window_are_refused(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
        with pytest.raises(hearth.LaunchError, match=r"read on stream \d+ while it records"):
            x.get()
        with pytest.raises(hearth.LaunchError, match="sync"):
            gpu.current_stream.synchronize()
        with pytest.raises(hearth.LaunchError, match="flush"):
            gpu.flush()
        gpu.empty(3, stream=gpu.default_stream).free()  # allowed on another stream
        gpu.synchronize()  # a wait for all streams is allowed as well
        add_one((1,), (N,), (x, SIZE))
    graph.launch()
    assert (x.get() == 2).all()


def test_one_way_failure_in_a_capture_is_raised_at_its_end(gpu: hearth.Device) -> None:
    x = gpu.zeros(N, np.int32)
    with pytest.raises(hearth.LaunchError, match="write on stream") as caught, gpu.graph():
        x.fill(1)
        x.set(np.zeros(N, np.int32))
    assert caught.value.reason == "CAPTURE_INVALID" and caught.value.fix
    gpu.synchronize()


def test_launches_in_which_the_host_takes_part_are_refused(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x, grid = gpu.zeros(N, np.int32), gpu.ones(3, np.uint32)
    for keywords, what in (
        ({"mode": "validate"}, "validate"),
        ({"timeout": 3.0}, "time limit"),
        ({"iterations": 5000}, "the maximum is 4096"),
    ):
        with pytest.raises(hearth.LaunchError, match=what) as caught, gpu.graph():
            add_one((1,), (N,), (x, SIZE), **keywords)
        assert caught.value.reason == "CAPTURE_INVALID" and caught.value.fix
    with pytest.raises(hearth.LaunchError, match="grid from a buffer"), gpu.graph():
        add_one(grid, (N,), (x, SIZE))


def test_copies_between_devices_and_collectives_are_refused_by_name(pair: list[hearth.Device]) -> None:
    """The error names the operation that the program has called, on the stream of either device."""
    first, second = pair
    x, y = first.zeros(N, np.int32), second.ones(N, np.int32)
    group = hearth.Group(pair)
    for call, noun in (
        (lambda: x.copy_from(y), "a copy between devices"),
        (lambda: y.copy_from(x), "a copy between devices"),
        (lambda: first.asarray(y), "a copy between devices"),
        (lambda: group.all_reduce([x, y]), "a collective"),
    ):
        with pytest.raises(hearth.LaunchError, match=f"{noun} cannot be recorded") as caught, first.graph():
            call()
        assert caught.value.reason == "CAPTURE_INVALID" and "before the block" in caught.value.fix
    x.copy_from(y)
    assert (x.get() == 1).all()


def test_graphs_do_not_nest(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as first:
        add_one((1,), (N,), (x, SIZE))
        with pytest.raises(hearth.ArgumentError, match="already been recorded"), first:
            pass
    with gpu.graph(mode="relaxed") as outer:
        add_one((1,), (N,), (x, SIZE))
        with gpu.graph() as inner:  # a separate capture on a separate stream
            add_one((1,), (N,), (x, SIZE))
            add_one((1,), (N,), (x, SIZE))
        inner.launch(stream=gpu.default_stream)
    assert (len(outer), len(inner)) == (1, 2)
    assert (x.get() == 2).all()


# ---- isolation ----


def test_a_capture_concerns_its_stream_alone(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    busy, stop, turns = gpu.stream(), threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            add_one((1,), (N,), (y, SIZE), stream=busy)
            busy.synchronize()
            turns.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with gpu.graph(mode="relaxed") as graph:
            for _ in range(20):
                add_one((1,), (N,), (x, SIZE))
            seen = len(turns)
            wait_until(lambda: len(turns) > seen + 3, "work on the other stream")
            add_one((1,), (N,), (x, SIZE), stream=busy)
            with daemon.connect() as other:
                saxpy_works(other.device(0))
    finally:
        stop.set()
        thread.join()
    assert (y.get() == len(turns)).all() and len(graph) == 20
    assert (x.get() == 1).all()
    graph.launch()
    assert (x.get() == 21).all()


def test_folded_streams_share_no_capture(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"max_streams": 1})
    with daemon.connect() as node:
        gpu = node.device(0)
        add_one = common(gpu, "add_one")
        x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
        beside = gpu.stream()
        with gpu.graph(mode="relaxed") as graph:
            add_one((1,), (N,), (x, SIZE))
            add_one((1,), (N,), (y, SIZE), stream=beside)
            assert (y.get(stream=beside) == 1).all()
            add_one((1,), (1025,), (y, SIZE), stream=beside)
        assert len(graph) == 1
        with pytest.raises(hearth.LaunchError, match="1025"):
            beside.synchronize()
        graph.launch(3, beside)
        assert (x.get() == 3).all() and (y.get() == 1).all()
        assert daemon.gauge("streams") == 1
