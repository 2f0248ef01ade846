"""A launch that repeats an earlier one byte for byte takes the replay path, but never if an object that it uses has
changed."""

from __future__ import annotations

import numpy as np
import pytest

from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import Execute, Raw

LAYOUT = pack_layout([LayoutEntry(0, 8, True), LayoutEntry(8, 4)])


def record(function: int, buffer: int, *, stream: int = 0, offset: int = 0) -> bytes:
    params = offset.to_bytes(8, "little") + (1).to_bytes(4, "little")
    return pack(Record(function, stream, (1, 1, 1), (1, 1, 1), 0, 0, 0, LAYOUT, (buffer,), params))


@pytest.fixture
def function(raw: Raw) -> int:
    return raw.function(COMMON, "add_one")


def value(raw: Raw, buffer: int) -> int:
    return int(np.frombuffer(raw.read(buffer, 4), np.int32)[0])


def repeat(stream: Execute, data: bytes, batches: int = 3, records: int = 5) -> int:
    """Repeats a launch until its record is in the replay cache; returns the number of launches."""
    for _ in range(batches):
        stream.batch(c.Command(launches=data * records))
    assert stream.failures() == []
    return batches * records


def test_every_repeated_launch_runs(raw: Raw, stream: Execute, function: int) -> None:
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer)
    times = sum(repeat(stream, data) for _ in range(40))
    assert value(raw, buffer) == times


def test_a_freed_buffer_is_not_written(raw: Raw, stream: Execute, function: int) -> None:
    buffer, other = raw.buffer(bytes(4)), raw.buffer(bytes(4))
    data = record(function, buffer)
    repeat(stream, data)
    stream.batch(c.Command(free=c.Free(buffers=[buffer])), c.Command(launches=data))
    (failure,) = stream.failures()
    assert f"buffer {buffer}" in failure.status.message
    assert value(raw, other) == 0


def test_a_handle_that_was_used_again_is_the_new_buffer(raw: Raw, stream: Execute, function: int) -> None:
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer)
    repeat(stream, data)
    stream.batch(
        c.Command(free=c.Free(buffers=[buffer])),
        c.Command(allocate=c.Allocate(buffer=buffer, size=4)),
        c.Command(fill=c.Fill(buffer=buffer, size=4, pattern=b"\0")),
        c.Command(launches=data),
    )
    assert stream.failures() == []
    assert value(raw, buffer) == 1


def test_repeated_launches_on_a_failed_buffer_are_skipped(raw: Raw, stream: Execute, function: int) -> None:
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer)
    times = repeat(stream, data)
    bad = c.Launch(
        function=function,
        grid=c.Dim3(x=1),
        block=c.Dim3(x=5000),
        arguments=[c.Argument(pointer=c.Argument.Pointer(buffer=buffer)), c.Argument(int32=1)],
    )
    stream.batch(c.Command(launch=bad), c.Command(launches=data * 3))
    assert "5000 threads" in stream.failures()[0].status.message
    assert value(raw, buffer) == times
    stream.batch(c.Command(launches=data * 3))  # the failure has been reported: the buffer may be used again
    assert stream.failures() == []
    assert value(raw, buffer) == times + 3


def test_repeated_launch_of_an_unloaded_function_is_refused(raw: Raw, stream: Execute, function: int) -> None:
    module = 900
    stream.batch(
        c.Command(load_module=c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
        c.Command(get_function=c.GetFunction(function=901, module=module, name="add_one")),
    )
    buffer = raw.buffer(bytes(4))
    assert function != 901
    data = record(901, buffer)
    times = repeat(stream, data)
    stream.batch(c.Command(unload_module=c.UnloadModule(module=module)), c.Command(launches=data))
    (failure,) = stream.failures()
    assert "function 901" in failure.status.message
    assert value(raw, buffer) == times


def test_repeated_launch_on_a_destroyed_stream_is_refused(raw: Raw, stream: Execute, function: int) -> None:
    stream.batch(c.Command(create_stream=c.CreateStream(stream=77)))
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer, stream=77)
    for _ in range(3):
        stream.batch(c.Command(launches=data))
    assert stream.failures(77) == []
    stream.batch(c.Command(destroy_stream=c.DestroyStream(stream=77)), c.Command(launches=data))
    (failure,) = stream.failures()
    assert "stream 77" in failure.status.message
    assert value(raw, buffer) == 3


def test_truncated_record_after_known_ones_is_refused(raw: Raw, stream: Execute, function: int) -> None:
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer)
    times = repeat(stream, data)
    for cut in (1, 3, 8, 63, len(data) - 8):
        stream.batch(c.Command(launches=data + data[:cut]))
        times += 1
        assert "not a valid launch record" in stream.failures()[0].status.message
    assert value(raw, buffer) == times


def test_a_profile_starts_with_a_repeat(raw: Raw, stream: Execute, function: int) -> None:
    buffer = raw.buffer(bytes(4))
    data = record(function, buffer)
    times = repeat(stream, data)
    stream.batch(c.Command(start_profile=c.StartProfile(profile=5)), c.Command(launches=data))
    result = stream.ask(c.Command(end_profile=c.EndProfile(profile=5)))
    assert result.profile.wall_ns > 0
    assert value(raw, buffer) == times + 1
