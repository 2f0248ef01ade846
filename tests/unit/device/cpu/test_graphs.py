"""Graphs of the CPU backend: the nodes run in order, as they were at the time of the launch."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hearthd.device.backend.compiler import Source
from hearthd.device.backend.graph_nodes import (
    Conditional,
    ConditionalNode,
    CopyNode,
    FillNode,
    GraphBody,
    GraphNode,
    HostCopyNode,
    KernelNode,
)
from hearthd.device.backend.resources import Function
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuStream
from hearthd.shared.device_spec import DeviceSpec

SOURCE = """
extern "C" __global__ void mix(const unsigned* x, unsigned* y, unsigned factor) {
    y[threadIdx.x] = factor * y[threadIdx.x] + x[threadIdx.x];
}
"""
N = 16


@pytest.fixture(scope="module")
def server() -> Iterator[CpuServer]:
    # with the same cache as the other tests, because a process has only one runtime
    made = CpuServer(DeviceSpec(0, "cpu", 0))
    yield made
    made.close()


@pytest.fixture(scope="module")
def mix(server: CpuServer) -> Function:
    return server.load(server.compiler.compile(Source(SOURCE))).function("mix")


@pytest.fixture
def stream(server: CpuServer) -> Iterator[CpuStream]:
    made = server.create_stream()
    yield made
    server.destroy_stream(made)


def finish(server: CpuServer, stream: CpuStream) -> None:
    server.record(stream).wait()


class Memory:
    """Host memory that takes the place of the device's."""

    def __init__(self, values: list[int]) -> None:
        self.array = np.array(values, np.uint32)
        self.address = self.array.ctypes.data


def kernel(mix: Function, x: Memory, y: Memory, factor: int, threads: int = N) -> KernelNode:
    return KernelNode(mix, (1, 1, 1), (threads, 1, 1), 0, struct.pack("<QQI", x.address, y.address, factor))


def test_nodes_run_in_order_as_often_as_launched(server: CpuServer, mix: Function, stream: CpuStream) -> None:
    x, y, z = Memory(list(range(N))), Memory([1] * N), Memory([0] * N)
    nodes: list[GraphNode] = [
        kernel(mix, x, y, 3),
        CopyNode(z.address, y.address, 4 * N),
        FillNode(y.address, struct.pack("<I", 5), 4 * N),
        kernel(mix, x, y, 2, 4),
        CopyNode(z.address, y.address, 4, rows=2, destination_pitch=16, source_pitch=8),
    ]
    graph = server.create_graph(nodes)
    finish(server, stream)
    assert (y.array == 1).all() and not z.array.any(), "making it runs nothing"
    expected_y, expected_z = y.array.copy(), z.array.copy()
    for times in (1, 3):
        for _ in range(times):
            server.launch_graph(graph, stream)
            expected_z = 3 * expected_y + x.array
            expected_y = np.full(N, 5, np.uint32)
            expected_y[:4] = 10 + x.array[:4]
            expected_z[0], expected_z[4] = expected_y[0], expected_y[2]
        finish(server, stream)
        np.testing.assert_array_equal(y.array, expected_y)
        np.testing.assert_array_equal(z.array, expected_z)
    server.destroy_graph(graph)


def test_running_launches_keep_their_arguments(server: CpuServer, mix: Function, stream: CpuStream) -> None:
    x, y, other = Memory([1] * N), Memory([0] * N), Memory([0] * N)
    graph = server.create_graph([kernel(mix, x, y, 1), kernel(mix, x, y, 1)])
    gate = threading.Event()
    stream.submit(gate.wait)
    server.launch_graph(graph, stream)
    server.update_graph(graph, 1, kernel(mix, x, other, 7))
    server.launch_graph(graph, stream)
    server.update_graph(graph, 0, kernel(mix, x, y, 10, 2))
    server.launch_graph(graph, stream)
    server.destroy_graph(graph)
    gate.set()
    finish(server, stream)
    assert y.array.tolist() == [31, 31] + [3] * (N - 2)
    assert (other.array == 8).all()


def test_empty_graph(server: CpuServer, stream: CpuStream) -> None:
    graph = server.create_graph([])
    server.launch_graph(graph, stream)
    finish(server, stream)
    assert stream.failure is None


