"""Graphs: capture, replay, order, the objects that they keep alive, and their end."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from tests.support.daemon.graph_arrays import SIZE, N, mixed, ramp
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import GATE, common, gated, saxpy_works, unload

# ---- capture and replay ----


def test_recording_runs_nothing_and_each_launch_runs_all_nodes(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    x, y, z = ramp(gpu), ramp(gpu, 100), gpu.zeros(N, np.uint32)
    with gpu.graph() as graph:
        mix((1,), (N,), (x, y, SIZE))
        z.copy_from(y)
        x.fill(7)
    assert [(node.kind, node.kernel) for node in graph.nodes] == [("kernel", "mix"), ("copy", ""), ("fill", "")]
    assert len(graph) == 3 and "3 nodes" in repr(graph) and graph
    hosts = np.arange(N, dtype=np.uint32), np.arange(100, 100 + N, dtype=np.uint32)
    np.testing.assert_array_equal(x.get(), hosts[0])
    np.testing.assert_array_equal(y.get(), hosts[1])
    assert not z.get().any()
    graph.launch()
    once = mixed(*hosts)
    np.testing.assert_array_equal(y.get(), once)
    np.testing.assert_array_equal(z.get(), once)
    assert (x.get() == 7).all()
    graph.launch(2)
    np.testing.assert_array_equal(z.get(), mixed(np.full(N, 7, np.uint32), once, 2))


def test_a_replay_equals_direct_launches_and_picks_up_changed_inputs(gpu: hearth.Device) -> None:
    """Byte for byte, twice with the same input, then with other inputs."""
    saxpy = common(gpu, "saxpy")
    random = np.random.default_rng(5)
    x, y, direct = (gpu.zeros(1000, np.float32) for _ in range(3))
    arguments = (4,), (256,)
    with gpu.graph() as graph:
        saxpy(*arguments, (np.float32(0.3), x, y, np.int32(1000)))
        saxpy(*arguments, (np.float32(-1.7), x, y, np.int32(1000)))
    for seed in (1, 1, 2, 3):
        host = np.random.default_rng(seed).standard_normal(1000, np.float32)
        start = random.standard_normal(1000, np.float32)
        x.set(host)
        y.set(start)
        direct.set(start)
        graph.launch()
        for factor in (0.3, -1.7):
            saxpy(*arguments, (np.float32(factor), x, direct, np.int32(1000)))
        assert y.get().tobytes() == direct.get().tobytes()


def test_many_launches_of_many_shapes(gpu: hearth.Device) -> None:
    """150 launches, each with different arguments and a different geometry."""
    add_one = common(gpu, "add_one")
    x = gpu.zeros(150, np.int32)
    with gpu.graph() as graph:
        for index in range(150):
            add_one((index // 64 + 1,), (64,), (x, np.int32(index + 1)))
    assert not x.get().any() and len(graph) == 150
    expected = np.arange(150, 0, -1)
    graph.launch()
    np.testing.assert_array_equal(x.get(), expected)
    graph.launch()
    np.testing.assert_array_equal(x.get(), 2 * expected)
    x.fill(-1000)
    graph.launch()
    np.testing.assert_array_equal(x.get(), expected - 1000)


def test_an_empty_graph_does_nothing(gpu: hearth.Device) -> None:
    x = gpu.zeros(0, np.int32)
    with gpu.graph() as graph:
        x.fill(3)  # a fill of zero elements
    assert len(graph) == 0 and graph.nodes == ()
    graph.launch()
    graph.launch(2**63)
    gpu.synchronize(timeout=30)


def test_iterations_become_separate_nodes(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE), iterations=5)
    assert len(graph) == 5
    graph.update(3, (x, np.int32(0)))
    graph.launch(2)
    assert (x.get() == 8).all()


KINDS = ("mix", "add", "copy", "fill", "part")
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 2)), max_size=12)


def on_host(what: str, hosts: list[np.ndarray], to: int, since: int) -> None:
    """Runs a step of a random program on the host."""
    if what == "part":
        hosts[to][8:16] = hosts[since][24:32].copy()
        return
    hosts[to] = {
        "mix": lambda: mixed(hosts[since], hosts[to]),
        "add": lambda: hosts[to] + np.uint32(1),
        "copy": hosts[since].copy,
        "fill": lambda: np.full(N, since, np.uint32),
    }[what]()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 3))
def test_random_programs_equal_a_sequential_reference(
    gpu: hearth.Device, program: list[tuple[str, int, int]], times: int
) -> None:
    mix, add_one = common(gpu, "mix"), common(gpu, "add_one")
    hosts = [np.arange(k, k + N, dtype=np.uint32) for k in range(3)]
    arrays = [gpu.asarray(host) for host in hosts]

    def on_device(what: str, to: hearth.DeviceArray, since: hearth.DeviceArray, number: int) -> None:
        {
            "mix": lambda: mix((1,), (N,), (since, to, SIZE)),
            "add": lambda: add_one((2,), (N,), (to, SIZE)),
            "copy": lambda: to.copy_from(since),
            "fill": lambda: to.fill(number),
            "part": lambda: to[8:16].copy_from(since[24:32]),
        }[what]()

    with gpu.graph() as graph:
        for what, to, since in program:
            on_device(what, arrays[to], arrays[since], since)
    graph.launch(times)
    for what, to, since in program * times:
        on_host(what, hosts, to, since)
    for host, array in zip(hosts, arrays, strict=True):
        np.testing.assert_array_equal(array.get(), host)


# ---- order ----


def test_launches_are_ordered_like_one_command(gpu: hearth.Device) -> None:
    """Launches run after earlier work on other streams, and before later work, if a buffer is shared."""
    mix = common(gpu, "mix")
    side, third = gpu.stream(), gpu.stream()
    x, y, flag = ramp(gpu), ramp(gpu), gpu.zeros(1, np.int32)
    with gpu.graph() as graph:
        mix((1,), (N,), (x, y, SIZE))
    gpu.synchronize()
    host = np.arange(N, dtype=np.uint32)
    with gated(gpu) as gate:
        gate.hold(flag, stream=side)
        y.fill(1, stream=side)
        graph.launch(stream=third)
        y_now = gpu.empty(N, np.uint32)
        y_now.copy_from(y)  # on the default stream
        y.fill(0)
        assert not third.done
        gate.open()
    np.testing.assert_array_equal(y_now.get(), mixed(host, np.ones(N, np.uint32)))
    assert not y.get().any()


def test_launches_of_one_graph_on_several_streams(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
    streams = [gpu.stream() for _ in range(4)]
    for turn in range(40):
        graph.launch(3, streams[turn % 4])
    with streams[2]:
        graph.launch(3)
    assert (x.get() == 123).all()


def test_graph_does_not_block_other_streams(gpu: hearth.Device) -> None:
    busy = gpu.stream()
    x = gpu.zeros(N, np.int32)
    hold = gpu.RawModule(code=GATE)
    kernel, gate = hold.get_function("hold"), hold.get_global("gate", np.int32)
    side = gpu.stream()
    gate.set(np.zeros(1, np.int32), stream=side)
    saxpy_works(gpu)
    with gpu.graph() as graph:
        kernel((1,), (1,), (x,))
    add_one = common(gpu, "add_one")
    assert add_one.num_regs >= 0  # waits until the module is loaded, which on a GPU waits for running kernels
    graph.launch(stream=busy)
    other = gpu.zeros(1, np.int32)
    add_one((1,), (1,), (other, np.int32(1)))
    assert other.item() == 1
    assert not busy.done
    gate.set(np.ones(1, np.int32), stream=side)
    busy.synchronize(timeout=30)
    assert x.get()[0] == 1


def test_ten_thousand_launches_delay_no_other_session(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """The launches are submitted as the device completes earlier ones, with other sessions' commands in between."""
    add_one = common(gpu, "add_one")
    x = gpu.zeros(8, np.int32)
    with gpu.graph() as graph:
        for _ in range(10):
            add_one((1,), (8,), (x, np.int32(8)))
    waits: list[float] = []
    over = threading.Event()

    def other() -> None:
        with daemon.connect() as node:
            beside = node.device(0).default_stream
            beside.synchronize()
            ready.wait()
            while not over.is_set():
                started = time.monotonic()
                beside.synchronize()
                waits.append(time.monotonic() - started)

    ready = threading.Barrier(2)
    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    began = time.monotonic()
    graph.launch(10_000)
    result = x.get()
    took = time.monotonic() - began
    over.set()
    thread.join()
    assert (result == 100_000).all()
    # Answers arrive throughout, and not only at the end.
    assert len(waits) >= 5 and sorted(waits)[len(waits) // 2] < took / 5, (took, waits)


# ---- objects that a graph keeps alive ----


def test_freed_buffers_live_as_long_as_the_graph(gpu: hearth.Device) -> None:
    """Later allocations are placed elsewhere, so that no launch of the graph writes to them."""
    mix = common(gpu, "mix")
    x, y = ramp(gpu), gpu.zeros(N, np.uint32)
    between = [gpu.zeros(N, np.uint32) for _ in range(8)]
    with gpu.graph() as graph:
        source = x
        for middle in between:
            middle.fill(0)
            mix((1,), (N,), (source, middle, SIZE))
            source = middle
        y.copy_from(source)
    in_use = gpu.memory_usage()
    for middle in between:
        middle.free()
    sentinels = [gpu.full(N, 1000 + index, np.uint32) for index in range(8)]
    gpu.synchronize()
    after = gpu.memory_usage()
    assert after.bytes_in_use == in_use.bytes_in_use + 8 * 4 * N
    assert after.allocations == in_use.allocations + 8
    graph.launch(3)
    np.testing.assert_array_equal(y.get(), np.arange(N))
    for index, sentinel in enumerate(sentinels):
        assert (sentinel.get() == 1000 + index).all()
    graph.close()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == in_use.bytes_in_use


def test_unloaded_modules_live_as_long_as_the_graph(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    code = """
    __device__ int step = 3;
    extern "C" __global__ void stride(int* x) { x[threadIdx.x] += step; }
    """
    module = gpu.RawModule(code=code)
    x, kernel, step = gpu.zeros(4, np.int32), module.get_function("stride"), module.get_global("step", np.int32)
    with gpu.graph() as graph:
        kernel((1,), (4,), (x,))
        step.fill(10)  # a variable of a module in a graph keeps the module loaded, too
    graph.launch()
    assert (x.get() == 3).all()
    before = daemon.gauge("modules")
    del step
    unload(module)  # the client's graph keeps the kernel, so that the graph can be updated
    gpu.synchronize()
    assert daemon.gauge("modules") == before - 1
    graph.launch(2)
    assert (x.get() == 23).all()
    graph.close()
    gpu.synchronize()


def test_graph_closed_during_a_launch(gpu: hearth.Device) -> None:
    hold = gpu.RawModule(code=GATE)
    kernel, gate = hold.get_function("hold"), hold.get_global("gate", np.int32)
    side = gpu.stream()
    gate.set(np.zeros(1, np.int32), stream=side)
    x, y = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        kernel((1,), (1,), (x,))
        y.copy_from(x)
    in_use = gpu.memory_usage().bytes_in_use
    graph.launch(2)
    graph.close()
    graph.close()
    x.free()
    gpu.flush()
    sentinels = [gpu.full(N, -7, np.int32, side) for _ in range(8)]
    gate.set(np.ones(1, np.int32), stream=side)
    assert y.get()[0] == 2
    assert all((sentinel.get() == -7).all() for sentinel in sentinels)
    assert gpu.memory_usage().bytes_in_use == in_use + 7 * 4 * N


def test_a_session_that_closes_with_graphs_leaves_nothing(lossy: DaemonProcess) -> None:
    before = lossy.gauge("memory_in_use_bytes")
    graphs = lossy.gauge("graphs")
    with lossy.connect() as node:
        gpu = node.device(0)
        add_one = common(gpu, "add_one")
        x = gpu.zeros(1 << 20, np.int32)
        with gpu.graph() as graph:
            add_one((1,), (8,), (x, np.int32(8)))
        x.free()
        graph.launch(100)
        open_one = gpu.graph()
        open_one.__enter__()  # a graph that is still being captured
        add_one((1,), (8,), (gpu.empty(8, np.int32, gpu.default_stream), np.int32(8)))
        assert gpu.memory_usage().bytes_in_use >= 4 << 20
        assert lossy.gauge("graphs") == graphs + 2
    wait_until(lambda: lossy.gauge("memory_in_use_bytes") == before and lossy.gauge("graphs") == graphs, "its end")
    open_one.__exit__(ValueError, ValueError(), None)  # its stream is no longer the current one
    with lossy.connect() as node:
        saxpy_works(node.device(0))


def test_unreferenced_graphs_are_destroyed(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    in_use = gpu.memory_usage().bytes_in_use
    for _ in range(5):
        x = gpu.zeros(N, np.int32)
        with gpu.graph() as graph:
            add_one((1,), (N,), (x, SIZE))
        graph.launch()
    del x, graph
    gc.collect()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == in_use


# ---- failures before a launch, losses after it ----


def test_a_launch_is_skipped_where_its_input_failed(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    side = gpu.stream()
    x, y, z = ramp(gpu), gpu.zeros(N, np.uint32), gpu.zeros(N, np.uint32)
    with gpu.graph() as graph:
        mix((1,), (N,), (x, y, SIZE))
        z.copy_from(y)
    # fails, so the contents of x are invalid until the failure has been reported
    mix((1,), (1025,), (y, x, SIZE), stream=side)
    graph.launch()
    with pytest.raises(hearth.HearthError) as caught:
        z.get()
    assert [failure.reason for failure in caught.value.failures] == ["DEPENDENCY_FAILED"]
    with pytest.raises(hearth.LaunchError, match="1025"):
        side.synchronize()
    graph.launch()
    np.testing.assert_array_equal(z.get(), np.arange(N))


def test_graph_may_overwrite_invalid_buffer(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    side = gpu.stream()
    x, y = ramp(gpu), gpu.zeros(N, np.uint32)
    with gpu.graph() as graph:
        y.fill(1)
        mix((1,), (N,), (x, y, SIZE))
    mix((1,), (1025,), (hearth.read_only(x), y, SIZE), stream=side)
    graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(3, N + 3))
    with pytest.raises(hearth.LaunchError, match="1025"):
        side.synchronize()


def test_time_limits_and_losses(start_daemon: StartDaemon) -> None:
    """The time limit applies to each launch of the graph. A graph is lost with its device, and can be captured
    again."""
    daemon = start_daemon(launch={"timeout": "2s"})
    with daemon.connect() as node:
        gpu = node.device(0)
        spin, add_one = common(gpu, "spin"), common(gpu, "add_one")
        x = gpu.zeros(N, np.int32)
        with gpu.graph() as fine:
            add_one((1,), (N,), (x, SIZE))
        fine.launch(300, timeout=30)  # in total they may take longer
        assert (x.get() == 300).all()
        with gpu.graph() as endless:
            spin((1,), (1,), (np.int64(2**62),))
        endless.launch(timeout=0.2)
        with pytest.raises(hearth.DeviceLostError, match="graph") as caught:
            gpu.synchronize(timeout=30)
        assert "spin" in caught.value.details["in_flight"]
        for graph in (fine, endless):
            with pytest.raises(hearth.InvalidHandleError, match="lost with generation 1") as lost:
                graph.launch()
            assert "record it again" in lost.value.fix and "lost" in repr(graph)
        with pytest.raises(hearth.InvalidHandleError, match="lost"):
            fine.update(0, (x, SIZE))
        x = gpu.zeros(N, np.int32)
        with gpu.graph() as again:
            add_one((1,), (N,), (x, SIZE))
        again.launch(5)
        assert (x.get() == 5).all()


def test_a_device_lost_while_a_graph_is_recorded(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        add_one, spin = common(gpu, "add_one"), common(gpu, "spin")
        x = gpu.zeros(N, np.int32)
        with pytest.raises(hearth.HearthError), gpu.graph(mode="relaxed"):
            add_one((1,), (N,), (x, SIZE))
            spin((1,), (1,), (np.int64(2**62),), stream=gpu.default_stream, timeout=0.1)
            with pytest.raises(hearth.DeviceLostError):
                gpu.default_stream.synchronize(timeout=30)
            wait_until(lambda: gpu.state == "serving", "the device's return")
            saxpy = common(gpu, "saxpy")
            saxpy((1,), (N,), (np.float32(1), x, x, SIZE))
        wait_until(lambda: gpu.state == "serving", "the device's return")
        saxpy_works(gpu)


# ---- descriptions of graphs ----


def test_launches_of_graphs_are_counted_apart(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        for _ in range(3):
            add_one((1,), (N,), (x, SIZE))
    gpu.synchronize()
    names = ("graph_launches", "kernel_launches", "sync_points", "device_to_host_bytes")
    before = {name: daemon.counter(name, 0) for name in names}
    graph.launch()
    gpu.synchronize()
    assert (x.get() == 3).all()
    gained = {name: daemon.counter(name, 0) - before[name] for name in names}
    assert gained == {"graph_launches": 1, "kernel_launches": 0, "sync_points": 1, "device_to_host_bytes": 4 * N}


def test_a_graph_can_be_profiled(gpu: hearth.Device) -> None:
    spin = common(gpu, "spin")
    with gpu.graph() as graph:
        spin((1,), (1,), (np.int64(1_000_000),))
    graph.launch()
    gpu.synchronize()
    with gpu.profile() as one:
        graph.launch()
    with gpu.profile() as many:
        graph.launch(20)
    assert 0 < one.device_ns < many.device_ns


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "3", 2**64])
def test_invalid_counts_are_refused(gpu: hearth.Device, n: object) -> None:
    with gpu.graph() as graph:
        pass
    with pytest.raises(hearth.ArgumentError, match=r"from 1 to 2\*\*64 - 1"):
        graph.launch(n)  # type: ignore[arg-type]
    with pytest.raises(hearth.ArgumentError, match="timeout"):
        graph.launch(timeout=0)


def test_a_graph_before_its_recording_and_after_its_end(gpu: hearth.Device) -> None:
    graph = gpu.graph()
    with pytest.raises(hearth.ArgumentError, match="has not been recorded"):
        graph.launch()
    assert "not recorded" in repr(graph)
    with graph:
        assert "being recorded" in repr(graph)
    graph.close()
    assert "closed" in repr(graph)
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        graph.launch()
    with pytest.raises(hearth.ArgumentError, match="already been recorded"), graph:
        pass
    gpu.synchronize()
