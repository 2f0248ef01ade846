"""Memory in graphs: copies from and to pinned host memory, and arrays that are made during a capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import hearth
from hearth.transport import memory_segments
from tests.support.daemon.graph_arrays import SIZE, N
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated

PINNED = 1 << 15
"""Elements of the pinned arrays: 128 KiB."""
LARGE = 1 << 21
"""Elements of a pinned array that does not share its segment with others: 8 MiB."""

pinned_memory = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


@pytest.fixture
def host() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Two pinned arrays: the numbers from 0, and zeros."""
    source, target = hearth.empty_pinned(PINNED, np.int32), hearth.zeros_pinned(PINNED, np.int32)
    source[:] = np.arange(PINNED)
    yield source, target


# ---- copies from and to pinned memory ----


@pinned_memory
def test_each_launch_copies_from_and_to_the_same_pinned_arrays(
    gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]
) -> None:
    """Small parts, whole arrays and rows; in the order of the nodes."""
    source, target = host
    add_one = common(gpu, "add_one")
    x, whole, wide = gpu.zeros(N, np.int32), gpu.zeros(PINNED, np.int32), gpu.zeros((8, 10), np.int32)
    with gpu.graph() as graph:
        x.set(source[3 : 3 + N])
        add_one((1,), (N,), (x, SIZE))
        x.get(out=target[:N], blocking=False)
        whole.set(source)
        whole[N:].get(out=target[N:], blocking=False)
        wide[:, 2:6].set(source[:32].reshape(8, 4))
        wide[:, 1:3].get(out=target[100:116].reshape(8, 2), blocking=False)
    assert [node.kind for node in graph.nodes] == ["write", "kernel", "read", "write", "read", "write", "read"]
    assert not x.get().any() and not target.any()
    for factor in (1, -5):
        source[:] = np.arange(PINNED) * factor
        graph.launch()
        gpu.synchronize()
        expected = source.copy()
        expected[:N] = source[3 : 3 + N] + 1
        expected[100:116] = np.stack([np.zeros(8, np.int32), source[:32:4]], 1).ravel()
        np.testing.assert_array_equal(target, expected)
        target[:] = 0
    graph.launch(3)  # copies of one launch follow those of the previous launch
    assert (x.get() == -5 * np.arange(3, 3 + N) + 1).all()


@pinned_memory
def test_copies_of_streams_that_join_are_ordered_by_events(
    gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]
) -> None:
    source, target = host
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    main, side = gpu.stream(), gpu.stream()
    main.begin_capture()
    x.set(source[:N], main)
    side.wait_event(main.record())
    add_one((1,), (N,), (x, SIZE), stream=side)
    y.set(source[:N], main)
    y.get(out=target[N : 2 * N], stream=main, blocking=False)
    x.get(out=target[:N], stream=side, blocking=False)
    main.wait_event(side.record())
    graph = main.end_capture()
    assert [node.after for node in graph.nodes] == [(), (0,), (0,), (2,), (1,)]
    graph.launch()
    gpu.synchronize()
    np.testing.assert_array_equal(target[: 2 * N], [*range(1, N + 1), *range(N)])


@pinned_memory
def test_a_launch_reads_pinned_memory_when_it_runs(gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]) -> None:
    source, _ = host
    x, flag, stream = gpu.zeros(N, np.int32), gpu.zeros(1, np.int32), gpu.stream()
    with gpu.graph() as graph:
        x.set(source[:N])
    with gated(gpu) as gate:
        gate.hold(flag, stream=stream)
        graph.launch(stream=stream)
        source[:] = 9
        gate.open()
        stream.synchronize(timeout=30)
    assert (x.get() == 9).all()


