"""Profiles: device time of a stretch of work, however they nest and overlap."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c

from .kernels import common, gated
from .raw import Raw

HELD = 0.05


def hold_for(gpu: hearth.Device, seconds: float = HELD, stream: hearth.Stream | None = None) -> None:
    """A kernel that runs at least so long on the device, opened from the host's clock."""
    with gated(gpu) as gate:
        started = gpu.event()
        (stream or gpu.current_stream).record(started)
        gate.hold(stream=stream)
        started.synchronize()
        time.sleep(seconds)  # the measured quantity itself


def test_the_time_is_the_devices(gpu: hearth.Device) -> None:
    hold_for(gpu, 0)  # compiled and loaded
    with gpu.profile() as profile:
        began = time.perf_counter()
        hold_for(gpu)
    took = (time.perf_counter() - began) * 1e9
    assert HELD * 1e9 * 0.9 <= profile.device_ns <= profile.wall_ns * 1.01
    assert profile.wall_ns <= took * 1.5 + 50e6


def test_nothing_takes_next_to_nothing(gpu: hearth.Device) -> None:
    gpu.synchronize()
    with gpu.profile() as profile:
        pass
    assert 0 <= profile.device_ns < 1e9 and 0 < profile.wall_ns < 10e9


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
    compiled = module._describe().compile_ns
    assert compiled > 20e6, "a compile from scratch"
    assert profile.device_ns < compiled / 2 and profile.wall_ns > compiled / 2


def test_an_error_fails_the_profile_and_nothing_else(gpu: hearth.Device) -> None:
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


def test_an_exception_inside_is_the_news(gpu: hearth.Device) -> None:
    with pytest.raises(ZeroDivisionError), gpu.profile():
        1 / 0  # noqa: B018
    gpu.synchronize()


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


def test_the_end_takes_what_failed_before_it(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(
            c.Command(start_profile=c.StartProfile(profile=1)), c.Command(fill=c.Fill(buffer=9, size=1, pattern=b"x"))
        )
        result = stream.ask(c.Command(end_profile=c.EndProfile(profile=1)))
        assert [failure.command for failure in stream_failures(result.error)] == ["fill"]
        assert stream.failures() == []
