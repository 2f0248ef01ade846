"""Profiles: device time of a section of work, with profiles that nest and overlap."""

from __future__ import annotations

import os
import signal
import time
import uuid

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import connection_of, number_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import common, described, gated
from tests.support.daemon.raw import Raw, refused
from tests.support.timing import LATE

HELD = 0.05


def hold_for(gpu: hearth.Device, seconds: float = HELD, stream: hearth.Stream | None = None) -> None:
    """Runs a kernel for at least `seconds` on the device, released by the host."""
    with gated(gpu) as gate:
        started = gpu.event()
        (stream or gpu.current_stream).record(started)
        gate.hold(stream=stream)
        started.synchronize()
        time.sleep(seconds)  # the duration that is measured


def test_device_time_is_measured_on_the_device(gpu: hearth.Device) -> None:
    hold_for(gpu, 0)  # compiles and loads the kernel
    began = time.perf_counter()
    with gpu.profile() as profile:
        hold_for(gpu)
    took = (time.perf_counter() - began) * 1e9
    assert HELD * 1e9 * 0.9 <= profile.device_ns <= profile.wall_ns * 1.01
    assert profile.wall_ns <= took * 1.5 + 50e6


def test_empty_profile_has_almost_no_duration(gpu: hearth.Device) -> None:
    gpu.synchronize()
    with gpu.profile() as profile:
        pass
    assert 0 <= profile.device_ns < LATE * 1e9 and 0 < profile.wall_ns < LATE * 1e9


def test_nested(gpu: hearth.Device) -> None:
    hold_for(gpu, 0)
    with gpu.profile() as outer:
        hold_for(gpu)
        with gpu.profile() as inner:
            hold_for(gpu)
    assert inner.device_ns >= HELD * 1e9 * 0.9
    assert outer.device_ns >= inner.device_ns + HELD * 1e9 * 0.9


def test_overlapping(gpu: hearth.Device) -> None:
    hold_for(gpu, 0)
    first, second = gpu.profile(), gpu.profile()
    first.__enter__()
    hold_for(gpu)
    second.__enter__()
    hold_for(gpu)
    first.__exit__(None, None, None)
    hold_for(gpu)
    second.__exit__(None, None, None)
    for profile in (first, second):
        assert 2 * HELD * 1e9 * 0.9 <= profile.device_ns <= profile.wall_ns * 1.01


def test_streams_are_timed_apart(gpu: hearth.Device) -> None:
    busy, idle = gpu.stream(), gpu.stream()
    hold_for(gpu, 0)
    with gpu.profile(busy) as long, gpu.profile(idle) as short:
        hold_for(gpu, stream=busy)
    assert long.device_ns >= HELD * 1e9 * 0.9
    assert short.device_ns < long.device_ns
    with gpu.stream(), gpu.profile() as current:
        hold_for(gpu)
    assert current.device_ns >= HELD * 1e9 * 0.9


def test_a_compile_is_not_counted(gpu: hearth.Device) -> None:
    x = gpu.zeros(8, np.int32)
    gpu.synchronize()
    code = f'// {uuid.uuid4()}\nextern "C" __global__ void f(int* x) {{ x[threadIdx.x] += 1; }}'
    with gpu.profile() as profile:
        module = gpu.RawModule(code=code)
        module.get_function("f")((1,), (8,), (x,))
    compiled = described(module).compile_ns
    assert compiled > 20e6, "a compile from scratch"
    assert profile.device_ns < compiled / 2 and profile.wall_ns > compiled / 2


def test_error_fails_only_the_profile(gpu: hearth.Device) -> None:
    add_one, x = common(gpu, "add_one"), gpu.zeros(1, np.int32)
    with pytest.raises(hearth.LaunchError) as caught, gpu.profile() as profile:
        add_one((1,), (1,), (x, np.int32(1)))
        add_one((1,), (1,), (np.uint64(0),))
    assert len(caught.value.failures) == 1
    with pytest.raises(hearth.ArgumentError, match="not ended"):
        print(profile.device_ns)
    gpu.synchronize()
    assert x.item() == 1
    with gpu.profile() as profile:
        add_one((1,), (1,), (x, np.int32(1)))
    assert profile.device_ns > 0 and x.item() == 2


def test_exception_inside_a_profile_is_raised_unchanged(gpu: hearth.Device) -> None:
    with pytest.raises(ZeroDivisionError), gpu.profile():
        1 / 0  # noqa: B018
    gpu.synchronize()