@pinned_memory
def test_a_graph_in_a_graph_copies_the_same_memory(gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = host
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as child:
        x.set(source[:N])
        add_one((1,), (N,), (x, SIZE))
    with gpu.graph() as parent:
        child.launch()
        x.get(out=target[:N], blocking=False)
    child.close()
    source[:N] = 40
    parent.launch()
    gpu.synchronize()
    assert (target[:N] == 41).all()


@pinned_memory
def test_the_graph_keeps_the_memory_of_dropped_arrays(daemon: DaemonProcess) -> None:
    """The memory stays registered until the graph ends, and no other array reuses it."""
    with daemon.connect() as node:
        gpu = node.device(0)
        source, target = hearth.empty_pinned(LARGE, np.int32), hearth.empty_pinned(LARGE, np.int32)
        source[:] = 5
        x = gpu.zeros(LARGE, np.int32)
        with gpu.graph() as graph:
            x.set(source)
            x.get(out=target, blocking=False)
        del source, target
        gc.collect()
        others = [hearth.zeros_pinned(LARGE, np.int32) for _ in range(3)]
        graph.launch(2)
        gpu.synchronize()
        assert (x.get() == 5).all() and not any(other.any() for other in others)
        registered = daemon.gauge("segments")  # with the slots of `get`
        assert registered >= 2
        graph.close()
        gpu.synchronize()
        wait_until(lambda: daemon.gauge("segments") == registered - 2, "the end of the registrations")


@pinned_memory
def test_a_session_that_ends_leaves_no_registered_memory(daemon: DaemonProcess) -> None:
    wait_until(lambda: not daemon.gauge("segments"), "the end of earlier sessions")
    with daemon.connect() as node:
        gpu = node.device(0)
        source = hearth.zeros_pinned(PINNED, np.int32)
        x = gpu.zeros(PINNED, np.int32)
        with gpu.graph() as graph:
            x.set(source)
        graph.launch(20)
        assert daemon.gauge("segments")
    wait_until(lambda: not daemon.gauge("segments"), "the end of the registrations")


def test_copies_of_other_host_memory_are_refused_with_the_fix(gpu: hearth.Device) -> None:
    x = gpu.zeros(N, np.int32)
    small = hearth.zeros_pinned(N, np.int32)
    for array in (np.zeros(N, np.int32), small):
        with pytest.raises(hearth.LaunchError, match="write on stream") as caught, gpu.graph():
            x.set(array)
        assert caught.value.reason == "CAPTURE_INVALID" and "hearth.empty_pinned" in caught.value.fix
    with gpu.graph() as graph:
        for read in (x.get, lambda: x.get(out=small, blocking=False)):
            with pytest.raises(hearth.LaunchError, match="read on stream") as caught:
                read()
            assert "blocking=False" in caught.value.fix and "hearth.empty_pinned" in caught.value.fix
    assert not len(graph)


@pinned_memory
def test_copies_that_block_are_refused(gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = host
    x = gpu.zeros(PINNED, np.int32)
    with gpu.graph() as graph, pytest.raises(hearth.LaunchError, match="read on stream"):
        x.get(out=target)
    assert not len(graph)
    with pytest.raises(hearth.LaunchError, match="write on stream"), gpu.graph():
        x.set(source, blocking=True)


@pinned_memory
def test_pinned_copies_have_no_arguments_to_replace(gpu: hearth.Device, host: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = host
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        x.set(source[:N])
        x.get(out=target[:N], blocking=False)
        x.fill(3)
    for node in graph.nodes[:2]:
        with pytest.raises(hearth.LaunchError, match="no arguments that can be replaced") as caught:
            node.set_args((x, x))
        assert "pinned" in caught.value.fix
    graph.nodes[2].set_args((x, 4))  # makes the graph again
    source[:] = 8
    graph.launch()
    assert (x.get() == 4).all() and (target[:N] == 8).all()


# ---- arrays that are made during a capture ----


def test_arrays_made_in_a_capture_live_as_long_as_the_graph(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    gpu.synchronize()
    before = gpu.memory_usage().bytes_in_use
    with gpu.graph() as graph:
        temporary = gpu.zeros(N, np.int32)  # the zeros are a node
        add_one((1,), (N,), (temporary, SIZE))
        copied = temporary.copy()
        add_one((1,), (N,), (copied, SIZE))
        x.copy_from(copied)
        copied.free()
        del copied
        again = gpu.empty(N, np.int32)
        again.copy_from(temporary)
    assert [node.kind for node in graph.nodes] == ["fill", "kernel", "copy", "kernel", "copy", "copy"]
    graph.launch(3)
    assert (x.get() == 2).all() and (temporary.get() == 1).all() and (again.get() == 1).all()
    held = gpu.memory_usage().bytes_in_use
    assert held >= before + 3 * 4 * N
    del temporary, again
    graph.launch()
    assert (x.get() == 2).all()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == held  # the graph holds the memory of the dropped arrays
    graph.close()
    gpu.synchronize()
    wait_until(lambda: gpu.memory_usage().bytes_in_use == before, "the end of the graph's memory")


def test_a_copy_through_new_memory_is_repeated(gpu: hearth.Device) -> None:
    """An overlapping copy, and a copy of strided elements to the host."""
    x = gpu.arange(8, dtype=np.int32)
    with gpu.graph() as graph:
        x[1:].copy_from(x[:-1])
    assert [node.kind for node in graph.nodes] == ["copy", "copy"]
    graph.launch(3)
    assert x.get().tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


def test_memory_of_a_capture_is_counted_and_may_be_missing(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"memory_limit": "16MiB"})
    with daemon.connect() as node:
        gpu = node.device(0)
        x = gpu.zeros(N, np.uint8)
        with pytest.raises(hearth.HearthError) as caught, gpu.graph() as graph:
            large = gpu.empty(1 << 26, np.uint8)
            large.fill(1)
            x.copy_from(large[:N])
        assert "memory" in str(caught.value)
        with pytest.raises(hearth.OutOfMemoryError):
            gpu.synchronize()
        with pytest.raises(hearth.InvalidHandleError):
            graph.launch()
        with gpu.graph() as small:
            y = gpu.full(N, 7, np.uint8)
            x.copy_from(y)
        small.launch()
        assert (x.get() == 7).all()


def test_an_array_of_a_discarded_capture_is_an_ordinary_array(gpu: hearth.Device) -> None:
    with pytest.raises(ZeroDivisionError), gpu.graph():
        x = gpu.empty(N, np.int32)
        raise ZeroDivisionError
    x.fill(4)
    assert (x.get() == 4).all()
