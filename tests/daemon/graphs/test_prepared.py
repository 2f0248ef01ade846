"""Prepared launches: checked together once, and run by one small command any number of times."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import hearth
from hearth_proto.launches import Record, pack
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON, GATE, common, gated, saxpy_works, unload
from tests.support.daemon.raw import KEEP, Execute, Raw, refused

N = 64
SIZE = np.int32(N)


def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Computes the result of `mix` on the host."""
    return (3 * y.astype(np.uint64) + x).astype(np.uint32)


# ---- results ----


def test_a_list_runs_as_its_launches_would(gpu: hearth.Device) -> None:
    mix, add_one = common(gpu, "mix"), common(gpu, "add_one")
    x, y = gpu.asarray(np.arange(N, dtype=np.uint32)), gpu.zeros(N, np.uint32)
    with gpu.prepared() as prepared:
        mix((1,), (N,), (x, y, SIZE))
        add_one[1, N](y, SIZE)
        mix((2,), (N // 2,), (hearth.read_only(x), y, SIZE))
        add_one((1,), (N,), (x, np.int32(3)), 64, iterations=2)
    assert len(prepared) == 5 and "5 launches" in repr(prepared) and prepared
    assert not y.get().any()  # preparing runs nothing
    hosts = np.arange(N, dtype=np.uint32), np.zeros(N, np.uint32)
    for n in (1, 3):
        prepared.launch(n)
        for _ in range(n):
            now = mixed(hosts[0], mixed(hosts[0], hosts[1]) + np.uint32(1))
            hosts = hosts[0] + np.where(np.arange(N) < 3, np.uint32(2), np.uint32(0)), now
        np.testing.assert_array_equal(x.get(), hosts[0])
        np.testing.assert_array_equal(y.get(), hosts[1])


def test_a_list_given_as_one(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    launches = [(add_one, (1,), (N,), (x, SIZE)), [add_one, 1, 8, (x, SIZE), 128]]
    prepared = gpu.prepare(launches)
    prepared.launch(4)
    assert x.get().tolist() == [8] * 8 + [4] * (N - 8)
    for wrong in ([add_one], [(add_one, 1)], [5]):
        with pytest.raises(hearth.ArgumentError, match="launch 0 is"):
            gpu.prepare(wrong)  # type: ignore[arg-type]
    for no_list in (None, 5):
        with pytest.raises(hearth.ArgumentError, match="which is not iterable"):
            gpu.prepare(no_list)  # type: ignore[arg-type]
    assert gpu.current_stream is gpu.default_stream
    nothing = gpu.prepare([])  # a list without entries, as a program may compute it, runs nothing
    nothing.launch(2**63)
    gpu.synchronize(timeout=30)


def test_arguments_that_only_the_list_holds(gpu: hearth.Device) -> None:
    """Arrays that the program drops, before and after the list is made, are kept as long as the list."""
    add_one = common(gpu, "add_one")
    in_use = gpu.memory_usage().bytes_in_use
    y = gpu.zeros(N, np.int32)
    with gpu.prepared() as prepared:
        add_one((1,), (N,), (gpu.zeros(N, np.int32, gpu.default_stream), SIZE))
        gc.collect()
        add_one((1,), (N,), (y, SIZE))
    y.free()
    sentinels = [gpu.full(N, -3, np.int32) for _ in range(4)]
    prepared.launch(10)
    assert all((sentinel.get() == -3).all() for sentinel in sentinels)
    assert gpu.memory_usage().bytes_in_use == in_use + 6 * 4 * N
    prepared.close()
    prepared.close()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == in_use + 4 * 4 * N


def test_a_module_that_only_the_list_holds(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = gpu.zeros(4, np.int32)
    code = 'extern "C" __global__ void seven(int* x) { x[threadIdx.x] += 7; }'
    module = gpu.RawModule(code=code)
    prepared = gpu.prepare([(module.get_function("seven"), 1, 4, (x,))])
    before = daemon.gauge("modules")
    unload(module)  # the client's list keeps its kernels
    gpu.synchronize()
    assert daemon.gauge("modules") == before - 1
    prepared.launch(3)
    assert (x.get() == 21).all()


def test_list_closed_during_a_launch(gpu: hearth.Device) -> None:
    hold = gpu.RawModule(code=GATE)
    kernel, gate = hold.get_function("hold"), hold.get_global("gate", np.int32)
    side = gpu.stream()
    gate.set(np.zeros(1, np.int32), stream=side)
    x = gpu.zeros(N, np.int32)
    with gpu.prepared() as prepared:
        kernel((1,), (1,), (x,))
    prepared.launch(3)
    del prepared
    gc.collect()
    gpu.flush()
    gate.set(np.ones(1, np.int32), stream=side)
    assert x.get()[0] == 3


# ---- order ----


def test_lists_are_ordered_among_streams(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    first, second = gpu.stream(), gpu.stream()
    x, y, flag = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32), gpu.zeros(1, np.int32)
    prepared = gpu.prepare([(add_one, 1, N, (x, SIZE)), (add_one, 1, N, (y, SIZE))])
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(flag, stream=first)
        y.fill(100, stream=first)
        with second:
            prepared.launch()
        y_then = y.copy()
        y.fill(0)
        assert not second.done
        gate.open()
    assert (y_then.get() == 101).all() and (x.get() == 1).all() and not y.get().any()


def test_a_big_count_does_not_delay_other_sessions(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(8, np.int32)
    prepared = gpu.prepare([(add_one, 1, 8, (x, np.int32(8)))] * 10)
    waits: list[float] = []
    over, ready = threading.Event(), threading.Barrier(2)

    def other() -> None:
        with daemon.connect() as node:
            beside = node.device(0).default_stream
            beside.synchronize()
            ready.wait()
            while not over.is_set():
                started = time.monotonic()
                beside.synchronize()
                waits.append(time.monotonic() - started)

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    began = time.monotonic()
    prepared.launch(4_000)
    result = x.get()
    took = time.monotonic() - began
    over.set()
    thread.join()
    assert (result == 40_000).all()
    assert len(waits) >= 3 and sorted(waits)[len(waits) // 2] < took / 3, (took, waits)


def test_a_list_inside_a_graph_becomes_its_nodes(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    prepared = gpu.prepare([(add_one, 1, N, (x, SIZE)), (add_one, 1, 8, (x, SIZE))])
    with gpu.graph() as graph:
        prepared.launch(2)
        add_one((1,), (N,), (x, SIZE))
    assert [node.kernel for node in graph.nodes] == ["add_one"] * 5
    prepared.close()
    graph.launch(10)
    assert x.get().tolist() == [50] * 8 + [30] * (N - 8)
    graph.update(1, (x, np.int32(0)))
    graph.launch()
    assert x.get().tolist() == [54] * 8 + [33] * (N - 8)
    with pytest.raises(hearth.LaunchError, match="the maximum is 4096"), gpu.graph():
        gpu.prepare([(add_one, 1, N, (x, SIZE))]).launch(2**63)


# ---- commands that cannot be prepared ----


def test_all_errors_of_a_list_are_reported_together(gpu: hearth.Device) -> None:
    add_one, saxpy = common(gpu, "add_one"), common(gpu, "saxpy")
    x = gpu.zeros(N, np.int32)
    with pytest.raises(hearth.LaunchError) as caught, gpu.prepared() as prepared:
        add_one((1,), (N,), (x, SIZE))
        add_one((1,), (1025,), (x, SIZE))
        saxpy((1,), (N,), (x, SIZE))
        add_one((1,), (N,), (x, SIZE))
        add_one((1, 65536), (N,), (x, SIZE))
    error = caught.value
    assert error.reason == "LAUNCH_INVALID" and "3 of the 5 launches" in error.message
    for text in ("launch 1: ", "1025 threads", "launch 2: ", "2 arguments are given", "launch 4: ", "grid.y is 65536"):
        assert text in error.message
    assert (error.details["failures"], error.details["index"]) == ("3", "1")
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        prepared.launch()
    gpu.synchronize()
    assert not x.get().any()


def test_only_launches_can_be_prepared(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x, y = gpu.zeros(N, np.int32), gpu.ones(N, np.int32)
    fresh = gpu.RawModule(code=f"// {id(x)}\n{COMMON}")
    prepared = gpu.prepare([(add_one, 1, N, (x, np.int32(0)))])
    for refused_here in (
        lambda: x.copy_from(y),
        lambda: x.fill(3),
        lambda: x.set(np.zeros(N, np.int32)),
        lambda: gpu.zeros(3),
        lambda: gpu.profile().__enter__(),
        x.get,
        gpu.flush,
        prepared.launch,
    ):
        with gpu.prepared():
            add_one((1,), (N,), (x, SIZE))
            with pytest.raises(hearth.LaunchError, match="only launches"):
                refused_here()
    with gpu.prepared() as last:
        fresh.get_function("add_one")((1,), (N,), (x, SIZE))  # creating a module is not a recorded command
    last.launch()
    assert (x.get() == 1).all() and len(last) == 1


def test_launches_on_other_streams_are_refused_instead_of_run(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    side, x = gpu.stream(), gpu.zeros(N, np.int32)
    ready = gpu.prepare([(add_one, 1, N, (x, SIZE))])
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))

    def on_the_current_stream() -> None:
        with side:
            add_one((1,), (N,), (x, SIZE))

    for run in (
        lambda: add_one((1,), (N,), (x, SIZE), stream=side),
        lambda: add_one((1,), (N,), (x, SIZE), stream=gpu.default_stream),
        on_the_current_stream,
        lambda: ready.launch(stream=side),
        lambda: graph.launch(stream=side),
    ):
        with gpu.prepared() as prepared:
            add_one((1,), (N,), (x, SIZE))
            with pytest.raises(hearth.LaunchError, match="launch would run now instead of being collected") as caught:
                run()
            x.fill(0, stream=gpu.default_stream)  # other work can name a stream: it could not be collected
            assert caught.value.reason == "CAPTURE_INVALID" and "prepared.launch(stream=stream)" in caught.value.fix
        assert not x.get().any() and len(prepared) == 1
        prepared.launch(stream=side)
        assert (x.get() == 1).all()


def test_blocks_of_prepared_launches_nest_with_captures(gpu: hearth.Device) -> None:
    """After an inner block, also one that an exception ended, the outer one is in effect, and finally none."""
    add_one = common(gpu, "add_one")
    side, x = gpu.stream(), gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        with gpu.prepared() as prepared:
            with gpu.graph() as inner:
                add_one((1,), (N,), (x, SIZE))
            with pytest.raises(hearth.LaunchError, match="instead of being collected"):
                add_one((1,), (N,), (x, SIZE), stream=side)
            add_one((1,), (N,), (x, SIZE), iterations=2)
        with pytest.raises(ZeroDivisionError), gpu.prepared():
            raise ZeroDivisionError
        with pytest.raises(hearth.LaunchError, match="instead of being recorded"):
            add_one((1,), (N,), (x, SIZE), stream=side)
        add_one((1,), (N,), (x, SIZE))
    assert (len(graph), len(prepared), len(inner)) == (1, 2, 1)
    thread = threading.Thread(target=add_one, args=((1,), (N,), (x, SIZE)))
    with gpu.prepared():
        thread.start()
        thread.join()
    add_one((1,), (N,), (x, SIZE), stream=side)
    side.synchronize()
    assert (x.get() == 2).all()


def test_launches_in_which_the_host_takes_part_are_refused(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x, grid = gpu.zeros(N, np.int32), gpu.ones(3, np.uint32)
    with pytest.raises(hearth.LaunchError) as caught, gpu.prepared():
        add_one((1,), (N,), (x, SIZE), mode="validate")
        add_one(grid, (N,), (x, SIZE))
    assert caught.value.reason == "CAPTURE_INVALID"
    assert 'launch 0: launch of add_one with mode="validate"' in caught.value.message
    assert "launch 1: launch of add_one with a grid from a buffer" in caught.value.message
    with pytest.raises(hearth.ArgumentError, match="the maximum is 65536"), gpu.prepared():
        add_one((1,), (N,), (x, SIZE), iterations=65_537)


def test_an_exception_prepares_nothing(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with pytest.raises(ZeroDivisionError), gpu.prepared() as prepared:
        add_one((1,), (1025,), (x, SIZE))
        raise ZeroDivisionError
    assert gpu.current_stream is gpu.default_stream
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        prepared.launch()
    gpu.synchronize()


def test_a_list_before_its_recording_and_after_its_end(gpu: hearth.Device) -> None:
    prepared = gpu.prepared()
    with pytest.raises(hearth.ArgumentError, match="has not been recorded"):
        prepared.launch()
    with prepared:
        assert "being collected" in repr(prepared)
    for count in (0, -1, 2**64, True, 1.5, "2", np.float64(2)):
        with pytest.raises(hearth.ArgumentError, match=r"it must be an integer from 1 to 2\*\*64 - 1"):
            prepared.launch(count)  # type: ignore[arg-type]
    prepared.launch(np.int64(3))
    prepared.close()
    with pytest.raises(hearth.InvalidHandleError, match="closed"):
        prepared.launch()
    with pytest.raises(hearth.ArgumentError, match="already been recorded"), prepared:
        pass
    gpu.synchronize()


# ---- failures before, limits, losses ----


def test_a_list_is_skipped_where_its_input_failed(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    side = gpu.stream()
    x, y = gpu.asarray(np.arange(N, dtype=np.uint32)), gpu.zeros(N, np.uint32)
    prepared = gpu.prepare([(mix, 1, N, (x, y, SIZE))])
    mix((1,), (1025,), (y, x, SIZE), stream=side)
    prepared.launch()
    with pytest.raises(hearth.HearthError) as caught:
        gpu.default_stream.synchronize()
    assert [failure.reason for failure in caught.value.failures] == ["DEPENDENCY_FAILED"]
    with pytest.raises(hearth.LaunchError, match="1025"):
        side.synchronize()
    prepared.launch()
    np.testing.assert_array_equal(y.get(), np.arange(N))


def test_time_limits_of_prepared_launches(lossy: DaemonProcess) -> None:
    first = lossy.generation()
    with lossy.connect() as node:
        gpu = node.device(0)
        spin, add_one = common(gpu, "spin"), common(gpu, "add_one")
        x = gpu.zeros(N, np.int32)
        with gpu.prepared() as fine:
            add_one((1,), (N,), (x, SIZE), timeout=20)
            add_one((1,), (N,), (x, SIZE))
        fine.launch(200)
        assert (x.get() == 400).all()
        with gpu.prepared() as endless:
            add_one((1,), (N,), (x, SIZE))
            spin((1,), (1,), (np.int64(2**62),), timeout=0.2)
        endless.launch()
        with pytest.raises(hearth.DeviceLostError, match="spin"):
            gpu.synchronize(timeout=30)
        with pytest.raises(hearth.InvalidHandleError, match=f"lost with generation {first}"):
            fine.launch()
        saxpy_works(gpu)


def test_prepared_launches_are_counted(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    prepared = gpu.prepare([(add_one, 1, N, (x, SIZE))] * 3)
    names = ("prepared_launches", "kernel_launches", "graph_launches", "scheduled_threads")
    before = {name: daemon.counter(name, 0) for name in names}
    prepared.launch(7)
    gpu.synchronize()
    gained = {name: daemon.counter(name, 0) - before[name] for name in names}
    assert gained == {"prepared_launches": 21, "kernel_launches": 21, "graph_launches": 0, "scheduled_threads": 21 * N}


# ---- through plain stubs ----


def record(function: int, buffer: int, block: int = 4) -> bytes:
    """Returns a record of `add_one` on the first four numbers of a buffer."""
    layout = bytes.fromhex("0000088008000400")
    params = bytes(8) + (4).to_bytes(4, "little")
    return pack(Record(function, 0, (1, 1, 1), (block, 1, 1), 0, 0, 0, layout, (buffer,), params))


def test_prepared_by_single_calls(raw: Raw) -> None:
    buffer, function = raw.buffer(bytes(16)), raw.function(COMMON, "add_one")
    raw.call("Prepare", c.Prepare(prepared=9, launches=2 * record(function, buffer)))
    raw.call("LaunchPrepared", c.LaunchPrepared(prepared=9, count=4))
    assert np.frombuffer(raw.read(buffer, 16), np.int32).tolist() == [8] * 4
    again = c.Prepare(prepared=9, launches=b"")
    assert refused(raw.call, "Prepare", again).reason == Reason.HANDLE_IN_USE
    assert refused(raw.call, "LaunchPrepared", c.LaunchPrepared(prepared=9)).reason == Reason.INVALID_ARGUMENT
    raw.call("DestroyPrepared", c.DestroyPrepared(prepared=9))
    for rpc, command in (
        ("LaunchPrepared", c.LaunchPrepared(prepared=9, count=1)),
        ("DestroyPrepared", c.DestroyPrepared(prepared=9)),
    ):
        assert refused(raw.call, rpc, command).reason == Reason.INVALID_HANDLE


@pytest.mark.parametrize(
    ("launches", "reason", "what"),
    [
        (b"x", Reason.MALFORMED_MESSAGE, "record 0"),
        (record(7, KEEP) + bytes(64), Reason.MALFORMED_MESSAGE, "record 1"),
        (record(7, KEEP)[:-8], Reason.MALFORMED_MESSAGE, "record 0"),
        (record(7, KEEP) + record(8, KEEP) + record(7, 77), Reason.INVALID_HANDLE, "2 of the 3 launches"),
        (record(7, KEEP) + record(7, KEEP, 4096), Reason.LAUNCH_INVALID, "1 of the 2 launches"),
    ],
    ids=("short", "empty", "cut", "handles", "geometry"),
)
def test_invalid_lists_are_refused_as_a_whole(stream: Execute, launches: bytes, reason: Reason, what: str) -> None:
    """The list is refused as a whole; the handle reports the reason until it is destroyed."""
    stream.batch(
        c.Command(load_module=c.LoadModule(module=6, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
        c.Command(get_function=c.GetFunction(function=7, module=6, name="add_one")),
    )
    prepare = c.Prepare(prepared=9, launches=launches)
    refusal = from_status(stream.ask(c.Command(prepare=prepare)).error)
    assert refusal.reason == reason and what in refusal.message and refusal.fix
    used = from_status(stream.ask(c.Command(launch_prepared=c.LaunchPrepared(prepared=9, count=1))).error)
    assert used.reason == reason and "was not prepared" in used.message
    # The failure of a one-way command is kept for the next sync.
    stream.batch(c.Command(destroy_prepared=c.DestroyPrepared(prepared=9)), c.Command(prepare=prepare))
    assert [failure.command for failure in stream.failures()] == ["prepare"]


def test_a_list_is_used_while_its_kernel_is_being_compiled(stream: Execute) -> None:
    fresh = f"// {time.time_ns()}\n" + COMMON
    stream.batch(
        c.Command(load_module=c.LoadModule(module=6, kind=c.CODE_KIND_CUDA_CPP, code=fresh.encode())),
        c.Command(get_function=c.GetFunction(function=7, module=6, name="add_one")),
        c.Command(prepare=c.Prepare(prepared=9, launches=2 * record(7, KEEP))),
        c.Command(launch_prepared=c.LaunchPrepared(prepared=9, count=300)),
        c.Command(destroy_prepared=c.DestroyPrepared(prepared=9)),
        c.Command(unload_module=c.UnloadModule(module=6)),
    )
    answer = stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16)))
    assert np.frombuffer(answer.read.data, np.int32).tolist() == [600] * 4


def test_a_session_that_closes_with_lists_leaves_nothing(lossy: DaemonProcess) -> None:
    before = lossy.gauge("memory_in_use_bytes")
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.zeros(1 << 18, np.int32)
        prepared = gpu.prepare([(common(gpu, "add_one"), 1, 8, (x, np.int32(8)))])
        x.free()
        prepared.launch(50)
        gpu.flush()
        assert lossy.gauge("memory_in_use_bytes") == before + (1 << 20)
    wait_until(lambda: lossy.gauge("memory_in_use_bytes") == before, "the session's end")
