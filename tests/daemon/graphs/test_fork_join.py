"""Captures of several streams: begin and end without a block, forks and joins by events, and refusals."""

from __future__ import annotations

import gc
import uuid

import numpy as np
import pytest

import hearth
from tests.support.daemon.graph_arrays import SIZE, N, mixed, ramp
from tests.support.daemon.harness import wait_until
from tests.support.daemon.kernels import common, gated

# ---- begin_capture and end_capture ----


def test_a_stream_is_captured_without_a_block(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    stream = gpu.stream()
    add_one((1,), (N,), (x, SIZE), stream=stream)
    assert not stream.is_capturing()
    stream.begin_capture()
    assert stream.is_capturing() and stream.records
    with stream:
        add_one((1,), (N,), (x, SIZE))
        x[:8].fill(5)
    add_one((1,), (N,), (x, SIZE), stream=stream)
    graph = stream.end_capture()
    assert not stream.is_capturing() and isinstance(graph, hearth.Graph)
    assert [node.kind for node in graph.nodes] == ["kernel", "fill", "kernel"]
    assert [node.after for node in graph.nodes] == [(), (0,), (1,)]
    assert (x.get() == 1).all()
    graph.launch(2, stream)
    np.testing.assert_array_equal(x.get(stream=stream), [6] * 8 + [5] * (N - 8))
    add_one((1,), (N,), (x, SIZE), stream=stream)  # runs again
    np.testing.assert_array_equal(x.get(), [7] * 8 + [6] * (N - 8))
    stream.begin_capture()  # the same stream once more
    assert len(stream.end_capture()) == 0


def test_wrong_begins_and_ends_are_refused(gpu: hearth.Device) -> None:
    stream = gpu.stream()
    with pytest.raises(hearth.LaunchError, match="is not being captured") as caught:
        stream.end_capture()
    assert caught.value.reason == "CAPTURE_INVALID" and "begin_capture" in caught.value.fix
    with pytest.raises(hearth.LaunchError, match="default stream cannot be captured"):
        gpu.default_stream.begin_capture()
    with pytest.raises(hearth.ArgumentError, match="no mode of a capture"):
        stream.begin_capture("strict")
    stream.begin_capture()
    with pytest.raises(hearth.LaunchError, match="in a capture already"):
        stream.begin_capture()
    assert len(stream.end_capture()) == 0
    with gpu.graph(), pytest.raises(hearth.LaunchError, match="did not begin with its begin_capture"):
        gpu.current_stream.end_capture()
    gpu.synchronize()


def test_work_that_cannot_be_recorded_ends_the_capture_with_its_error(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    stream = gpu.stream()
    stream.begin_capture()
    add_one((1,), (1025,), (x, SIZE), stream=stream)
    with pytest.raises(hearth.LaunchError, match="1025"):
        stream.end_capture()
    assert not stream.is_capturing()
    add_one((1,), (N,), (x, SIZE), stream=stream)
    assert (x.get() == 1).all()
    gpu.synchronize()


def test_done_does_not_spoil_a_capture(gpu: hearth.Device) -> None:
    """During a capture, `done` covers the work before it; an event of the capture cannot be queried."""
    add_one = common(gpu, "add_one")
    flag, x = gpu.zeros(1, np.int32), gpu.zeros(N, np.int32)
    stream = gpu.stream()
    earlier = gpu.event()
    with gated(gpu) as gate:
        gate.hold(flag, stream=stream)
        earlier.record(stream)
        stream.begin_capture()
        add_one((1,), (N,), (x, SIZE), stream=stream)
        assert not stream.done and not stream.done and not earlier.done
        inside = stream.record()
        for ask in (lambda: inside.done, inside.synchronize, lambda: inside.elapsed(earlier)):
            with pytest.raises(hearth.LaunchError, match="recorded in the capture of graph") as caught:
                ask()
            assert caught.value.reason == "CAPTURE_INVALID" and "record the event again" in caught.value.fix
        gate.open()
        earlier.synchronize(timeout=30)
        wait_until(lambda: stream.done, "the work before the capture")
        graph = stream.end_capture()
    with gpu.graph() as other:
        wait_until(lambda: gpu.current_stream.done, "the empty stream")
    assert (len(graph), len(other)) == (1, 0)
    graph.launch()
    inside.record(stream)
    inside.synchronize(timeout=30)
    assert (x.get() == 1).all()


# ---- fork and join ----


def test_streams_join_a_capture_by_events(gpu: hearth.Device) -> None:
    """A diamond: two streams follow the first node, and the origin waits for both."""
    mix = common(gpu, "mix")
    x, y, z = ramp(gpu), ramp(gpu, 100), ramp(gpu, 200)
    hosts = [np.arange(start, start + N, dtype=np.uint32) for start in (0, 100, 200)]
    main, left, right = (gpu.stream() for _ in range(3))
    main.begin_capture()
    mix((1,), (N,), (x, y, SIZE), stream=main)
    fork = main.record()
    left.wait_event(fork)
    right.wait_event(fork)
    assert left.is_capturing() and right.is_capturing()
    with left:
        x.fill(3)
    z.copy_from(y, right)
    mix((1,), (N,), (y, z, SIZE), stream=right)
    for side in (left, right):
        main.wait_event(side.record())
    mix((1,), (N,), (x, z, SIZE), stream=main)
    graph = main.end_capture()
    assert not left.is_capturing() and not right.is_capturing()
    assert [node.kind for node in graph.nodes] == ["kernel", "fill", "copy", "kernel", "kernel"]
    assert [node.after for node in graph.nodes] == [(), (0,), (0,), (2,), (0, 1, 3)]
    np.testing.assert_array_equal(z.get(), hosts[2])
    for _ in range(2):
        graph.launch()
        hosts[1] = mixed(hosts[0], hosts[1])
        hosts[0][:] = 3
        hosts[2] = mixed(hosts[0], mixed(hosts[1], hosts[1].copy()))
        np.testing.assert_array_equal(z.get(), hosts[2])
    mix((1,), (N,), (x, y, SIZE), stream=left)  # runs immediately
    np.testing.assert_array_equal(y.get(), mixed(hosts[0], hosts[1]))


def test_updates_reach_the_nodes_of_every_stream(gpu: hearth.Device) -> None:
    """Nodes and launches correspond in the order of submission, also while a kernel is being compiled."""
    add_one = common(gpu, "add_one")
    assert add_one.num_regs >= 0  # waits until the module is loaded
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    side = gpu.stream()
    code = f'extern "C" __global__ void put(int* x, int v) {{ x[threadIdx.x] = v; }} // {uuid.uuid4()}'
    fresh = gpu.RawKernel(code, "put")
    with gpu.graph() as graph:
        main = gpu.current_stream
        fork = main.record()
        fresh((1,), (N,), (x, np.int32(4)))
        side.wait_event(fork)
        with side:
            add_one((1,), (N,), (y, SIZE))
        main.wait_event(side.record())
    assert [(node.kernel, node.after) for node in graph.nodes] == [("put", ()), ("add_one", ())]
    graph.update(0, (x, np.int32(9)))
    graph.nodes[1].set_args((y, np.int32(8)))
    graph.launch(2)
    assert (x.get() == 9).all()
    np.testing.assert_array_equal(y.get(), [2] * 8 + [0] * (N - 8))


def test_a_stream_that_does_not_join_again_is_named(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    main, side, empty = gpu.stream(), gpu.stream(), gpu.stream()
    for late in (False, True):
        main.begin_capture()
        add_one((1,), (N,), (x, SIZE), stream=main)
        for other in (side, empty):
            other.wait_event(main.record())
        add_one((1,), (N,), (y, SIZE), stream=side)
        if late:  # the event is in front of the last work
            main.wait_event(side.record())
            add_one((1,), (N,), (y, SIZE), stream=side)
        with pytest.raises(hearth.LaunchError, match=r"the work of stream \d+ was not joined to stream \d+") as caught:
            main.end_capture()
        assert caught.value.reason == "CAPTURE_INVALID" and "record an event" in caught.value.fix
        assert repr(side) == f"<hearth.Stream {caught.value.details['unjoined']} of device 0>"
    add_one((1,), (N,), (y, SIZE), stream=side)
    assert (y.get() == 1).all() and not x.get().any()
    gpu.synchronize()


def test_events_of_other_origins_are_refused(gpu: hearth.Device) -> None:
    main, second = gpu.stream(), gpu.stream()
    outside, old = second.record(), gpu.event()
    main.begin_capture()
    with pytest.raises(hearth.LaunchError, match="outside the capture"):
        main.wait_event(outside)
    old.record(main)
    second.begin_capture()
    with pytest.raises(hearth.LaunchError, match="two captures cannot be joined"):
        second.wait_event(old)
    with pytest.raises(hearth.LaunchError, match="default stream cannot join"):
        gpu.default_stream.wait_event(old)
    assert len(second.end_capture()) == 0 and len(main.end_capture()) == 0
    with pytest.raises(hearth.LaunchError, match="a capture that has ended"):
        second.wait_event(old)
    third = gpu.stream()
    third.begin_capture()
    third.wait_event(third.record())
    second.wait_event(third.record())
    with pytest.raises(hearth.LaunchError, match="did not begin with its begin_capture"):
        second.end_capture()
    with pytest.raises(hearth.LaunchError, match="in a capture already"):
        second.begin_capture()
    assert len(third.end_capture()) == 0  # a stream without work needs no join
    gpu.synchronize()


def test_a_capture_whose_stream_is_dropped_refuses_nothing(gpu: hearth.Device) -> None:
    """The streams that had joined it run their work again."""
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    stream, side = gpu.stream(), gpu.stream()
    stream.begin_capture()
    side.wait_event(stream.record())
    add_one((1,), (N,), (x, SIZE), stream=side)
    with pytest.raises(hearth.LaunchError, match="is not in the capture"):
        add_one((1,), (N,), (x, SIZE))
    del stream
    gc.collect()
    add_one((1,), (N,), (x, SIZE))
    assert (x.get() == 1).all() and not side.is_capturing()
    side.begin_capture()
    add_one((1,), (N,), (x, SIZE), stream=side)
    side.end_capture().launch()
    add_one((1,), (N,), (x, SIZE), stream=side)
    assert (x.get() == 3).all()


# ---- graphs in graphs, and descriptions ----


def test_a_graph_launched_in_a_capture_adds_its_nodes(gpu: hearth.Device) -> None:
    """The nodes are copies of the child's nodes at that time, ordered after earlier work and before later work."""
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    side = gpu.stream()
    with gpu.graph() as child:
        main = gpu.current_stream
        side.wait_event(main.record())
        add_one((1,), (N,), (x, SIZE), iterations=2)
        add_one((1,), (N,), (y, SIZE), stream=side)
        main.wait_event(side.record())
    with gpu.prepared() as listed:
        add_one((1,), (N,), (x, SIZE), iterations=2)
    with gpu.graph() as parent:
        x.fill(10)
        child.launch(2)
        listed.launch()
        y.copy_from(x)
    assert [node.kind for node in parent.nodes] == ["fill", *["kernel"] * 8, "copy"]
    assert [node.after for node in parent.nodes] == [
        (), (0,), (1,), (0,), (2, 3), (4,), (2, 3), (5, 6), (7,), (8,),
    ]  # fmt: skip
    child.update(0, (x, np.int32(0)))
    parent.update(4, (x, np.int32(8)))  # the first launch of the second round
    child.close()
    parent.launch()
    np.testing.assert_array_equal(x.get(), [16] * 8 + [15] * (N - 8))
    np.testing.assert_array_equal(y.get(), x.get())


def test_a_graph_that_cannot_be_added_fails_the_capture(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as child:
        for _ in range(5):
            add_one((1,), (N,), (x, SIZE))
    for keywords, what in (({"n": 1000}, "5000 nodes; the maximum is 4096"), ({"timeout": 3.0}, "with a time limit")):
        with pytest.raises(hearth.LaunchError, match=what) as caught, gpu.graph():
            child.launch(**keywords)  # type: ignore[arg-type]
        assert caught.value.reason == "CAPTURE_INVALID" and caught.value.fix
    with gpu.graph() as empty:
        pass
    with gpu.graph() as parent:
        empty.launch(2**63)
        child.launch()
    assert len(parent) == 5
    parent.launch()
    assert (x.get() == 5).all()


def test_a_graph_is_described_in_dot(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
        x.fill(3)
    assert graph.debug_dot_str() == (
        "digraph hearth_graph {\n"
        '    node [shape="box"];\n'
        '    n0 [label="0 kernel add_one\\ngrid (1,), block (64,), shared memory 0"];\n'
        '    n1 [label="1 fill"];\n'
        "    n0 -> n1;\n"
        "}\n"
    )
    with gpu.graph() as empty:
        pass
    assert "->" not in empty.debug_dot_str()


def test_child_graphs_are_clusters_of_the_description(gpu: hearth.Device) -> None:
    """A child graph that contains others is listed before them, and encloses them."""
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as inner:
        x.fill(1)
    with gpu.graph() as middle:
        x.fill(2)
        inner.launch(2)
    with gpu.graph() as outer:
        middle.launch()
        x.fill(3)
    assert outer.children == (range(3), range(1, 2), range(2, 3)) and inner.children == ()
    assert outer.debug_dot_str() == (
        "digraph hearth_graph {\n"
        '    node [shape="box"];\n'
        "    subgraph cluster_0 {\n"
        '        label="child graph 0";\n'
        '        n0 [label="0 fill"];\n'
        "        subgraph cluster_1 {\n"
        '            label="child graph 1";\n'
        '            n1 [label="1 fill"];\n'
        "        }\n"
        "        subgraph cluster_2 {\n"
        '            label="child graph 2";\n'
        '            n2 [label="2 fill"];\n'
        "        }\n"
        "    }\n"
        '    n3 [label="3 fill"];\n'
        "    n0 -> n1;\n"
        "    n1 -> n2;\n"
        "    n2 -> n3;\n"
        "}\n"
    )


# ---- work outside the capture ----


@pytest.mark.parametrize("what", ["launch", "default", "fill", "copy", "graph", "prepared"])
def test_work_outside_the_capture_is_refused_or_runs_immediately(gpu: hearth.Device, what: str) -> None:
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.ones(N, np.int32)
    beside = gpu.stream()
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
    with gpu.prepared() as prepared:
        add_one((1,), (N,), (x, SIZE))
    work = {
        "launch": lambda: add_one((1,), (N,), (x, SIZE), stream=beside),
        "default": lambda: add_one((1,), (N,), (x, SIZE), stream=gpu.default_stream),
        "fill": lambda: x.fill(1, beside),
        "copy": lambda: x.copy_from(y, beside),
        "graph": lambda: graph.launch(stream=beside),
        "prepared": lambda: prepared.launch(stream=beside),
    }[what]
    with gpu.graph() as capture:
        with pytest.raises(hearth.LaunchError, match=r"is not in the capture on <hearth\.Stream") as caught:
            work()
        assert caught.value.reason == "CAPTURE_INVALID" and "wait_event" in caught.value.fix
        assert not x.get(stream=beside).any()  # reads of other streams are no work of the graph
    with gpu.graph(mode="relaxed") as relaxed:
        work()
        assert (x.get(stream=beside) == 1).all()
    assert (len(capture), len(relaxed)) == (0, 0)
    work()
    gpu.synchronize()


def test_a_capture_without_a_block_guards_the_default_stream(gpu: hearth.Device) -> None:
    """The refusal follows the thread, in blocks that begin or end between begin and end of the capture."""
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    stream, other = gpu.stream(), gpu.stream()

    def refused() -> bool:
        try:
            add_one((1,), (N,), (x, SIZE))
        except hearth.LaunchError as error:
            return "is not in the capture" in str(error)
        return False

    stream.begin_capture()
    assert refused()
    with other:
        assert refused()
    stream.end_capture()
    assert not refused()
    with stream:
        stream.begin_capture()
        assert not refused()
    assert refused()
    assert len(stream.end_capture()) == 1
    assert not refused()
    stream.begin_capture()
    with other:
        stream.end_capture()
        assert not refused()
    assert not refused()
    gpu.synchronize()
    assert (x.get() == 4).all()
