"""Launch attributes as the driver sees them: their values in graph nodes, and kernels that overlap by them.

The general tests are `tests/daemon/launch/test_launch_attributes.py`, which run on GPUs with HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from hearthd.device.backend.compiler import Source
from hearthd.device.backend.graph_nodes import (
    AccessWindow,
    FillNode,
    GraphNode,
    KernelNode,
    LaunchAttributes,
    NodeOrder,
)
from hearthd.shared.device_spec import DeviceSpec
from tests.support.gpu.server_calls import finish, get

if TYPE_CHECKING:
    from hearthd.device.cuda.memory import CudaMemory
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Stream

pytestmark = pytest.mark.gpu

SOURCE = r"""
__device__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
// Lets the next kernel begin, runs for some nanoseconds, and then writes: out[0] begin, out[1] end.
extern "C" __global__ void primary(volatile unsigned long long* out, unsigned long long nanoseconds) {
    unsigned long long start = now();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    while (now() - start < nanoseconds) {}
    out[0] = start;
    out[1] = now();
}
// out[2] begin, out[3] the end of the primary kernel as seen after the wait, out[4] the end of the wait.
extern "C" __global__ void secondary(volatile unsigned long long* out) {
    unsigned long long start = now();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    out[3] = out[1];
    out[2] = start;
    out[4] = now();
}
// Does not wait: out[5] begin.
extern "C" __global__ void hasty(volatile unsigned long long* out) { out[5] = now(); }
"""
SPIN_NS = 50_000_000
PROGRAMMATIC = LaunchAttributes(programmatic=True)
SLOTS = 8


class Bench:
    """A stream, the kernels, and eight 64-bit integers of device memory."""

    def __init__(self, server: CudaServer) -> None:
        self.server = server
        self.stream: Stream = server.create_stream()
        module = server.load(server.compiler.compile(Source(SOURCE)))
        self.kernels = {name: module.function(name) for name in ("primary", "secondary", "hasty")}
        self.out: CudaMemory = server.allocate(8 * SLOTS, self.stream)
        self.clear()

    def clear(self) -> None:
        self.server.fill(self.out.address, b"\0", 8 * SLOTS, self.stream)
        finish(self.server, self.stream)

    def params(self, name: str) -> bytes:
        address = struct.pack("<Q", self.out.address)
        return address + struct.pack("<Q", SPIN_NS) if name == "primary" else address

    def launch(self, name: str, attributes: LaunchAttributes | None = None) -> None:
        params = bytearray(self.params(name))
        self.server.launch(self.kernels[name], (1, 1, 1), (1, 1, 1), 0, self.stream, params, attributes)

    def node(self, name: str, attributes: LaunchAttributes | None = None) -> KernelNode:
        return KernelNode(self.kernels[name], (1, 1, 1), (1, 1, 1), 0, self.params(name), attributes)

    def read(self, stream: Stream | None = None) -> tuple[int, ...]:
        data = get(self.server, self.out.address, 8 * SLOTS, stream or self.stream)
        return struct.unpack(f"<{SLOTS}Q", data)

    def close(self) -> None:
        finish(self.server, self.stream)
        self.server.free(self.out, self.stream)
        self.server.destroy_stream(self.stream)


@pytest.fixture
def bench(server: CudaServer) -> Iterator[Bench]:
    made = Bench(server)
    yield made
    made.close()


def needs(bench: Bench, feature: str) -> None:
    if feature not in bench.server.properties.features:
        pytest.skip(f"the device has no {feature}")


def attribute(node: Any, identity: Any) -> Any:
    """Returns an attribute of a captured kernel node."""
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked

    (value,) = checked(driver.cuGraphKernelNodeGetAttribute(node, driver.CUkernelNodeAttrID(int(identity))))
    return value


def kernel_node(graph: Any) -> Any:
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked

    (nodes, *_) = checked(driver.cuGraphGetNodes(graph.captured, 1))
    return nodes[0]  # type: ignore[index]


def test_properties(bench: Bench) -> None:
    properties = bench.server.properties
    major = properties.compute_capability_major
    assert ("access_policy_window" in properties.features) == (major >= 8)
    assert ("programmatic_launch" in properties.features) == (major >= 9)
    assert ("memory_sync_domains" in properties.features) == (major >= 9)
    assert (properties.access_policy_max_window_size > 0) == (major >= 8)
    assert properties.persisting_l2_cache_max_size <= properties.l2_cache_bytes


def test_a_part_of_the_cache_is_set_aside(bench: Bench) -> None:
    needs(bench, "access_policy_window")
    from hearthd.device.cuda.server import CudaServer

    largest = bench.server.properties.persisting_l2_cache_max_size
    try:
        for asked, least in ((1 << 20, 1 << 20), (1 << 40, largest)):
            other = CudaServer(DeviceSpec(0, "cuda", 0, persisting_l2=asked))
            assert least <= other.properties.persisting_l2_cache_size <= largest
            other.close()
    finally:
        from cupy_backends.cuda.api import runtime

        runtime.deviceSetLimit(6, 0)


@pytest.mark.parametrize(("given", "stored"), [(-1, -1), (-1000, None), (1000, 0), (0, 0)])
def test_priorities_are_limited_to_the_devices_range(bench: Bench, given: int, stored: int | None) -> None:
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked

    greatest = int(checked(driver.cuCtxGetStreamPriorityRange())[1])  # type: ignore[call-overload]
    graph = bench.server.create_graph([bench.node("hasty", LaunchAttributes(priority=given))])
    value = attribute(kernel_node(graph), driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY)
    assert value.priority == (greatest if stored is None else stored)
    bench.server.destroy_graph(graph)
    bench.launch("hasty", LaunchAttributes(priority=given))
    assert bench.read()[5]


def test_windows_and_domains_reach_the_driver(bench: Bench) -> None:
    needs(bench, "access_policy_window")
    from cuda.bindings import driver

    window = AccessWindow(bench.out.address + 16, 32, 0.25, 2, 1)
    attributes = LaunchAttributes(window=window, mem_sync_domain=0)
    if "memory_sync_domains" in bench.server.properties.features:
        attributes = LaunchAttributes(window=window, mem_sync_domain=1)
    graph = bench.server.create_graph([bench.node("hasty", attributes)])
    node, ids = kernel_node(graph), driver.CUlaunchAttributeID
    found = attribute(node, ids.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW).accessPolicyWindow
    assert int(found.base_ptr) == window.address and found.num_bytes == 32 and found.hitRatio == 0.25
    assert int(found.hitProp) == 2 and int(found.missProp) == 1
    if attributes.mem_sync_domain:
        assert int(attribute(node, ids.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN).memSyncDomain) == 1
    bench.server.launch_graph(graph, bench.stream)
    assert bench.read()[5]
    bench.server.destroy_graph(graph)
    bench.clear()
    bench.launch("hasty", attributes)
    assert bench.read()[5]


def test_the_largest_window(bench: Bench) -> None:
    needs(bench, "access_policy_window")
    size = bench.server.properties.access_policy_max_window_size
    memory = bench.server.allocate(size, bench.stream)
    bench.launch("hasty", LaunchAttributes(window=AccessWindow(memory.address, size, 1.0, 2, 0)))
    assert bench.read()[5]
    bench.server.free(memory, bench.stream)


def overlap(bench: Bench) -> bool:
    """Returns True if the secondary kernel began before the primary ended; it always saw the primary's result."""
    _, end, second, seen, waited, *_ = bench.read()
    assert seen == end > 0 and waited >= end
    return second < end


