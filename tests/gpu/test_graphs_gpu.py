"""CUDA graphs of `cuda/graphs.py`: the same bytes as direct calls, updates while launches are in flight, and no
blocking call."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Source
from hearthd.device.backend.graph_nodes import (
    BRANCHES,
    Conditional,
    ConditionalNode,
    CopyNode,
    FillNode,
    GraphBody,
    GraphNode,
    HostCopyNode,
    KernelNode,
    LaunchAttributes,
    NodeOrder,
)
from hearthd.device.backend.replay import replay
from hearthd.device.streams.stream_pool import WINDOW, WINDOWS
from tests.support.gpu.settling import finish

if TYPE_CHECKING:
    from hearthd.device.cuda.launch import CudaFunction
    from hearthd.device.cuda.memory import CudaMemory
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Stream

pytestmark = pytest.mark.gpu

SOURCE = r"""
#include <cooperative_groups.h>
extern "C" __global__ void mix(const unsigned* x, unsigned* y, unsigned factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * y[i] + x[i];
}
extern "C" __global__ void count_down(int* left, cudaGraphConditionalHandle handle, int* rounds) {
    *left -= 1;
    *rounds += 1;
    cudaGraphSetConditional(handle, *left > 0);
}
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
extern "C" __global__ void shared(unsigned* y, unsigned words) {
    extern __shared__ unsigned mine[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) mine[i] = i + 1;
    __syncthreads();
    if (threadIdx.x == 0) y[0] += mine[words - 1];
}
// Every block adds to y[0]; when all have, every block adds what it sees to its own place.
extern "C" __global__ void together(unsigned* y) {
    if (threadIdx.x == 0) atomicAdd(y, 1);
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) y[1 + blockIdx.x] += y[0];
}
extern "C" __global__ void clustered(unsigned* y) {
    auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) y[blockIdx.x] += 100 * cluster.num_blocks() + cluster.block_rank();
}
"""
N = 4096
BYTES = 4 * N


class Bench:
    """A stream, the kernels, and memory that is filled and read as arrays of unsigned integers."""

    def __init__(self, server: CudaServer) -> None:
        self.server = server
        self.stream: Stream = server.create_stream()
        module = server.load(server.compiler.compile(Source(SOURCE)))
        self.kernels: dict[str, CudaFunction] = {
            name: module.function(name) for name in ("mix", "spin", "shared", "together", "clustered", "count_down")
        }
        self.memory: list[CudaMemory] = []
        server.load_conditionals()

    def array(self, values: Any) -> int:
        data = np.ascontiguousarray(values, np.uint32)
        memory = self.server.allocate(data.nbytes, self.stream)
        self.memory.append(memory)
        self.put(memory.address, data)
        return memory.address

    def put(self, address: int, data: np.ndarray) -> None:
        host = self.server.allocate_host(data.nbytes)
        host.view[: data.nbytes] = data.tobytes()
        self.server.upload(address, host, 0, data.nbytes, self.stream)
        finish(self.server, self.stream)
        self.server.free_host(host)

    def get(self, address: int, count: int = N) -> np.ndarray:
        host = self.server.allocate_host(4 * count)
        self.server.download(host, 0, address, 4 * count, self.stream)
        finish(self.server, self.stream)
        data = np.frombuffer(bytes(host.view[: 4 * count]), np.uint32)
        self.server.free_host(host)
        return data

    def mix(self, x: int, y: int, factor: int, n: int = N) -> KernelNode:
        return self.node("mix", struct.pack("<QQIi", x, y, factor, n), n // 256 or 1, min(n, 256))

    def node(
        self,
        name: str,
        params: bytes,
        grid: int = 1,
        block: int = 1,
        shared: int = 0,
        attributes: LaunchAttributes | None = None,
    ) -> KernelNode:
        return KernelNode(self.kernels[name], (grid, 1, 1), (block, 1, 1), shared, params, attributes)

    def spin(self, seconds: float) -> KernelNode:
        rate = self.server.properties.clock_rate_khz * 1000
        return self.node("spin", struct.pack("<q", int(seconds * rate)))

    def launch(self, graph: Any, times: int = 1, stream: Stream | None = None) -> None:
        for _ in range(times):
            self.server.launch_graph(graph, stream or self.stream)

    def close(self) -> None:
        finish(self.server, self.stream)
        for memory in self.memory:
            self.server.free(memory, self.stream)
        self.server.destroy_stream(self.stream)


@pytest.fixture
def bench(server: CudaServer) -> Iterator[Bench]:
    made = Bench(server)
    yield made
    made.close()


def program(bench: Bench, x: int, y: int, z: int) -> list[GraphNode]:
    """Returns every kind of node: fills of every pattern, long fills in several pieces, rows and plain ranges."""
    patterns = [bytes([7]), b"\1\2", b"\1\2\3\4", bytes(range(8)), bytes(range(16)), bytes(4), b"ab" * 8]
    nodes: list[GraphNode] = [bench.mix(x, y, 3)]
    for index, pattern in enumerate(patterns):
        nodes.append(FillNode(z + 256 * index, pattern, 256))
        nodes.append(bench.mix(z, y, index + 2, 1024))
    nodes.append(FillNode(z, bytes(range(100, 116)), 4 * BYTES))  # longer than one piece
    nodes.append(CopyNode(z + 64, y, 1024))
    nodes.append(CopyNode(y, z, 100, rows=7, destination_pitch=512, source_pitch=256))
    nodes.append(CopyNode(x, y, BYTES))
    nodes.append(bench.mix(z, y, 5))
    return nodes


def test_a_graph_equals_direct_calls_byte_for_byte(bench: Bench) -> None:
    random = np.random.default_rng(3)
    starts = [random.integers(0, 2**32, size, np.uint32) for size in (N, N, 4 * N)]
    direct, replayed = ([bench.array(start) for start in starts] for _ in range(2))
    graph = bench.server.create_graph(program(bench, *replayed))
    for address, start in zip(replayed, starts, strict=True):
        np.testing.assert_array_equal(bench.get(address, len(start)), start, "making it runs nothing")
    for times in (1, 1, 5):
        bench.launch(graph, times)
        for _ in range(times):
            replay(bench.server, program(bench, *direct), bench.stream)
        for one, other, start in zip(direct, replayed, starts, strict=True):
            np.testing.assert_array_equal(bench.get(one, len(start)), bench.get(other, len(start)))
    bench.put(replayed[0], starts[1])  # changed inputs are used
    bench.put(direct[0], starts[1])
    bench.launch(graph)
    replay(bench.server, program(bench, *direct), bench.stream)
    np.testing.assert_array_equal(bench.get(direct[1]), bench.get(replayed[1]))
    bench.server.destroy_graph(graph)


def test_updates_count_for_later_launches_only(bench: Bench) -> None:
    """Values, buffers and geometry are updated, after fills that consist of several nodes each, while launches are in
    flight."""
    x, y, other, z = (bench.array(values) for values in (np.ones(N), np.zeros(N), np.zeros(N), np.zeros(4 * N)))
    nodes: list[GraphNode] = [
        bench.spin(0.02),
        FillNode(z, bytes(range(16)), 4 * BYTES),
        bench.mix(x, y, 1),
        FillNode(z, bytes(range(8)), 4 * BYTES),
        bench.mix(x, y, 1),
    ]
    graph = bench.server.create_graph(nodes)
    bench.launch(graph)
    bench.server.update_graph(graph, 4, bench.mix(x, other, 10, 512))
    bench.launch(graph)
    bench.server.update_graph(graph, 2, bench.mix(x, y, 100))
    bench.launch(graph)
    assert (bench.get(y) == 301).all()  # ((0 + 1 + 1) + 1) * 100 + 1
    np.testing.assert_array_equal(bench.get(other), [11] * 512 + [0] * (N - 512))
    bench.server.destroy_graph(graph)


def test_updates_of_a_graph_of_one_node_and_of_many(bench: Bench) -> None:
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    single = bench.server.create_graph([bench.mix(x, y, 1)])
    bench.server.update_graph(single, 0, bench.mix(x, y, 1, 256))
    bench.launch(single, 3)
    np.testing.assert_array_equal(bench.get(y), [3] * 256 + [0] * (N - 256))
    many = bench.server.create_graph([bench.mix(x, y, 1) for _ in range(150)])
    for index in range(0, 150, 3):
        bench.server.update_graph(many, index, bench.mix(x, y, 1, 256))
    bench.launch(many, 2)
    np.testing.assert_array_equal(bench.get(y), [303] * 256 + [200] * (N - 256))
    for graph in (single, many):
        bench.server.destroy_graph(graph)
        bench.server.destroy_graph(graph)  # a second call has no effect


def test_much_shared_memory_in_nodes_and_updates(bench: Bench) -> None:
    y = bench.array(np.zeros(N))
    most = bench.server.properties.shared_mem_per_block_optin
    small = bench.node("shared", struct.pack("<QI", y, 10), block=64, shared=40)
    large = bench.node("shared", struct.pack("<QI", y, most // 4), block=64, shared=most)
    graph = bench.server.create_graph([small])
    bench.launch(graph)
    bench.server.update_graph(graph, 0, large)
    bench.launch(graph)
    again = bench.server.create_graph([large, small])
    bench.launch(again)
    assert bench.get(y, 1)[0] == 2 * (10 + most // 4)
    for made in (graph, again):
        bench.server.destroy_graph(made)


def test_cooperative_launches_in_graphs(bench: Bench) -> None:
    """Captured with their attribute: the grid synchronises, also after an update."""
    blocks = bench.server.properties.multiprocessor_count
    y, other = bench.array(np.zeros(N)), bench.array(np.zeros(N))
    cooperative = LaunchAttributes(cooperative=True)
    graph = bench.server.create_graph(
        [bench.node("together", struct.pack("<Q", y), blocks, 64, attributes=cooperative)]
    )
    bench.launch(graph, 2)
    np.testing.assert_array_equal(bench.get(y)[: blocks + 1], [2 * blocks] + [3 * blocks] * blocks)
    bench.server.update_graph(graph, 0, bench.node("together", struct.pack("<Q", other), blocks, 64, 0, cooperative))
    bench.launch(graph)
    np.testing.assert_array_equal(bench.get(other)[: blocks + 1], [blocks] + [blocks] * blocks)
    bench.server.destroy_graph(graph)


def test_clusters_in_graphs(bench: Bench) -> None:
    if "clusters" not in bench.server.properties.features:
        pytest.skip("the device has no clusters")
    y = bench.array(np.zeros(N))
    attributes = LaunchAttributes(cluster=(4, 1, 1))
    graph = bench.server.create_graph([bench.node("clustered", struct.pack("<Q", y), 8, 32, attributes=attributes)])
    bench.launch(graph)
    assert bench.get(y, 8).tolist() == [400, 401, 402, 403] * 2
    bench.server.destroy_graph(graph)


DIAMOND = [NodeOrder(0, ()), NodeOrder(0, (0,)), NodeOrder(1, (0,)), NodeOrder(2, ()), NodeOrder(0, (1, 2, 3))]
"""A node, one after it on each of two lanes, a node on a third lane that follows nothing, and a node after all."""


def test_lanes_of_a_graph_are_ordered_by_events(bench: Bench) -> None:
    """Each node follows its predecessors, also through a fill that consists of several nodes; updates reach the kernel
    of every lane."""
    x, a, b, c, z = (bench.array(np.full(N, value)) for value in (1, 0, 0, 0, 0))
    long = bench.array(np.zeros(4 * N))
    nodes: list[GraphNode] = [
        bench.mix(x, a, 1),
        bench.mix(a, b, 1),
        FillNode(long, bytes(range(16)), 4 * BYTES),
        bench.mix(x, c, 1),
        bench.mix(b, z, 10),
    ]
    graph = bench.server.create_graph(nodes, DIAMOND)
    assert not bench.get(a).any(), "making it runs nothing"
    bench.launch(graph, 3)
    assert (bench.get(a) == 3).all() and (bench.get(b) == 6).all() and (bench.get(c) == 3).all()
    assert (bench.get(z) == (1 * 10 + 3) * 10 + 6).all()
    np.testing.assert_array_equal(bench.get(long, 4 * N), np.tile(np.frombuffer(bytes(range(16)), np.uint32), N))
    bench.server.update_graph(graph, 3, bench.mix(x, c, 100))
    bench.server.update_graph(graph, 4, bench.mix(c, z, 0))
    bench.launch(graph)
    assert (bench.get(c) == 301).all() and (bench.get(b) == 10).all()
    assert (bench.get(z) == 301).all(), "the last node follows the lane that joined nothing before"
    bench.server.destroy_graph(graph)


def test_lanes_run_at_the_same_time(bench: Bench) -> None:
    """Two long kernels on two lanes take as long as one; on one lane they take twice as long."""
    orders = [NodeOrder(0, ()), NodeOrder(1, ())]
    forked = bench.server.create_graph([bench.spin(0.2), bench.spin(0.2)], orders)
    chain = bench.server.create_graph([bench.spin(0.2), bench.spin(0.2)])
    took = []
    for graph in (chain, forked):
        start = bench.server.record(bench.stream, timing=True)
        bench.launch(graph)
        end = bench.server.record(bench.stream, timing=True)
        finish(bench.server, bench.stream, 60.0)
        took.append(bench.server.elapsed_ns(start, end))
        for event in (start, end):
            bench.server.release_event(event)
        bench.server.destroy_graph(graph)
    assert took[1] < 0.75 * took[0], took


def test_lanes_that_cannot_be_captured_harm_nothing(bench: Bench) -> None:
    """The next graph with lanes is created, and uses streams that no invalid capture contains."""
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    most = bench.server.properties.shared_mem_per_block_optin
    bad = bench.node("shared", struct.pack("<QI", y, 1), shared=most + 4)
    orders = [NodeOrder(0, ()), NodeOrder(1, (0,)), NodeOrder(1, (1,)), NodeOrder(0, (0, 2))]
    for _ in range(2):
        with pytest.raises(Refusal):
            bench.server.create_graph([bench.mix(x, y, 1), bench.mix(x, y, 1), bad, bench.mix(x, y, 1)], orders)
    graph = bench.server.create_graph([bench.mix(x, y, 1) for _ in orders], orders)
    bench.launch(graph, 2)
    assert (bench.get(y) == 8).all()
    bench.server.destroy_graph(graph)


def test_a_graph_that_cannot_be_made_harms_nothing(bench: Bench) -> None:
    """The refusal names the node; the next graph is created on the same stream."""
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    most = bench.server.properties.shared_mem_per_block_optin
    too_much = bench.node("shared", struct.pack("<QI", y, 1), shared=most + 4)
    too_many = KernelNode(bench.kernels["mix"], (1, 1, 1), (1025, 1, 1), 0, struct.pack("<QQIi", x, y, 1, N))
    # The driver may detect the second error at the launch, or when it instantiates the captured graph.
    for bad, reasons in (
        (too_much, {Reason.LAUNCH_INVALID}),
        (too_many, {Reason.LAUNCH_FAILED, Reason.CAPTURE_INVALID}),
    ):
        with pytest.raises(Refusal) as caught:
            bench.server.create_graph([bench.mix(x, y, 1), bad, bench.mix(x, y, 1)])
        assert caught.value.reason in reasons and caught.value.fix
    graph = bench.server.create_graph([bench.mix(x, y, 1)])
    bench.launch(graph)
    assert (bench.get(y) == 1).all()
    bench.server.destroy_graph(graph)


def test_an_empty_graph(bench: Bench) -> None:
    graph = bench.server.create_graph([])
    bench.launch(graph, 3)
    finish(bench.server, bench.stream)
    bench.server.destroy_graph(graph)


def test_launches_on_several_streams_are_serialized(bench: Bench) -> None:
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    graph = bench.server.create_graph([bench.mix(x, y, 1) for _ in range(20)])
    streams = [bench.server.create_stream() for _ in range(4)]
    for turn in range(100):
        bench.launch(graph, 1, streams[turn % 4])
    for stream in streams:
        finish(bench.server, stream)
        bench.server.destroy_stream(stream)
    assert (bench.get(y) == 2000).all()
    bench.server.destroy_graph(graph)


def test_making_launching_and_destroying_wait_for_nothing(bench: Bench) -> None:
    """While a kernel runs, and while another thread locks pages."""
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    warm = bench.server.create_graph([bench.mix(x, y, 1)])
    stop = threading.Event()
    locked: list[int] = []

    def lock_pages() -> None:
        from cupy_backends.cuda.api import runtime

        # not freed in the meantime, because that would wait for the device
        while not stop.is_set() and len(locked) < 50:
            locked.append(runtime.hostAlloc(1 << 20, runtime.hostAllocPortable))

    thread = threading.Thread(target=lock_pages)
    thread.start()
    try:
        replay(bench.server, [bench.spin(0.5)], bench.stream)
        started = time.perf_counter()
        bench.launch(warm)
        for _ in range(5):
            graph = bench.server.create_graph([bench.mix(x, y, 1) for _ in range(10)])
            bench.server.update_graph(graph, 3, bench.mix(x, y, 1))
            bench.launch(graph)
            bench.server.destroy_graph(graph)  # in flight: the driver frees it after its end
        took = time.perf_counter() - started
    finally:
        stop.set()
        thread.join()
    assert took < 0.4, f"{took:.3f} s during a kernel of 0.5 s"
    assert (bench.get(y) == 51).all()
    bench.server.destroy_graph(warm)


@pytest.mark.parametrize("nodes", [1, 8, 20, WINDOW, 4 * WINDOW])
def test_as_many_launches_as_a_track_takes_do_not_block(bench: Bench, nodes: int) -> None:
    """Checks `GraphEntry.cost` against the driver's queue: that number of launches may be submitted to a blocked
    stream."""
    x, y = bench.array(np.ones(N)), bench.array(np.zeros(N))
    graph = bench.server.create_graph([bench.mix(x, y, 1, 256) for _ in range(nodes)])
    bench.launch(graph)
    finish(bench.server, bench.stream)
    replay(bench.server, [bench.spin(1.0)], bench.stream)
    count = WINDOW * WINDOWS // min(nodes, WINDOW)
    started = time.perf_counter()
    bench.launch(graph, count)
    took = time.perf_counter() - started
    finish(bench.server, bench.stream, 60.0)  # other tests may use the same GPU
    assert took < 0.5, f"{count} launches of {nodes} nodes took {took:.3f} s after a kernel of 1 s"
    assert (bench.get(y, 256) == (count + 1) * nodes).all()
    bench.server.destroy_graph(graph)


# ---- host memory and conditional nodes ----


def test_copies_from_and_to_page_locked_memory(bench: Bench) -> None:
    """Each launch copies again, ranges and rows."""
    x, y = bench.array(np.zeros(N)), bench.array(np.ones(N))
    host = bench.server.allocate_host(4 * BYTES)
    values = np.frombuffer(host.view, np.uint32)
    values[:] = 0
    nodes: list[GraphNode] = [
        HostCopyNode(True, x, host, 0, BYTES),
        bench.mix(x, y, 2),
        HostCopyNode(False, y, host, BYTES, BYTES),
        HostCopyNode(True, x, host, 2 * BYTES, 64, rows=8, pitch=256),
        HostCopyNode(False, x + 4, host, 3 * BYTES, 32, rows=16, pitch=128),
    ]
    graph = bench.server.create_graph(nodes)
    expected_y = np.ones(N, np.uint32)
    for factor in (1, 7):
        values[:N] = np.arange(N) * factor
        values[2 * N : 2 * N + 128] = np.arange(128) + factor
        bench.launch(graph)
        finish(bench.server, bench.stream)
        expected_y = 2 * expected_y + values[:N]
        np.testing.assert_array_equal(values[N : 2 * N], expected_y)
        expected_x = values[:N].copy()
        for row in range(8):
            expected_x[64 * row : 64 * row + 16] = values[2 * N + 16 * row : 2 * N + 16 * (row + 1)]
        rows = np.concatenate([expected_x[32 * row + 1 : 32 * row + 9] for row in range(16)])
        np.testing.assert_array_equal(values[3 * N : 3 * N + 128], rows)
    bench.server.destroy_graph(graph)
    del values
    bench.server.free_host(host)


def loop(bench: Bench, start: int, left: int, condition: int, rounds: int) -> list[GraphNode]:
    """Returns a loop of as many rounds as the value at `start`, which counts them at `rounds`."""
    return [
        CopyNode(left, start, 4),
        CopyNode(condition, start, 4),
        ConditionalNode(condition, Conditional.WHILE, (GraphBody(0, 1),)),
        bench.node("count_down", struct.pack("<QQQ", left, condition, rounds)),
    ]


@pytest.mark.parametrize("lanes", [False, True], ids=["chain", "lanes"])
def test_loops_and_conditions(bench: Bench, lanes: bool) -> None:
    """A loop in the body of a condition, and a node after it; also as part of a graph of several lanes."""
    start, left, condition, rounds, flag, x, y = (bench.array(np.zeros(256)) for _ in range(7))
    inner = loop(bench, start, left, condition, rounds)
    nodes: list[GraphNode] = [
        FillNode(x, b"\5\0\0\0", 1024),
        ConditionalNode(flag, Conditional.IF, (GraphBody(0, len(inner)),)),
        *inner,
        CopyNode(y, rounds, 4),
    ]
    orders = [NodeOrder(0, (index - 1,) if index else ()) for index in range(len(nodes))]
    if lanes:  # the last node is on another lane, after the last node of the body
        orders[-1] = NodeOrder(1, (len(nodes) - 2,))
    graph = bench.server.create_graph(nodes, orders if lanes else None)
    total = 0
    for value, rounds_wanted in ((0, 3), (1, 0), (1, 1), (7, 200), (1, 12)):
        bench.put(flag, np.array([value], np.uint32))
        bench.put(start, np.array([rounds_wanted], np.uint32))
        bench.launch(graph, 2)
        total += 2 * rounds_wanted if value else 0
        assert bench.get(y, 1)[0] == total and bench.get(rounds, 1)[0] == total
    assert (bench.get(x, 256) == 5).all()
    bench.server.destroy_graph(graph)


def test_loops_in_loops_and_empty_bodies(bench: Bench) -> None:
    start, left, condition, rounds, outer, again = (bench.array(np.zeros(256)) for _ in range(6))
    turns = bench.array(np.zeros(256))
    inner = loop(bench, start, left, condition, rounds)
    nodes: list[GraphNode] = [
        ConditionalNode(again, Conditional.IF, (GraphBody(0, 0),)),
        ConditionalNode(again, Conditional.WHILE, (GraphBody(0, len(inner) + 1),)),
        *inner,
        bench.node("count_down", struct.pack("<QQQ", outer, again, turns)),
        ConditionalNode(again, Conditional.IF, (GraphBody(0, 0),)),
    ]
    graph = bench.server.create_graph(nodes)
    bench.put(start, np.array([5], np.uint32))
    bench.put(outer, np.array([3], np.uint32))
    bench.put(again, np.array([1], np.uint32))
    bench.launch(graph)
    assert (bench.get(rounds, 1)[0], bench.get(turns, 1)[0]) == (15, 3)
    bench.launch(graph)  # the condition is 0
    assert (bench.get(rounds, 1)[0], bench.get(turns, 1)[0]) == (15, 3)
    bench.server.destroy_graph(graph)


@pytest.mark.parametrize("lanes", [False, True], ids=["chain", "lanes"])
def test_switches_and_elses(bench: Bench, lanes: bool) -> None:
    """Bodies in another order than their indices, with gaps and empty ones; also in a graph of several lanes."""
    if BRANCHES not in bench.server.properties.features:
        pytest.skip("the driver has no conditional nodes of several bodies")
    value, flag, chosen, other, x = (bench.array(np.zeros(256)) for _ in range(5))
    one, y = bench.array(np.ones(256)), bench.array(np.zeros(256))
    nodes: list[GraphNode] = [
        FillNode(x, b"\5\0\0\0", 1024),
        ConditionalNode(value, Conditional.SWITCH, (GraphBody(5, 2), GraphBody(2, 0), GraphBody(0, 1))),
        bench.mix(one, chosen, 10, 256),
        bench.mix(one, chosen, 10, 256),
        bench.mix(one, chosen, 2, 256),
        ConditionalNode(flag, Conditional.IF, (GraphBody(0, 1), GraphBody(1, 2))),
        bench.mix(one, other, 3, 256),
        bench.mix(one, other, 7, 256),
        FillNode(flag, b"\1\0\0\0", 4),  # the next launch runs the first body
        ConditionalNode(value, Conditional.IF, (GraphBody(0, 0), GraphBody(1, 1))),
        CopyNode(y, one, 4),
        CopyNode(x, other, 4),
    ]
    orders = [NodeOrder(0, (index - 1,) if index else ()) for index in range(len(nodes))]
    if lanes:  # the last node is on another lane, after the last nodes of both bodies
        orders[-1] = NodeOrder(1, (6, 8))
    graph = bench.server.create_graph(nodes, orders if lanes else None)
    expected, others = 0, 0
    for number, zero in ((0, 1), (5, 0), (1, 0), (2, 1), (4, 0), (6, 1), (0xFFFF_FFFF, 0), (5, 1)):
        bench.put(value, np.array([number], np.uint32))
        bench.put(y, np.array([9], np.uint32))
        if zero:
            bench.put(flag, np.array([0], np.uint32))
        bench.launch(graph)
        expected = {0: 2 * expected + 1, 5: 100 * expected + 11}.get(number, expected) % 2**32
        others = ((7 if zero else 3) * others + 1) % 2**32
        assert (bench.get(chosen, 256) == expected).all() and (bench.get(other, 256) == others).all()
        assert bench.get(x, 2).tolist() == [others, 5]
        assert bench.get(y, 1)[0] == (9 if number else 1)
    bench.server.destroy_graph(graph)


def test_branches_nest(bench: Bench) -> None:
    """A switch in a loop whose value each round changes, and a loop in a case."""
    if BRANCHES not in bench.server.properties.features:
        pytest.skip("the driver has no conditional nodes of several bodies")
    start, left, condition, rounds, outer, again = (bench.array(np.zeros(256)) for _ in range(6))
    turns, one, two = bench.array(np.zeros(256)), bench.array(np.ones(256)), bench.array(np.zeros(256))
    inner = loop(bench, start, left, condition, rounds)
    nodes: list[GraphNode] = [
        ConditionalNode(again, Conditional.WHILE, (GraphBody(0, len(inner) + 3),)),
        ConditionalNode(outer, Conditional.SWITCH, (GraphBody(1, 1), GraphBody(3, len(inner)))),
        bench.mix(one, two, 1, 256),
        *inner,
        bench.node("count_down", struct.pack("<QQQ", outer, again, turns)),
    ]
    graph = bench.server.create_graph(nodes)
    bench.put(start, np.array([5], np.uint32))
    for launches in (1, 2):
        bench.put(outer, np.array([4], np.uint32))
        bench.put(again, np.array([1], np.uint32))
        bench.launch(graph)
        assert bench.get(rounds, 1)[0] == 5 * launches and bench.get(turns, 1)[0] == 4 * launches
        assert (bench.get(two, 256) == launches).all()
    bench.server.destroy_graph(graph)