def bad_launch(gpu: hearth.Device, stream: hearth.Stream | None = None) -> None:
    """Submits a launch that fails because of its number of arguments."""
    common(gpu, "add_one")((1,), (1,), (np.uint64(0),), stream=stream)


def test_failing_compile_is_raised_by_the_profile_only(gpu: hearth.Device) -> None:
    """Same behaviour as CubeCL: the profile consumes the error, the next flush succeeds, and the device works."""
    x = gpu.zeros(1, np.int32)
    with pytest.raises(hearth.CompileError, match="undeclared"), gpu.profile():
        gpu.RawKernel('extern "C" __global__ void f(int* x) { *x = undeclared; }', "f")((1,), (1,), (x,))
    gpu.flush()
    common(gpu, "add_one")((1,), (1,), (x, np.int32(1)))
    assert x.item() == 1


def test_nested_profiles_both_fail_and_the_error_is_raised_once(gpu: hearth.Device) -> None:
    outer, inner = gpu.profile(), gpu.profile()
    outer.__enter__()
    inner.__enter__()
    bad_launch(gpu)
    with pytest.raises(hearth.LaunchError, match="add_one"):
        inner.__exit__(None, None, None)
    with pytest.raises(hearth.HearthError, match="launch add_one failed while it was measured") as caught:
        outer.__exit__(None, None, None)
    assert caught.value.reason == "PROFILE_INVALID" and caught.value.details["cause"] == "LAUNCH_INVALID"
    gpu.synchronize()


def test_error_raised_inside_a_profile_is_not_raised_again(gpu: hearth.Device) -> None:
    with pytest.raises(hearth.LaunchError), gpu.profile():
        bad_launch(gpu)
        gpu.synchronize()
    for _ in range(2):  # the answer of the profile itself has arrived by the second
        gpu.synchronize()
    with pytest.raises(hearth.HearthError) as caught, gpu.profile():
        bad_launch(gpu)
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()
    assert caught.value.reason == "PROFILE_INVALID"
    gpu.synchronize()


