"""Dispatch: its results, the state that it leaves, and the errors raised before anything is allocated or run."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import In, InOut, Out
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.dispatches import KERNELS, ONE, SPIN, B, binding, blocks, value
from tests.support.daemon.harness import DaemonProcess, StartDaemon
from tests.support.daemon.kernels import gated
from tests.support.daemon.raw import KEEP, Execute, Raw, refused

Kernel = Callable[[str], hearth.Function]


@pytest.fixture
def kernel(gpu: hearth.Device) -> Kernel:
    """Returns a function that returns a kernel by name."""
    return gpu.RawModule(code=KERNELS).get_function


# ---- results ----


def test_every_lane_is_written(gpu: hearth.Device, kernel: Kernel) -> None:
    for n in (1, 63, 64, 1000, 65_537):
        x = np.arange(1, n + 1, dtype=np.int32)
        (out,) = gpu.dispatch(
            kernel("identity"), blocks(n), 64, ins=[x], outs=[((n,), np.int32)], scalars=[np.int32(n)]
        )
        assert out.flags.writeable and out.dtype == np.int32
        np.testing.assert_array_equal(out, x)
        (out,) = gpu.dispatch(kernel("broadcast"), blocks(n), 64, [np.int32(-7), Out(n, np.int32), np.int32(n)])
        assert out.shape == (n,) and (out == -7).all()


def test_atomics_of_many_blocks(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(4096, dtype=np.uint32)
    (out,) = gpu.dispatch(kernel("total"), 64, 64, [x, Out((), np.uint32), np.int32(4096)])
    assert out.shape == () and out == x.sum()


def test_shared_memory_and_barriers(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(512, dtype=np.int32)
    (out,) = gpu.dispatch(kernel("reverse"), 4, 128, ins=[x], outs=[Out(512, np.int32)], shared_mem=512)
    np.testing.assert_array_equal(out, (x.reshape(4, 128)[:, ::-1] + 1000 * np.arange(4)[:, None]).ravel())


def test_arguments_of_every_kind_in_any_order(gpu: hearth.Device, kernel: Kernel) -> None:
    x, y = np.arange(10, dtype=np.float32), np.ones((2, 5), np.float32)
    on_device = gpu.asarray(y)
    for second in (y, In(y), InOut(y), on_device, hearth.read_only(on_device)):
        *_, out = gpu.dispatch(kernel("axpy"), 1, 64, [0.5, x, second, Out((5, 2), "f4"), np.int32(10)])
        np.testing.assert_array_equal(out, (x / 2 + 1).reshape(5, 2))
    pair = np.array((3, 4.5), np.dtype([("a", "i4"), ("b", "f8")], align=True))
    (out,) = gpu.dispatch(kernel("sizes"), 1, 1, [pair[()], np.int8(-5), Out(3, float)])
    np.testing.assert_array_equal(out, [3, 4.5, -5])


def test_host_arrays_of_any_layout(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    read_only = x.copy()
    read_only.flags.writeable = False
    for given in (x.T, x[:, ::-1], x.astype(">i4"), read_only, np.asfortranarray(x), x[::2]):
        n = given.size
        (out,) = gpu.dispatch(kernel("identity"), 1, 64, [given, Out(given.shape, np.int32), np.int32(n)])
        np.testing.assert_array_equal(out, given)
    with pytest.warns(RuntimeWarning, match="argument 0 is an array of int64"):
        (out,) = gpu.dispatch(kernel("identity"), 1, 64, ins=[[1, 2]], outs=[((4,), np.int32)], scalars=[np.int32(4)])
    np.testing.assert_array_equal(out, [1, 0, 2, 0])  # a list of Python ints has dtype int64


def test_outputs_are_zero_where_nothing_is_written(daemon: DaemonProcess) -> None:
    """The memory was used by another session directly before."""
    with daemon.connect() as earlier, daemon.connect() as node:
        gpu = node.device(0)
        every_other = gpu.RawModule(code=KERNELS).get_function("every_other")
        expected = np.arange(5000, dtype=np.int32) * (np.arange(5000) % 2)
        for _ in range(8):
            trash = [earlier.device(0).full(size, 0xA5, np.uint8) for size in (20_000, 20_480, 100_000)]
            earlier.device(0).synchronize()
            for array in trash:
                array.free()
            earlier.device(0).synchronize()
            (out,) = gpu.dispatch(every_other, blocks(5000), 64, [Out(5000, np.int32), np.int32(5000)])
            np.testing.assert_array_equal(out, expected)


def test_ranges_of_outputs(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(40, dtype=np.int32).reshape(10, 4)
    identity, n = kernel("identity"), np.int32(40)
    for part in (slice(2, 5), slice(3, None), slice(None, 7), slice(-2, None), slice(9, 10), slice(None)):
        (out,) = gpu.dispatch(identity, 1, 64, [x, Out((10, 4), np.int32, range=part), n])
        np.testing.assert_array_equal(out, x[part])
    (out,) = gpu.dispatch(kernel("triple"), 1, 64, [InOut(x.view(np.uint32), range=slice(1, 2)), n])
    np.testing.assert_array_equal(out, 3 * x[1:2])
    for part in (slice(0, 0), slice(10, 10), slice(4, 4)):
        first, second = gpu.dispatch(
            kernel("axpy"),
            1,
            64,
            [1.0, np.ones(4, "f4"), InOut(np.ones(10, "f4"), range=part), Out(4, "f4"), np.int32(4)],
        )
        assert first.shape == (0,) and (second == 2).all()
    for part in (slice(5, 4), slice(0, 11), slice(11, None), slice(-11, None), slice(0, 4, 2)):
        with pytest.raises(hearth.ArgumentError):
            Out((10, 4), np.int32, range=part)
    not_slices_of_integers: list[Any] = [
        slice("a"), slice(1.5, 3), slice(0.0, 3), slice(0, 3, "a"), slice(np.zeros(2), 3), (0, 3), 3, range(3),
    ]  # fmt: skip
    for wrong in not_slices_of_integers:
        with pytest.raises(hearth.ArgumentError, match="must be a slice of the first axis"):
            Out((10, 4), np.int32, range=wrong)
    assert Out((10, 4), np.int32, range=slice(np.int64(-2), None, np.int8(1))).range == (8, 10)


def test_empty_arrays(gpu: hearth.Device, kernel: Kernel) -> None:
    nothing = np.zeros((0, 3), np.int32)
    (out,) = gpu.dispatch(kernel("identity"), 1, 64, ins=[nothing], outs=[((3, 0), "i4")], scalars=[np.int32(0)])
    assert out.shape == (3, 0)
    assert gpu.dispatch(kernel("identity"), 1, 64, [nothing, nothing, np.int32(0)]) == []


def test_iterations(gpu: hearth.Device, kernel: Kernel) -> None:
    """A dispatch makes one upload, n launches and one download; the result 3^n shows that no copies are made in
    between."""
    for n in (1, 2, 7, 2000):
        (out,) = gpu.dispatch(kernel("triple"), 1, 64, [InOut(np.ones(5, np.uint32)), np.int32(5)], iterations=n)
        assert (out == pow(3, n, 1 << 32)).all()
    for n in (0, -1, 2**32, 1.5, True):
        with pytest.raises(hearth.LaunchError, match="iterations"):
            gpu.dispatch(kernel("triple"), 1, 64, [InOut(np.ones(5, np.uint32)), np.int32(5)], iterations=n)  # type: ignore[arg-type]


def test_changed_input_is_returned_as_a_new_array(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(5, dtype=np.uint32)
    (out,) = gpu.dispatch(kernel("triple"), 1, 64, [InOut(x), np.int32(5)])
    np.testing.assert_array_equal(out, [0, 3, 6, 9, 12])
    np.testing.assert_array_equal(x, np.arange(5))
    (same,) = gpu.dispatch(kernel("triple"), 1, 64, [InOut(x), np.int32(5)], out=[x])
    assert same is x
    np.testing.assert_array_equal(x, [0, 3, 6, 9, 12])


def test_arrays_of_the_caller_for_the_outputs(gpu: hearth.Device, kernel: Kernel) -> None:
    x = np.arange(6, dtype=np.float32)
    args: list[Any] = [1.0, x, InOut(x), Out((2, 3), np.float32), np.int32(6)]
    mine = np.full((3, 4), 9, np.float32)
    # neither contiguous nor the whole array
    back, out = gpu.dispatch(kernel("axpy"), 1, 64, args, out=[None, mine.T[1:3]])
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(out, (2 * x).reshape(2, 3))
    np.testing.assert_array_equal(mine, [[9, 0, 6, 9], [9, 2, 8, 9], [9, 4, 10, 9]])
    big_endian = np.zeros((2, 3), ">f4")
    gpu.dispatch(kernel("axpy"), 1, 64, args, out=[None, big_endian])
    np.testing.assert_array_equal(big_endian, (2 * x).reshape(2, 3))


def test_invalid_output_array_leaves_all_arrays_of_the_caller_unchanged(
    gpu: hearth.Device, kernel: Kernel, daemon: DaemonProcess
) -> None:
    x = np.ones(6, np.float32)
    args: list[Any] = [1.0, x, InOut(x), Out((2, 3), np.float32), np.int32(6)]
    good, frozen = np.full(6, 9, np.float32), np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    before = daemon.counter("kernel_launches", 0)
    for bad in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), frozen, [[0.0] * 3] * 2, gpu.zeros((2, 3), np.float32)):
        with pytest.raises(hearth.ArgumentError, match=r"out\[1\]"):
            gpu.dispatch(kernel("axpy"), 1, 64, args, out=[good, bad])  # type: ignore[list-item]
    for wrong in ([good], [good, None, None], good):
        with pytest.raises(hearth.ArgumentError, match="2 outputs"):
            gpu.dispatch(kernel("axpy"), 1, 64, args, out=wrong)  # type: ignore[arg-type]
    with pytest.raises(hearth.LaunchError):  # refused by the daemon
        gpu.dispatch(kernel("axpy"), 1, 4096, args, out=[good, None])
    assert (good == 9).all() and daemon.counter("kernel_launches", 0) == before


# ---- arrays that stay on the device, and the order of commands ----


def test_arrays_on_the_device_are_ordered_like_any_other_use(gpu: hearth.Device, kernel: Kernel) -> None:
    sums = gpu.zeros(100, np.int32)
    ones = np.ones(100, np.int32)
    n = np.int32(100)
    streams = [gpu.stream() for _ in range(3)]
    pending = []
    for step in range(30):
        on = streams[step % 3]
        kernel("accumulate")(2, 64, (gpu.asarray(ones, stream=on), sums, n), stream=on)
        pending.append(gpu.dispatch_async(kernel("accumulate"), 2, 64, [ones * 10, sums, n], stream=streams[step % 2]))
        args: list[Any] = [hearth.read_only(sums), Out(100, np.int32), n]
        (seen,) = gpu.dispatch(kernel("identity"), 2, 64, args, stream=streams[(step + 1) % 3])
        assert (seen == 11 * (step + 1)).all()
    assert all(each.result() == [] for each in pending)
    (part,) = gpu.dispatch(kernel("identity"), 1, 64, [sums[90:], Out(10, np.int32), np.int32(10)])
    assert (part == 330).all() and (sums.get() == 330).all()


def test_dispatch_waits_for_its_stream_only(gpu: hearth.Device, kernel: Kernel) -> None:
    x = gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(x)
        behind = gpu.dispatch_async(kernel("broadcast"), 1, 1, [np.int32(1), Out(1, np.int32), np.int32(1)])
        with gpu.stream():
            (beside,) = gpu.dispatch(kernel("broadcast"), 1, 1, [np.int32(2), Out(1, np.int32), np.int32(1)])
        assert beside == 2 and behind.state == "pending" and not behind.done()
        with pytest.raises(hearth.TimeoutError):
            behind.result(timeout=0.02)
        for invalid in ("x", math.nan, [1]):
            with pytest.raises(hearth.ArgumentError, match="must be a number of seconds"):
                behind.result(timeout=invalid)  # type: ignore[arg-type]
        with pytest.raises(hearth.ArgumentError, match="pending"):
            _ = behind.timing
        gate.open()
        assert behind.result()[0] == 1 and behind.state == "done" and behind.done()


def test_failure_before_dispatch_is_still_reported_by_sync(gpu: hearth.Device, kernel: Kernel) -> None:
    spoiled, sound = gpu.zeros(8, np.int32), gpu.ones(8, np.int32)
    n = np.int32(8)
    gpu.synchronize()
    kernel("broadcast")(1, 4096, (n, spoiled, n))  # too many threads: reported by the next sync
    with pytest.raises(hearth.LaunchError, match="4096"):  # the original error, as a read would raise it
        gpu.dispatch(kernel("identity"), 1, 64, [spoiled, Out(8, np.int32), n])
    (out,) = gpu.dispatch(kernel("identity"), 1, 64, [sound, Out(8, np.int32), n])
    assert (out == 1).all()
    with pytest.raises(hearth.LaunchError, match="4096") as told:
        gpu.synchronize()
    assert len(told.value.failures) == 1, "the dispatch's own failure is not reported twice"
    (out,) = gpu.dispatch(kernel("identity"), 1, 64, [spoiled, Out(8, np.int32), n])
    assert (out == 0).all()


def test_failed_dispatch_names_the_failure_it_depends_on(stream: Execute, raw: Raw) -> None:
    f = raw.function(KERNELS, "identity")
    # outside the buffer, reported later
    stream.batch(c.Command(fill=c.Fill(buffer=KEEP, offset=16, size=16, pattern=b"x")))
    bindings = [value(pointer=c.Argument.Pointer(buffer=KEEP)), binding(B.ROLE_OUTPUT, size=16), value(int32=4)]
    command = c.Command(dispatch=c.Dispatch(function=f, grid=ONE, block=ONE, bindings=bindings))
    refusal = from_status(stream.ask(command).error)
    assert refusal.reason == Reason.DEPENDENCY_FAILED
    assert refusal.details["cause"] == Reason.OUT_OF_BOUNDS and refusal.details["cause_command"] == "fill"
    (failure,) = stream.failures()
    assert failure.command == "fill", "the dispatch's own failure was reported to its caller only"
    assert list(stream.ask(command).dispatch.outputs) == [bytes(16)]


def test_failure_of_a_dispatch_is_raised_to_its_caller_alone(gpu: hearth.Device, kernel: Kernel) -> None:
    x = gpu.zeros(4, np.int32)
    with pytest.raises(hearth.LaunchError):
        gpu.dispatch(kernel("accumulate"), 1, 4096, [np.ones(4, np.int32), x, np.int32(4)])
    broken = gpu.RawModule(code="this is no code").get_function("f")
    with pytest.raises(hearth.CompileError):
        gpu.dispatch(broken, 1, 1, [])
    with pytest.raises(hearth.InvalidHandleError):
        gpu.dispatch(kernel("absent"), 1, 1, [])
    gpu.synchronize()
    assert (x.get() == 0).all()


# ---- refusals ----


def test_invalid_arguments_are_refused_by_the_client(gpu: hearth.Device, kernel: Kernel, node: hearth.Node) -> None:
    f, n, x = kernel("identity"), np.int32(4), np.ones(4, np.int32)
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (hearth.LaunchTypeError, {"args": x}),
        (hearth.LaunchTypeError, {"args": ["text"]}),
        (hearth.LaunchTypeError, {"args": [[1, 2]]}),
        (hearth.LaunchError, {"args": [2**70]}),
        (hearth.ArgumentError, {"args": [x], "ins": [x]}),
        (hearth.LaunchTypeError, {"outs": [(4, 4, 4)]}),
        (hearth.LaunchTypeError, {"outs": [np.float32]}),
        (hearth.DtypeError, {"outs": [(4, 4)]}),
        (hearth.DtypeError, {"ins": [np.array([object()])]}),
        (hearth.DtypeError, {"ins": [[[1], [1, 2]]]}),
        (hearth.ArgumentError, {"outs": [((-1,), np.int32)]}),
        (hearth.ArgumentError, {"outs": [((2**62, 4), np.int32)]}),
        (hearth.LaunchError, {"shared_mem": -1}),
        (hearth.ArgumentError, {"timeout": 0}),
    ]
    for kind, keywords in wrong:
        with pytest.raises(kind):
            gpu.dispatch(f, 1, 1, **keywords)
    with pytest.raises(hearth.LaunchTypeError, match="already"):
        In(gpu.zeros(4))
    for grid, block in ((0, 1), (1, 0), (1.5, 1), ((1, 1, 1, 1), 1)):
        with pytest.raises(hearth.LaunchError):
            gpu.dispatch(f, grid, block, [x, Out(4, np.int32), n])
    freed = gpu.zeros(4, np.int32)
    freed.free()
    with pytest.raises(hearth.InvalidHandleError):
        gpu.dispatch(f, 1, 4, [freed, Out(4, np.int32), n])
    if len(node.devices) > 1:
        elsewhere = node.device(1)
        with pytest.raises(hearth.LaunchError):
            gpu.dispatch(f, 1, 4, [elsewhere.zeros(4, np.int32), Out(4, np.int32), n])
        with pytest.raises(hearth.LaunchError):
            elsewhere.dispatch(f, 1, 4, [x, Out(4, np.int32), n])


def test_arguments_that_do_not_fit_the_kernel(gpu: hearth.Device, kernel: Kernel, daemon: DaemonProcess) -> None:
    x = np.ones(4, np.int32)
    before = daemon.counter("kernel_launches", 0)
    with pytest.raises(hearth.LaunchError, match="2 arguments are given; the kernel has 3"):
        gpu.dispatch(kernel("identity"), 1, 4, ins=[x], outs=[((4,), np.int32)])
    with pytest.raises(hearth.LaunchError, match="argument 2 has 8 bytes; the kernel's parameter has 4") as caught:
        gpu.dispatch(kernel("identity"), (1, 2**30), 2000, [x, Out(4, np.int32), 4.0])
    message = str(caught.value)
    assert "2000" in message and str(2**30) in message, "all errors are reported together"
    assert daemon.counter("kernel_launches", 0) == before


def test_dispatch_in_a_graph_is_refused(gpu: hearth.Device, kernel: Kernel) -> None:
    with gpu.graph():
        for size in (4, 1 << 20):
            with pytest.raises(hearth.LaunchError) as caught:
                gpu.dispatch(kernel("every_other"), 1, 4, [np.zeros(size, np.int32), np.int32(4)])
            assert caught.value.reason == "CAPTURE_INVALID"
    (out,) = gpu.dispatch(kernel("every_other"), 1, 4, [Out(4, np.int32), np.int32(4)])
    np.testing.assert_array_equal(out, [0, 1, 0, 3])


def test_plain_stubs(raw: Raw) -> None:
    f = raw.function(KERNELS, "axpy")
    x = np.arange(8, dtype=np.float32)
    bindings = [
        value(float64=2),
        binding(B.ROLE_INPUT, size=32, data=x.tobytes()),
        binding(B.ROLE_INPUT_OUTPUT, size=32, data=x.tobytes(), range_offset=28),
        binding(B.ROLE_OUTPUT, size=32, range_offset=8, range_size=12),
        value(int32=8),
    ]
    answer = raw.call("Dispatch", c.Dispatch(function=f, grid=ONE, block=c.Dim3(x=8), bindings=bindings))
    assert list(answer.sizes) == [4, 12] and len(answer.outputs) == 2
    np.testing.assert_array_equal(np.frombuffer(answer.outputs[0], np.float32), x[7:])
    np.testing.assert_array_equal(np.frombuffer(answer.outputs[1], np.float32), 3 * x[2:5])
    assert not answer.HasField("kernel_ns")
    assert answer.enqueue_ns > 0 and answer.enqueue_ns + answer.wait_ns <= answer.wall_ns
    buffer = raw.buffer(x.tobytes())
    bindings[1] = value(pointer=c.Argument.Pointer(buffer=buffer, read_only=True))
    again = raw.call("Dispatch", c.Dispatch(function=f, grid=ONE, block=c.Dim3(x=8), bindings=bindings, timed=True))
    assert again.outputs == answer.outputs and again.kernel_ns > 0
    assert again.kernel_ns + again.upload_ns + again.download_ns <= again.wall_ns


def test_all_errors_of_the_bindings_are_reported_together(raw: Raw, daemon: DaemonProcess) -> None:
    f = raw.function(KERNELS, "identity")
    before = [daemon.counter(name, 0) for name in ("kernel_launches", "allocations")]
    bindings = [
        binding(B.ROLE_UNSPECIFIED, size=4),
        binding(77, size=4),
        binding(B.ROLE_VALUE, size=4),
        binding(B.ROLE_INPUT, size=4, data=b"12345"),
        binding(B.ROLE_INPUT, size=4),
        binding(B.ROLE_INPUT, size=4, data=b"1234", upload=9),
        binding(B.ROLE_INPUT, size=4, data=b"1234", range_offset=1, download=3),
        binding(B.ROLE_OUTPUT, size=4, data=b"1234", upload=5),
        binding(B.ROLE_OUTPUT, size=4, value=c.Argument(int32=1)),
        binding(B.ROLE_OUTPUT, size=4, range_offset=5),
        binding(B.ROLE_INPUT_OUTPUT, size=4, data=b"1234", range_offset=2, range_size=3),
        binding(B.ROLE_OUTPUT, size=4, range_offset=2**64 - 1, range_size=2**64 - 1),
        value(pointer=c.Argument.Pointer(buffer=12345)),
        value(tensor_map=777),
    ]
    expected = ("[5..5) of an output of 4", "[2..5) of an output of 4", "buffer 12345", "tensor map 777", "iterations")
    found = ""
    for part in (bindings[:7], bindings[7:]):  # a message has a limited length
        command = c.Dispatch(function=f, grid=ONE, block=ONE, bindings=part, iterations=0)
        refusal = refused(raw.call, "Dispatch", command)
        assert refusal.reason == Reason.INVALID_ARGUMENT and refusal.fix and "identity" in refusal.message
        for index in range(len(part)):
            assert f"binding {index} " in refusal.message or f"binding {index}:" in refusal.message, index
        found += refusal.message
    assert [text for text in expected if text not in found] == []
    for single, reason in (
        (c.Dispatch(function=f, grid=ONE, block=ONE, bindings=bindings[9:10]), Reason.OUT_OF_BOUNDS),
        (c.Dispatch(function=f, grid=ONE, block=ONE, bindings=bindings[12:13]), Reason.INVALID_HANDLE),
        (c.Dispatch(function=f, grid=ONE, block=ONE, iterations=0), Reason.LAUNCH_INVALID),
        (c.Dispatch(function=f), Reason.LAUNCH_INVALID),
        (c.Dispatch(function=f + 100, grid=ONE, block=ONE), Reason.INVALID_HANDLE),
        (c.Dispatch(), Reason.INVALID_HANDLE),
        (
            c.Dispatch(function=f, bindings=[binding(B.ROLE_OUTPUT, size=1 << 19) for _ in range(3)]),
            Reason.MESSAGE_TOO_LARGE,
        ),
    ):
        assert refused(raw.call, "Dispatch", single).reason == reason
    assert [daemon.counter(name, 0) for name in ("kernel_launches", "allocations")] == before


def test_dispatch_without_a_request_number_is_refused(stream: Execute, unharmed: None) -> None:
    stream.batch(c.Command(dispatch=c.Dispatch(function=1, grid=ONE, block=ONE)))
    (failure,) = stream.failures()
    assert failure.command == "dispatch" and "request number" in failure.status.message


# ---- memory ----


def test_more_than_fits_is_refused_before_anything_is_allocated(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"memory_limit": 8 << 20})
    with daemon.connect() as node:
        gpu = node.device(0)
        identity = gpu.RawModule(code=KERNELS).get_function("identity")
        held = gpu.zeros(1 << 20, np.int32)
        gpu.synchronize()

        def held_now() -> tuple[int, ...]:
            usage = gpu.memory_usage()
            return usage.allocations, usage.bytes_in_use, usage.bytes_padding, usage.bytes_reserved

        usage, allocations = held_now(), daemon.counter("allocations", 0)
        # more than the limit, more than is free now, and more than the address space
        for size in (9 << 20, 5 << 20, 1 << 60):
            with pytest.raises(hearth.OutOfMemoryError) as caught:
                gpu.dispatch(identity, 1, 1, [np.zeros(4, "i4"), Out(size, "u1", range=slice(0, 4)), np.int32(4)])
            assert int(caught.value.details["requested"]) >= size and "transient" in caught.value.message
            assert daemon.counter("allocations", 0) == allocations
        assert held_now() == usage
        (out,) = gpu.dispatch(identity, 1, 4, [held, Out(4, np.int32), np.int32(4)])
        assert (out == 0).all()


def test_memory_that_is_about_to_be_freed_is_waited_for(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"memory_limit": 8 << 20})
    with daemon.connect() as node:
        gpu = node.device(0)
        identity = gpu.RawModule(code=KERNELS).get_function("identity")
        # a new source: the free waits until it is compiled
        fresh = f"// {np.random.default_rng().integers(1 << 60)}\n" + SPIN
        for _ in range(3):
            held = gpu.zeros(5 << 20, np.uint8)
            gpu.RawModule(code=fresh).get_function("spin")(1, 1, (np.int64(0), held))
            held.free()
            with gpu.stream():
                args: list[Any] = [np.ones(4, "i4"), Out(5 << 20, "u1", range=slice(0, 4)), np.int32(1)]
                (out,) = gpu.dispatch(identity, 1, 1, args)
            assert bytes(out) == b"\1\0\0\0"


def test_memory_of_dispatches_is_reused(gpu: hearth.Device, kernel: Kernel, daemon: DaemonProcess) -> None:
    x = np.arange(100_000, dtype=np.int32)

    def once() -> None:
        (out,) = gpu.dispatch(
            kernel("identity"), blocks(x.size), 64, [x, Out(x.shape, x.dtype), np.int32(x.size)], iterations=2
        )
        np.testing.assert_array_equal(out, x)

    before = gpu.memory_usage()
    once()
    reserved, streams = gpu.memory_usage().bytes_reserved, daemon.gauge("streams")
    for _ in range(50):
        once()
        assert gpu.memory_usage().bytes_reserved == reserved
    after = gpu.memory_usage()
    assert (after.allocations, after.bytes_in_use, after.bytes_padding) == (
        before.allocations, before.bytes_in_use, before.bytes_padding,
    )  # fmt: skip
    assert daemon.gauge("streams") == streams and daemon.gauge("staging_bytes") == 0


def test_concurrent_dispatches_do_not_mix(gpu: hearth.Device, kernel: Kernel) -> None:
    axpy = kernel("axpy")

    def rounds(seed: int) -> bool:
        random = np.random.default_rng(seed)
        with gpu.stream():
            for _ in range(16):
                n = int(random.integers(1, 5000))
                x, y = random.random(n, np.float32), random.integers(-9, 9, n).astype(np.float32)
                (out,) = gpu.dispatch(axpy, blocks(n), 64, [0.25, x, y, Out(n, "f4"), np.int32(n)])
                if not np.array_equal(out, np.float32(0.25) * x + y):
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rounds, range(8)))
    assert gpu.memory_usage().bytes_in_use == 0


# ---- durations ----


def test_reported_durations_exclude_compile_and_copies(gpu: hearth.Device) -> None:
    """The compile is not included in the kernel's time, nor is a copy, however large."""
    fresh = SPIN + f"// {np.random.default_rng().integers(1 << 60)}"  # in no cache
    spin = gpu.RawModule(code=fresh).get_function("spin")
    ticks = np.int64(20_000_000)

    def run(size: int) -> hearth.DispatchTiming:
        pending = gpu.dispatch_async(spin, 1, 1, [ticks, Out(size, np.uint8)], timed=True)
        (out,) = pending.result()
        assert out[0] == 1 and not out[4:].any()
        return pending.timing

    cold, *small = (run(4) for _ in range(6))
    large = [run(12 << 20) for _ in range(5)]
    for timing in (cold, *small, *large):
        assert timing.upload_ns is not None and timing.kernel_ns is not None and timing.download_ns is not None
        assert 5_000_000 < timing.kernel_ns < 150_000_000
        assert timing.upload_ns + timing.kernel_ns + timing.download_ns <= timing.wall_ns
        assert timing.enqueue_ns + timing.wait_ns <= timing.wall_ns
    # The least of several, because other work on the machine may delay any of them.
    assert min(each.download_ns or 0 for each in large) > min(each.download_ns or 0 for each in small)
    untimed = gpu.dispatch_async(spin, 1, 1, [np.int64(0), Out(4, np.uint8)])
    untimed.result()
    assert (untimed.timing.upload_ns, untimed.timing.kernel_ns, untimed.timing.download_ns) == (None, None, None)
    assert untimed.timing.wall_ns > 0


def test_kernel_time_excludes_waiting_for_other_streams(gpu: hearth.Device, kernel: Kernel) -> None:
    x = gpu.zeros(4, np.int32)
    args: list[Any] = [x, Out(4, np.int32), np.int32(4)]
    gpu.dispatch(kernel("identity"), 1, 4, args)
    with gpu.stream() as other:
        gpu.RawModule(code=SPIN).get_function("spin")(1, 1, (np.int64(200_000_000), x), stream=other)
    pending = gpu.dispatch_async(kernel("identity"), 1, 4, args, timed=True)
    (out,) = pending.result()
    assert out[0] == 1
    assert pending.timing.kernel_ns is not None and pending.timing.kernel_ns < 50_000_000 < pending.timing.wall_ns