def test_a_programmatic_launch_begins_before_its_predecessor_ends(bench: Bench) -> None:
    needs(bench, "programmatic_launch")
    for attributes, overlaps in ((None, False), (PROGRAMMATIC, True), (None, False)):
        bench.clear()
        bench.launch("primary")
        bench.launch("secondary", attributes)
        assert overlap(bench) == overlaps


def test_a_programmatic_launch_after_a_fill(bench: Bench) -> None:
    needs(bench, "programmatic_launch")
    bench.launch("primary")
    bench.server.fill(bench.out.address + 8 * 7, b"\1", 8, bench.stream)
    bench.launch("secondary", PROGRAMMATIC)
    assert not overlap(bench)


def test_work_after_a_programmatic_launch_waits_for_its_predecessors_too(bench: Bench) -> None:
    """A kernel that never waits may end first. Later work still runs after both, so that memory can be reused."""
    needs(bench, "programmatic_launch")
    server, other = bench.server, bench.server.create_stream()
    for use in ("event", "fill", "kernel", "signal"):
        bench.clear()
        bench.launch("primary")
        bench.launch("hasty", PROGRAMMATIC)
        if use == "event":
            finish(server, bench.stream)
            values = bench.read(other)
            assert values[5] and values[1], "the event is done before the primary kernel is"
            assert values[5] < values[1], "the second kernel has not begun early"
        elif use == "fill":
            server.fill(bench.out.address, b"\0", 64, bench.stream)
            assert not any(bench.read()), "the fill ran before the primary kernel ended"
        elif use == "kernel":
            bench.launch("secondary")
            _, end, _, seen, *_ = bench.read()
            assert seen == end > 0, "an ordinary kernel began before the primary kernel ended"
        else:
            event = server.record(bench.stream)
            server.wait(other, event)
            assert bench.read(other)[1], "another stream was not held back"
            server.release_event(event)
    server.destroy_stream(other)