def test_errors_of_other_streams_and_sessions_are_not_taken(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    side = gpu.stream()
    with daemon.connect() as other, gpu.profile() as profile:
        elsewhere = other.device(0)
        bad_launch(elsewhere)
        bad_launch(gpu, side)
        gpu.zeros(4, np.int32)
    assert profile.device_ns >= 0
    with pytest.raises(hearth.LaunchError):
        side.synchronize()
    with daemon.connect() as other:
        elsewhere = other.device(0)
        bad_launch(elsewhere)
        with gpu.profile():
            pass
        with pytest.raises(hearth.LaunchError):
            elsewhere.synchronize()


def test_failure_after_the_end_is_not_raised_by_the_profile(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    add_one.num_regs  # noqa: B018  compiled: the bad launch fails as it arrives
    with gated(gpu) as gate:
        profile = gpu.profile()
        profile.__enter__()
        gate.hold()
        attachment = connection_of(gpu).attachment()
        end = c.Command(end_profile=c.EndProfile(profile=number_of(profile)))
        reply = attachment.request(end)
        add_one((1,), (1,), (np.uint64(0),))
        gate.open()
        assert reply.wait(20).profile.device_ns > 0
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()


def test_end_of_a_profile_raises_earlier_failures(gpu: hearth.Device) -> None:
    """Errors surface at the end of a profile, as at every sync, although no command failed inside the profile."""
    bad_launch(gpu)
    profile = gpu.profile()
    profile.__enter__()
    with pytest.raises(hearth.LaunchError):
        gpu.flush()
    profile.__exit__(None, None, None)
    assert profile.wall_ns > 0


def test_a_lost_device_fails_the_profile_once(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        with pytest.raises(hearth.DeviceLostError), gpu.profile() as profile:
            gpu.synchronize()
            os.kill(lossy.device_pid(), signal.SIGKILL)
            wait_until(lambda: not connection_of(gpu).attached, "the loss")
        with pytest.raises(hearth.ArgumentError, match="not ended"):
            print(profile.device_ns)
        with gpu.profile() as profile:
            gpu.zeros(4, np.int32)
        assert profile.wall_ns > 0


def test_a_lost_token_is_unknown_to_the_next_process(lossy: DaemonProcess) -> None:
    first = lossy.generation()
    with Raw(lossy.unix) as raw:
        raw.call("StartProfile", c.StartProfile(profile=4))
        os.kill(lossy.device_pid(), signal.SIGKILL)
        wait_until(lambda: lossy.generation() == first + 1, "the next process")
        told = refused(raw.call, "EndProfile", c.EndProfile(profile=4))
        assert told.reason == Reason.DEVICE_LOST
        told = refused(raw.call, "EndProfile", c.EndProfile(profile=4))
        assert told.reason == Reason.INVALID_HANDLE


def test_single_calls(raw: Raw) -> None:
    buffer = raw.buffer(bytes(64))
    raw.call("StartProfile", c.StartProfile(profile=1))
    raw.call("StartProfile", c.StartProfile(profile=2))
    raw.call("Fill", c.Fill(buffer=buffer, size=64, pattern=b"x"))
    assert refused(raw.call, "Fill", c.Fill(buffer=999, size=1, pattern=b"x")).reason == Reason.INVALID_HANDLE
    # the failure was reported to the caller, which may end its profiles
    first = raw.call("EndProfile", c.EndProfile(profile=2))
    second = raw.call("EndProfile", c.EndProfile(profile=1))
    assert 0 <= first.device_ns <= second.device_ns and first.wall_ns < second.wall_ns
    raw.call("CreateStream", c.CreateStream(stream=7))
    raw.call("StartProfile", c.StartProfile(profile=3), stream=7)
    assert refused(raw.call, "EndProfile", c.EndProfile(profile=3)).reason == Reason.PROFILE_INVALID
    raw.call("DestroyStream", c.DestroyStream(stream=7))
    assert refused(raw.call, "EndProfile", c.EndProfile(profile=3)).reason == Reason.INVALID_HANDLE
    raw.call("StartProfile", c.StartProfile(profile=3))  # the destroyed stream has ended its profiles


def test_open_profiles_are_bounded_and_end_with_the_session(daemon: DaemonProcess) -> None:
    with Raw(daemon.unix) as raw, raw.execute() as stream:
        stream.batch(*(c.Command(start_profile=c.StartProfile(profile=1 + i)) for i in range(1024)))
        result = stream.ask(c.Command(start_profile=c.StartProfile(profile=2000)))
        refusal = from_status(result.error)
        assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["allowed"] == "1024"
        stream.batch(c.Command(fill=c.Fill(buffer=9, size=1, pattern=b"x")))  # reported to all of the profiles
        ends = [stream.ask(c.Command(end_profile=c.EndProfile(profile=1 + i))) for i in range(3)]
        assert [from_status(end.error).reason for end in ends] == ["INVALID_HANDLE"] + ["PROFILE_INVALID"] * 2
        assert daemon.gauge("profiles_open") >= 1021
    wait_until(lambda: daemon.gauge("profiles_open") == 0, "the end of the profiles")


def test_tokens_are_checked(raw: Raw) -> None:
    with raw.execute() as stream:
        for end, reason in ((5, Reason.INVALID_HANDLE), (0, Reason.INVALID_HANDLE), (2**64 - 1, Reason.INVALID_HANDLE)):
            result = stream.ask(c.Command(end_profile=c.EndProfile(profile=end)))
            assert from_status(result.error).reason == reason
        assert not stream.ask(c.Command(start_profile=c.StartProfile(profile=5))).HasField("error")
        twice = stream.ask(c.Command(start_profile=c.StartProfile(profile=5)))
        assert from_status(twice.error).reason == Reason.HANDLE_IN_USE
        stream.batch(c.Command(create_stream=c.CreateStream(stream=3)))
        elsewhere = stream.ask(c.Command(stream=3, end_profile=c.EndProfile(profile=5)))
        assert from_status(elsewhere.error).reason == Reason.PROFILE_INVALID
        assert stream.ask(c.Command(end_profile=c.EndProfile(profile=5))).profile.wall_ns > 0
        again = stream.ask(c.Command(end_profile=c.EndProfile(profile=5)))
        assert from_status(again.error).reason == Reason.INVALID_HANDLE
        assert stream.failures() == []


def test_end_profile_call_reports_earlier_failures(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(
            c.Command(start_profile=c.StartProfile(profile=1)), c.Command(fill=c.Fill(buffer=9, size=1, pattern=b"x"))
        )
        result = stream.ask(c.Command(end_profile=c.EndProfile(profile=1)))
        assert [failure.command for failure in stream_failures(result.error)] == ["fill"]
        assert stream.failures() == []
