"""Conditional nodes: bodies that each launch of a graph runs depending on a value on the device."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.daemon.graph_arrays import SIZE, N
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common

SOURCE = r"""
// As in CUDA's samples, which declare the function themselves.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);

extern "C" __global__ void set_to(cudaGraphConditionalHandle handle, const int* value) {
    cudaGraphSetConditional(handle, *value);
}
extern "C" __global__ void count_down(int* left, cudaGraphConditionalHandle handle) {
    *left -= 1;
    cudaGraphSetConditional(handle, *left > 0 ? 1 : 0);
}
extern "C" __global__ void add(int* x, int value) { atomicAdd(x, value); }
"""


class Kernels:
    """The kernels of the tests, and small arrays for them."""

    def __init__(self, gpu: hearth.Device) -> None:
        module = gpu.RawModule(code=SOURCE)
        self.set_to, self.count_down, self.add = map(module.get_function, ("set_to", "count_down", "add"))
        self.condition = gpu.zeros((), np.uint32)
        self.value, self.total = gpu.zeros((), np.int32), gpu.zeros((), np.int32)


@pytest.fixture
def kernels(gpu: hearth.Device) -> Kernels:
    return Kernels(gpu)


def run(graph: hearth.Graph, kernels: Kernels, value: int, n: int = 1) -> int:
    """Launches the graph with a value. Returns the total that it has added."""
    kernels.total.fill(0)
    kernels.value.fill(value)
    graph.launch(n)
    return int(kernels.total.get())


def test_the_body_of_an_if_runs_when_the_value_is_not_zero(gpu: hearth.Device, kernels: Kernels) -> None:
    k = kernels
    with gpu.graph() as graph:
        k.set_to(1, 1, (k.condition, k.value))
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 10))
            k.add(1, 1, (k.total, 3))
        k.add(1, 1, (k.total, 100))
    assert [(node.kind, node.body) for node in graph.nodes] == [
        ("kernel", range(1, 1)), ("if", range(2, 4)), ("kernel", range(3, 3)), ("kernel", range(4, 4)),
        ("kernel", range(5, 5)),
    ]  # fmt: skip
    assert [run(graph, k, value) for value in (0, 1, 0, -7)] == [100, 113, 100, 113]
    assert run(graph, k, 1, 4) == 4 * 113
    text = graph.debug_dot_str()
    assert 'label="body of 1 if"' in text and text.index("subgraph") < text.index('n2 [label="2 kernel add')
    assert '        n3 [label="3 kernel add' in text and '    n4 [label="4 kernel add' in text


def test_a_while_runs_as_often_as_its_kernels_say(gpu: hearth.Device, kernels: Kernels) -> None:
    """Zero rounds and many; launches in a row begin anew."""
    k = kernels
    with gpu.graph() as graph:
        left = gpu.empty((), np.int32)
        left.copy_from(k.value)
        k.set_to(1, 1, (k.condition, left))
        with graph.while_(k.condition):
            k.add(1, 1, (k.total, 1))
            k.count_down(1, 1, (left, k.condition))
        k.add(1, 1, (k.total, 1000))
    assert [run(graph, k, value) for value in (0, 1, 5, 300)] == [1000, 1001, 1005, 1300]
    assert run(graph, k, 7, 3) == 3 * 1007


def test_a_pointer_to_the_condition_sets_it_as_well(gpu: hearth.Device, kernels: Kernels) -> None:
    k = kernels
    with gpu.graph() as graph:
        flag = gpu.zeros(3, np.int32)
        with graph.if_(flag[1]):
            k.add(1, 1, (k.total, 1))
        k.add(1, 1, (flag[1:], 2))
        with graph.if_(flag[1]):
            k.add(1, 1, (k.total, 10))
    assert run(graph, k, 0, 2) == 20


def test_conditions_nest(gpu: hearth.Device, kernels: Kernels) -> None:
    """A loop in a loop, and a condition in it; compared with the same program on the host."""
    k = kernels
    with gpu.graph() as graph:
        outer, inner = gpu.empty((), np.int32), gpu.empty((), np.int32)
        again = gpu.empty((), np.uint32)
        outer.copy_from(k.value)
        k.set_to(1, 1, (k.condition, outer))
        with graph.while_(k.condition):
            inner.copy_from(outer)
            again.fill(1)
            with graph.while_(again):
                k.add(1, 1, (k.total, 1))
                k.count_down(1, 1, (inner, again))
            k.set_to(1, 1, (again, inner))
            with graph.if_(again):
                k.add(1, 1, (k.total, 10_000))
            k.count_down(1, 1, (outer, k.condition))
    assert [run(graph, k, value) for value in (0, 1, 4)] == [0, 1, 10]
    assert [node.kind for node in graph.nodes if node.body] == ["while", "while", "if"]


def test_the_else_of_an_if_runs_when_the_value_is_zero(gpu: hearth.Device, kernels: Kernels) -> None:
    """Either body may be empty; a body does not see that another one changes the value."""
    k = kernels
    with gpu.graph() as graph:
        k.set_to(1, 1, (k.condition, k.value))
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 1))
            k.condition.fill(0)
        with graph.else_():
            k.condition.fill(1)
            k.add(1, 1, (k.total, 20))
            k.add(1, 1, (k.total, 3))
        with graph.if_(k.condition):
            pass
        with graph.else_():
            k.add(1, 1, (k.total, 100))
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 1000))
        with graph.else_():
            pass
        k.add(1, 1, (k.total, 10_000))
    assert [run(graph, k, value) for value in (0, 1, 0, -7)] == [11_023, 10_101, 11_023, 10_101]
    assert run(graph, k, 0, 3) == 3 * 11_023
    nodes = graph.nodes
    assert [(node.kind, node.body, node.bodies) for node in nodes if node.kind == "if"] == [
        ("if", range(2, 7), (range(2, 4), range(4, 7))),
        ("if", range(8, 9), (range(8, 8), range(8, 9))),
        ("if", range(10, 11), (range(10, 11), range(11, 11))),
    ]
    assert [node.after for node in nodes] == [
        (), (0,), (1,), (2,), (1,), (4,), (5,), (3, 6), (7,), (7, 8), (9,), (9, 10),
    ]  # fmt: skip
    text = graph.debug_dot_str()
    assert 'label="body of 1 if"' in text and 'label="else of 1 if"' in text
    assert text.index('label="else of 1 if"') < text.index('n4 [label="4 fill') < text.index("    }\n    n7 [")


def test_the_value_selects_a_case_of_a_switch(gpu: hearth.Device, kernels: Kernels) -> None:
    """Cases in any order, with gaps, and an empty one; values without a case run none."""
    k = kernels
    with gpu.graph() as graph:
        k.set_to(1, 1, (k.condition, k.value))
        with graph.switch_(k.condition):
            with graph.case_(5):
                k.add(1, 1, (k.total, 5))
                k.add(1, 1, (k.total, 50))
            with graph.case_(0):
                k.add(1, 1, (k.total, 1))
                k.condition.fill(5)
            with graph.case_(2):
                pass
            with graph.case_(255):
                k.add(1, 1, (k.total, 255))
        k.add(1, 1, (k.total, 1000))
    values = (0, 1, 2, 5, 6, 255, 256, -1, 5, 0)
    assert [run(graph, k, value) - 1000 for value in values] == [1, 0, 0, 55, 0, 255, 0, 0, 55, 1]
    assert run(graph, k, 5, 4) == 4 * 1055
    switch = graph.nodes[1]
    assert (switch.kind, switch.body, len(switch.bodies)) == ("switch", range(2, 7), 256)
    assert {index: body for index, body in enumerate(switch.bodies) if body} == {
        0: range(4, 6), 5: range(2, 4), 255: range(6, 7),
    }  # fmt: skip
    assert [node.after for node in graph.nodes] == [(), (0,), (1,), (2,), (1,), (4,), (1,), (1, 3, 5, 6)]
    text = graph.debug_dot_str()
    assert 'label="case 5 of 1 switch"' in text and text.count("subgraph") == 3
    assert "n1 -> n4;" in text and "n3 -> n4;" not in text and "n3 -> n7;" in text


def test_branches_nest_and_are_launched_in_captures(gpu: hearth.Device, kernels: Kernels) -> None:
    """A switch in a loop, with conditions and prepared launches in its cases; compared with the program on the host."""
    k = kernels
    with gpu.prepared() as prepared:
        k.add(1, 1, (k.total, 3))
        k.add(1, 1, (k.total, 4))
    with gpu.graph() as child, child.switch_(k.value):
        with child.case_(1):
            k.add(1, 1, (k.total, 1))
        with child.case_(2), child.if_(k.condition):
            prepared.launch(2)
        with child.case_(3):
            with child.switch_(k.condition), child.case_(1):
                k.add(1, 1, (k.total, 500))
            with child.if_(k.total):
                k.add(1, 1, (k.total, 10_000))
            with child.else_():
                k.add(1, 1, (k.total, 20_000))
    with gpu.graph() as parent:
        k.set_to(1, 1, (k.condition, k.value))
        with parent.while_(k.condition):
            k.condition.fill(1)
            child.launch()
            k.count_down(1, 1, (k.value, k.condition))
        with parent.if_(k.total):
            k.add(1, 1, (k.total, 100_000))
        with parent.else_():
            child.launch()

    def on_the_host(value: int) -> int:
        total = 0
        while value > 0:
            if value == 1:
                total += 1
            elif value == 2:
                total += 14
            elif value == 3:
                total += 500
                total += 10_000 if total else 20_000
            value -= 1
        return total + 100_000 if total else total

    assert [run(parent, k, value) for value in range(6)] == [on_the_host(value) for value in range(6)]
    assert len(parent.children) == 2
    assert [node.kind for node in parent.nodes if node.kind == "switch"] == ["switch"] * 4


def test_branches_with_work_on_other_streams(gpu: hearth.Device, kernels: Kernels) -> None:
    """Nodes of another stream follow all bodies, or none."""
    k = kernels
    add_one = common(gpu, "add_one")
    x, side = gpu.zeros(N, np.int32), gpu.stream()
    with gpu.graph() as graph:
        main = gpu.current_stream
        k.set_to(1, 1, (k.condition, k.value))
        side.wait_event(main.record())
        add_one(1, N, (x, SIZE), stream=side)
        with graph.switch_(k.condition):
            with graph.case_(1):
                k.add(1, 1, (k.total, 1))
                k.add(1, 1, (k.total, 1))
            with graph.case_(3):
                k.add(1, 1, (k.total, 3))
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 100))
        with graph.else_():
            k.add(1, 1, (k.total, 200))
        side.wait_event(main.record())
        k.add(1, 1, (k.total, 10), stream=side)
        main.wait_event(side.record())
    assert [run(graph, k, value) for value in (0, 1, 2, 3)] == [210, 112, 110, 113]
    assert (x.get() == 4).all()
    assert graph.nodes[-1].after == (1, 7, 8)


def test_arguments_in_branches_are_replaced(gpu: hearth.Device, kernels: Kernels) -> None:
    k = kernels
    with gpu.graph() as graph:
        with graph.switch_(k.value):
            with graph.case_(1):
                k.add(1, 1, (k.total, 10))
            with graph.case_(2):
                k.add(1, 1, (k.total, 20))
        with graph.if_(k.value):
            pass
        with graph.else_():
            k.add(1, 1, (k.total, 30))
    assert [run(graph, k, value) for value in range(4)] == [30, 10, 20, 0]
    graph.nodes[1].set_args((k.total, 11))
    graph.nodes[4].set_args((k.total, 33))
    assert [run(graph, k, value) for value in range(4)] == [33, 11, 20, 0]
    with pytest.raises(hearth.LaunchError, match="no arguments that can be replaced") as caught:
        graph.nodes[0].set_args((k.value,))
    assert "change the value of the condition" in caught.value.fix


def test_arguments_in_a_body_are_replaced(gpu: hearth.Device, kernels: Kernels) -> None:
    """Launches that were submitted before keep theirs."""
    k = kernels
    with gpu.graph() as graph:
        k.set_to(1, 1, (k.condition, k.value))
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 10))
            k.condition.fill(0)
    assert run(graph, k, 1) == 10
    graph.launch()
    graph.nodes[2].set_args((k.total, 20))
    graph.launch()
    assert int(k.total.get()) == 40
    graph.update(0, (k.condition, k.total))
    assert run(graph, k, 1) == 0
    with pytest.raises(hearth.LaunchError, match="no arguments that can be replaced") as caught:
        graph.nodes[1].set_args((k.condition,))
    assert caught.value.fix


def test_a_graph_with_conditions_is_launched_in_a_capture(gpu: hearth.Device, kernels: Kernels) -> None:
    """Also in the body of another one, where a graph of several streams runs one node after the other."""
    k = kernels
    add_one = common(gpu, "add_one")
    x, side = gpu.zeros(N, np.int32), gpu.stream()
    with gpu.graph() as child:
        k.set_to(1, 1, (k.condition, k.value))
        with child.if_(k.condition):
            k.add(1, 1, (k.total, 1))
    with gpu.graph() as forked:
        main = gpu.current_stream
        side.wait_event(main.record())
        add_one(1, N, (x, SIZE), stream=side)
        k.add(1, 1, (k.total, 5))
        main.wait_event(side.record())
    with gpu.graph() as parent:
        flag = gpu.full((), 1, np.int32)
        child.launch(2)
        with parent.if_(flag):
            forked.launch()
            child.launch()
    assert [run(parent, k, value) for value in (0, 1)] == [5, 8]
    assert (x.get() == 2).all()
    assert parent.children == (range(1, 4), range(4, 7), range(8, 10), range(10, 13))


def test_conditions_with_work_on_other_streams(gpu: hearth.Device, kernels: Kernels) -> None:
    """A node of another stream may follow a body."""
    k = kernels
    add_one = common(gpu, "add_one")
    x, side = gpu.zeros(N, np.int32), gpu.stream()
    with gpu.graph() as graph:
        main = gpu.current_stream
        k.set_to(1, 1, (k.condition, k.value))
        side.wait_event(main.record())
        add_one(1, N, (x, SIZE), stream=side)
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 1))
            k.add(1, 1, (k.total, 1))
        side.wait_event(main.record())
        k.add(1, 1, (k.total, 10), stream=side)
        main.wait_event(side.record())
    assert [run(graph, k, value) for value in (0, 1)] == [10, 12]
    assert (x.get() == 2).all()


def test_an_array_that_only_a_body_fills_is_not_made_valid_by_it(gpu: hearth.Device, kernels: Kernels) -> None:
    """A launch that may leave an invalid array as it is fails with the reason; one that fills it for certain runs."""
    k = kernels
    add_one = common(gpu, "add_one")
    x, stream = gpu.empty(N, np.int32), gpu.stream()
    with gpu.graph() as perhaps:
        with perhaps.if_(k.condition):
            x.fill(1)
        add_one(1, N, (x, SIZE))
    with gpu.graph() as always:
        x.fill(1)
        add_one(1, N, (x, SIZE))
    for graph, valid in ((perhaps, False), (always, True)):
        add_one(1, 1025, (x, SIZE), stream=stream)  # refused: x is invalid
        graph.launch()
        if valid:
            assert (x.get() == 2).all()
        else:
            with pytest.raises(hearth.HearthError) as caught:
                x.get()
            assert "1025" in str([caught.value, *caught.value.failures])
        with pytest.raises(hearth.LaunchError, match="1025"):
            stream.synchronize()


# ---- refusals ----


def test_wrong_conditions_and_places_are_refused(gpu: hearth.Device, kernels: Kernels) -> None:
    k = kernels
    marked = (hearth.read_only(k.condition), hearth.pointer(k.condition))
    with gpu.graph() as graph:
        for wrong in (gpu.zeros(2, np.int32), gpu.zeros((), np.float32), gpu.zeros((), np.int64), 1, None, *marked):
            with pytest.raises(hearth.ArgumentError, match="is not the condition") as caught, graph.if_(wrong):
                pass
            assert "uint32" in caught.value.fix
    with pytest.raises(hearth.LaunchError, match="is not being recorded") as refused, graph.while_(k.condition):
        pass
    assert refused.value.reason == "CAPTURE_INVALID" and refused.value.fix
    with pytest.raises(hearth.LaunchError, match="16 other bodies"), gpu.graph() as deep:
        nest(deep, k, 17)


def test_branches_at_wrong_places_are_refused(gpu: hearth.Device, kernels: Kernels) -> None:
    """The end of the recording names the place and the fix; the stream is usable afterwards."""
    k = kernels

    def else_after_work(graph: hearth.Graph) -> None:
        with graph.if_(k.condition):
            pass
        k.add(1, 1, (k.total, 1))
        with graph.else_():
            pass

    def else_after_an_event(graph: hearth.Graph) -> None:
        with graph.if_(k.condition):
            pass
        gpu.current_stream.record()
        with graph.else_():
            pass

    def else_after_a_loop(graph: hearth.Graph) -> None:
        with graph.while_(k.condition):
            k.add(1, 1, (k.total, 1))
        with graph.else_():
            pass

    def two_elses(graph: hearth.Graph) -> None:
        with graph.if_(k.condition):
            pass
        for _ in range(2):
            with graph.else_():
                pass

    def a_case_alone(graph: hearth.Graph) -> None:
        with graph.case_(1):
            pass

    def a_case_in_a_case(graph: hearth.Graph) -> None:
        with graph.switch_(k.condition), graph.case_(1), graph.case_(2):
            pass

    def a_case_twice(graph: hearth.Graph) -> None:
        with graph.switch_(k.condition):
            for _ in range(2):
                with graph.case_(1):
                    k.add(1, 1, (k.total, 1))

    def work_in_a_switch(graph: hearth.Graph) -> None:
        with graph.switch_(k.condition):
            k.add(1, 1, (k.total, 1))

    def an_if_in_a_switch(graph: hearth.Graph) -> None:
        with graph.switch_(k.condition), graph.if_(k.condition):
            pass

    for record, message in (
        (else_after_work, "no if without an else has ended on this stream directly before the else"),
        (else_after_an_event, "no if without an else has ended"),
        (else_after_a_loop, "no if without an else has ended"),
        (two_elses, "no if without an else has ended"),
        (a_case_alone, "no switch has begun on this stream directly around the case for 1"),
        (a_case_in_a_case, "directly around the case for 2"),
        (a_case_twice, "the switch of node 0 has a case for 1 already"),
        (work_in_a_switch, "in the switch of node 0, but in none of its cases"),
        (an_if_in_a_switch, "in the switch of node 0, but in none of its cases"),
    ):
        with pytest.raises(hearth.LaunchError, match=message) as caught, gpu.graph() as graph:
            record(graph)
        assert caught.value.reason == "CAPTURE_INVALID" and caught.value.fix
    gpu.synchronize()


def nest(graph: hearth.Graph, kernels: Kernels, depth: int) -> None:
    with graph.if_(kernels.condition):
        if depth > 1:
            nest(graph, kernels, depth - 1)


def test_a_body_is_recorded_from_one_stream(gpu: hearth.Device, kernels: Kernels) -> None:
    k, side = kernels, gpu.stream()
    with (
        pytest.raises(hearth.LaunchError, match=r"on another stream, during the body of node 1") as caught,
        gpu.graph() as graph,
    ):
        side.wait_event(gpu.current_stream.record())
        k.add(1, 1, (k.total, 1), stream=side)
        with graph.if_(k.condition):
            k.add(1, 1, (k.total, 1), stream=side)
        gpu.current_stream.wait_event(side.record())
    assert caught.value.fix
    with (
        pytest.raises(hearth.LaunchError, match="event in the body of node 0"),
        gpu.graph() as other,
        other.if_(k.condition),
    ):
        gpu.current_stream.record()
    gpu.synchronize()


def test_an_exception_in_a_body_discards_the_graph(gpu: hearth.Device, kernels: Kernels) -> None:
    k = kernels
    with pytest.raises(ZeroDivisionError), gpu.graph() as graph, graph.if_(k.condition):
        raise ZeroDivisionError
    gpu.synchronize()
    k.total.fill(1)
    assert int(k.total.get()) == 1


# ---- time ----


def test_a_loop_that_never_ends_is_ended_as_an_endless_kernel(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect() as node, daemon.connect() as other:
        gpu = node.device(0)
        k = Kernels(gpu)
        with gpu.graph() as graph:
            k.condition.fill(1)
            with graph.while_(k.condition):
                k.add(1, 1, (k.total, 1))
        gpu.synchronize()
        graph.launch(timeout=0.5)
        with pytest.raises(hearth.HearthError, match="graph"):
            gpu.synchronize(timeout=60)
        again = other.device(0)
        x = again.zeros(N, np.int32)
        assert not x.get().any()


def test_the_time_of_a_loop_is_counted(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        k = Kernels(gpu)
        spin = gpu.RawKernel(
            'extern "C" __global__ void spin(long long ns) {'
            " unsigned long long begin, now;"
            ' asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));'
            ' do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < ns); }'
            if gpu.properties.backend == "cuda"
            else 'extern "C" __global__ void spin(long long ns) { for (; ns > 0; ns -= 1000000) __nanosleep(~0u); }',
            "spin",
        )
        with gpu.graph() as graph:
            left = gpu.full((), 10, np.int32)
            k.condition.fill(1)
            with graph.while_(k.condition):
                spin(1, 1, (np.int64(20_000_000),))
                k.count_down(1, 1, (left, k.condition))
        gpu.synchronize()

        def seconds() -> float:
            return {session.session_id: session.device_seconds for session in node.sessions()}[node.session_id]

        before = seconds()
        graph.launch(2)
        gpu.synchronize()
        wait_until(lambda: seconds() - before >= 0.35, "the device time of the loops")