def test_programmatic_launches_in_graphs(bench: Bench) -> None:
    """A chain with edges of programmatic launches: it overlaps, and its nodes can be updated."""
    needs(bench, "programmatic_launch")
    server = bench.server
    graph = server.create_graph([bench.node("primary"), bench.node("secondary", PROGRAMMATIC)])
    for _ in range(2):
        bench.clear()
        server.launch_graph(graph, bench.stream)
        assert overlap(bench)
        server.update_graph(graph, 1, bench.node("secondary", PROGRAMMATIC))
        server.update_graph(graph, 0, bench.node("primary"))
    server.destroy_graph(graph)


def test_programmatic_launches_in_graphs_with_copies_and_lanes(bench: Bench) -> None:
    needs(bench, "programmatic_launch")
    server = bench.server
    fill = FillNode(bench.out.address + 8 * 7, b"\1", 8)
    graph = server.create_graph([bench.node("primary"), fill, bench.node("secondary", PROGRAMMATIC)])
    bench.clear()
    server.launch_graph(graph, bench.stream)
    assert not overlap(bench)
    server.destroy_graph(graph)
    nodes: list[GraphNode] = [fill, bench.node("primary"), bench.node("hasty"), bench.node("secondary", PROGRAMMATIC)]
    orders = [NodeOrder(0, ()), NodeOrder(0, (0,)), NodeOrder(1, (0,)), NodeOrder(0, (1, 2))]
    graph = server.create_graph(nodes, orders)
    bench.clear()
    server.launch_graph(graph, bench.stream)
    overlap(bench)
    assert bench.read()[5]
    server.update_graph(graph, 3, bench.node("secondary", PROGRAMMATIC))
    server.destroy_graph(graph)


def test_all_attributes_together(bench: Bench) -> None:
    needs(bench, "programmatic_launch")
    window = AccessWindow(bench.out.address, 64, 1.0, 2, 1)
    attributes = LaunchAttributes(False, (1, 1, 1), True, -2, 1, window)
    bench.launch("primary", LaunchAttributes(priority=-2, window=window))
    bench.launch("secondary", attributes)
    overlap(bench)
    cooperative = LaunchAttributes(True, None, False, -2, 1, window)
    bench.launch("secondary", cooperative)
    assert bench.read()[4]