class Host:
    """Host memory of a copy."""

    def __init__(self, array: np.ndarray) -> None:
        self.address = array.ctypes.data


def test_copies_from_and_to_the_host_are_repeated(server: CpuServer, stream: CpuStream) -> None:
    source, target = np.arange(2 * N, dtype=np.uint32), np.zeros(2 * N, np.uint32)
    x, y = Memory([0] * N), Memory([0] * N)
    nodes: list[GraphNode] = [
        HostCopyNode(True, x.address, Host(source), 8, 4 * N),
        HostCopyNode(True, y.address, Host(source), 0, 4, rows=4, pitch=16),
        HostCopyNode(False, x.address, Host(target), 4, 4 * N),
        HostCopyNode(False, y.address, Host(target), 4 * N + 4, 8, rows=2, pitch=16),
    ]
    graph = server.create_graph(nodes)
    for factor in (1, 3):
        source[:] = np.arange(2 * N) * factor
        server.launch_graph(graph, stream)
        finish(server, stream)
        np.testing.assert_array_equal(x.array, source[2 : 2 + N])
        np.testing.assert_array_equal(y.array[::4], source[:4])
        np.testing.assert_array_equal(target[1 : 1 + N], x.array)
        np.testing.assert_array_equal(target[N + 1 : N + 5], [y.array[0], 0, y.array[4], 0])


def test_conditions_are_evaluated_between_the_nodes(server: CpuServer, mix: Function, stream: CpuStream) -> None:
    """A loop in a condition; the body of the loop ends it after a number of rounds."""
    flags, x, y, rounds = Memory([1, 1, 1, 0]), Memory([1] * N), Memory([0] * N), Memory([0] * N)
    nodes: list[GraphNode] = [
        ConditionalNode(flags.address, Conditional.IF, (GraphBody(0, 3),)),
        ConditionalNode(flags.address + 4, Conditional.WHILE, (GraphBody(0, 2),)),
        kernel(mix, x, y, 1),
        CopyNode(flags.address + 4, flags.address + 8, 8),  # the second round is the last one
        kernel(mix, x, rounds, 1),
    ]
    graph = server.create_graph(nodes)
    server.launch_graph(graph, stream)
    finish(server, stream)
    assert (y.array == 2).all() and (rounds.array == 1).all()
    assert flags.array.tolist() == [1, 0, 0, 0]
    server.launch_graph(graph, stream)
    flags.array[0] = 1
    finish(server, stream)
    assert (y.array == 2).all() and (rounds.array == 2).all()
    server.update_graph(graph, 4, kernel(mix, x, rounds, 0))
    flags.array[:] = 0
    server.launch_graph(graph, stream)
    finish(server, stream)
    assert (y.array == 2).all() and (rounds.array == 1).all()
    assert stream.failure is None


def test_the_value_chooses_one_of_several_bodies(server: CpuServer, mix: Function, stream: CpuStream) -> None:
    """Bodies in another order than their indices; values without a body, among them negative ones, run none."""
    value, one = Memory([0]), Memory([1] * N)
    chosen, otherwise, behind = Memory([0] * N), Memory([0] * N), Memory([0] * N)
    nodes: list[GraphNode] = [
        ConditionalNode(value.address, Conditional.SWITCH, (GraphBody(3, 2), GraphBody(0, 1))),
        kernel(mix, one, chosen, 10),
        kernel(mix, one, chosen, 10),
        kernel(mix, one, chosen, 2),
        ConditionalNode(value.address, Conditional.IF, (GraphBody(0, 0), GraphBody(1, 1))),
        kernel(mix, one, otherwise, 1),
        kernel(mix, one, behind, 1),
    ]
    graph = server.create_graph(nodes)
    expected = 0
    for step, number in enumerate((0, 3, 1, 2, 4, 0xFFFF_FFFF, 3)):
        value.array[0] = number
        server.launch_graph(graph, stream)
        finish(server, stream)
        expected = {0: 2 * expected + 1, 3: 100 * expected + 11}.get(number, expected)
        assert (chosen.array == expected).all() and (otherwise.array == 1).all() and (behind.array == step + 1).all()
    assert stream.failure is None
