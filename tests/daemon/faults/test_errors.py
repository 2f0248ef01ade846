"""Errors of one-way commands: each is raised once, in order, by a call that it concerns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hearth
from hearth_proto import reasons
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import number_of
from tests.support.daemon.kernels import common, gated
from tests.support.daemon.raw import Raw

BAD = 'extern "C" __global__ void bad(int* x) { *x = undeclared; }'


def bad_launch(gpu: hearth.Device, x: hearth.DeviceArray, stream: hearth.Stream | None = None) -> None:
    """Submits a launch that fails because of its number of arguments, so that the contents of `x` are invalid."""
    common(gpu, "add_one")((1,), (1,), (x,), stream=stream)


SURFACES = {
    "sync of the device": lambda gpu, stream, other: gpu.synchronize(),
    "sync of the stream": lambda gpu, stream, other: stream.synchronize(),
    "flush": lambda gpu, stream, other: gpu.flush(stream),
    "read": lambda gpu, stream, other: other.get(stream=stream),
    "large read": lambda gpu, stream, other: gpu.zeros(3 << 20, np.uint8, stream).get(stream=stream),
    "end of a profile": lambda gpu, stream, other: gpu.profile(stream).__enter__().__exit__(None, None, None),
}


@pytest.mark.parametrize("where", SURFACES)
def test_an_error_surfaces_once(gpu: hearth.Device, where: str) -> None:
    other, x, stream = gpu.zeros(4, np.int32), gpu.zeros(4, np.int32), gpu.stream()
    gpu.synchronize()
    bad_launch(gpu, x, stream)
    with pytest.raises(hearth.LaunchError, match="1 argument is given") as caught:
        SURFACES[where](gpu, stream, other)
    assert [(failure.command, failure.reason) for failure in caught.value.failures] == [
        ("launch add_one", "LAUNCH_INVALID")
    ]
    for again in SURFACES.values():
        again(gpu, stream, other)


def test_all_errors_in_the_order_of_submission(gpu: hearth.Device) -> None:
    x = gpu.zeros(4, np.int32)
    add_one = common(gpu, "add_one")
    add_one((1,), (2000,), (x, np.int32(1)))
    y = gpu.empty(1 << 50, np.uint8)
    add_one((1,), (1,), (np.uint64(0),))
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    reasons_told = [failure.reason for failure in caught.value.failures]
    assert reasons_told == ["LAUNCH_INVALID", "OUT_OF_MEMORY", "LAUNCH_INVALID"]
    assert "2 more failed" in str(caught.value) and caught.value.fix
    y.free()
    gpu.synchronize()


def test_device_sync_raises_errors_of_several_streams_in_order(gpu: hearth.Device) -> None:
    streams = [gpu.stream() for _ in range(3)]
    x = [gpu.zeros(4, np.int32, stream) for stream in streams]
    for stream, array in zip(streams, x, strict=True):
        bad_launch(gpu, array, stream)
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert [failure.stream for failure in caught.value.failures] == [number_of(stream) for stream in streams]
    for stream in streams:
        stream.synchronize()


def test_dependants_are_skipped_not_run_on_garbage(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x, y, z = (gpu.full(4, value, np.int32) for value in (1, 2, 3))
    gpu.synchronize()
    bad_launch(gpu, x)
    add_one((1,), (4,), (x, np.int32(4)))
    y.copy_from(x)
    add_one((1,), (4,), (y, np.int32(4)))
    add_one((1,), (4,), (z, np.int32(4)))  # depends on no failed command
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert caught.value.failures[0].command == "launch add_one"
    assert (z.get() == 4).all()
    assert (x.get() == 1).all() and (y.get() == 2).all()


def test_a_poisoned_buffer_fails_a_read_from_any_stream(gpu: hearth.Device) -> None:
    x, side = gpu.zeros(4, np.int32), gpu.stream()
    gpu.synchronize()
    bad_launch(gpu, x)
    large = gpu.zeros(3 << 20, np.uint8)
    bad_launch(gpu, large)
    for array in (x, large):
        with pytest.raises(hearth.LaunchError, match="add_one"):
            array.get(stream=side)
    side.synchronize()  # the failure belongs to another stream
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()
    x.get(stream=side)


def test_work_of_another_stream_on_a_poisoned_buffer_is_skipped(gpu: hearth.Device) -> None:
    x, y, side = gpu.zeros(4, np.int32), gpu.full(4, 5, np.int32), gpu.stream()
    gpu.synchronize()
    bad_launch(gpu, x)
    y.copy_from(x, stream=side)
    with pytest.raises(hearth.HearthError) as caught:
        side.synchronize()
    (failure,) = caught.value.failures
    assert failure.reason == "DEPENDENCY_FAILED" and "launch add_one" in failure.message
    with pytest.raises(hearth.LaunchError):
        gpu.default_stream.synchronize()
    assert (y.get() == 5).all()


def test_poisoned_buffer_is_valid_after_a_complete_write(gpu: hearth.Device) -> None:
    good, side = gpu.full(4, 8, np.int32), gpu.stream()
    for renew in (lambda x: x.set(np.full(4, 8, np.int32)), lambda x: x.fill(8), lambda x: x.copy_from(good)):
        x = gpu.zeros(4, np.int32)
        gpu.synchronize()
        bad_launch(gpu, x)
        renew(x)
        assert (x.get(stream=side) == 8).all()
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()


def test_other_streams_and_devices_are_unaffected(gpu: hearth.Device, node: hearth.Node) -> None:
    add_one, fine = common(gpu, "add_one"), gpu.stream()
    x, y = gpu.zeros(4, np.int32), gpu.zeros(4, np.int32, fine)
    bad_launch(gpu, x)
    add_one((1,), (4,), (y, np.int32(4)), stream=fine)
    fine.synchronize()
    assert (y.get(stream=fine) == 1).all()
    for device in node.devices[1:]:
        device.synchronize()
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()


def test_a_failed_module_poisons_the_outputs_of_its_kernels(gpu: hearth.Device) -> None:
    x = gpu.zeros(1, np.int32)
    bad = gpu.RawKernel(BAD, "bad")
    bad((1,), (1,), (x,))
    with pytest.raises(hearth.CompileError, match="bad") as caught:
        x.get()
    assert "undeclared" in caught.value.log
    assert x.item() == 0


def test_errors_are_bounded_and_counted(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    for _ in range(1000):
        add_one((1,), (1,), (np.uint64(0),))
    add_one((1,), (2000,), (np.uint64(0), np.int32(0)))
    with pytest.raises(hearth.LaunchError, match="1000 more") as caught:
        gpu.synchronize()
    failures = caught.value.failures
    assert len(failures) <= 64
    assert len(failures) + sum(failure.merged for failure in failures) == 1001
    assert "1 argument is" in failures[0].message and "2000" in failures[-1].message
    gpu.synchronize()


def test_errors_of_a_collected_stream_are_not_lost(gpu: hearth.Device) -> None:
    x, stream = gpu.zeros(4, np.int32), gpu.stream()
    bad_launch(gpu, x, stream)
    del stream
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()


def test_errors_of_an_abandoned_sync_are_raised_by_the_next(gpu: hearth.Device) -> None:
    told: list[hearth.HearthError] = []

    def ask(what: Callable[[], object]) -> None:
        try:
            what()
        except hearth.LaunchError as error:
            told.append(error)

    with gated(gpu) as gate:
        bad_launch(gpu, gpu.zeros(4, np.int32))
        gate.hold()
        with pytest.raises(hearth.TimeoutError):
            gpu.synchronize(timeout=0.05)
        for what in (gate.open, gpu.synchronize, gpu.synchronize, gpu.synchronize):
            ask(what)
    assert len(told) == 1


def test_error_of_an_answered_command_is_not_reported_again(raw: Raw) -> None:
    with raw.execute() as stream:
        result = stream.ask(c.Command(allocate=c.Allocate(buffer=1, size=1 << 60)))
        assert reasons.from_status(result.error).reason == Reason.OUT_OF_MEMORY
        assert stream.failures() == []


def test_errors_name_the_position_in_the_batch(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(c.Command(fill=c.Fill(buffer=1, size=1, pattern=b"x")), c.Command(free=c.Free(buffers=[2])))
        stream.batch(c.Command(copy=c.Copy(destination=3, source=4)))
        failures = stream.failures()
        places = [(failure.seq, failure.index, failure.command) for failure in failures]
        assert places == [(1, 0, "fill"), (1, 1, "free"), (2, 0, "copy")]
        assert all(reasons.from_status(failure.status).reason == Reason.INVALID_HANDLE for failure in failures)
