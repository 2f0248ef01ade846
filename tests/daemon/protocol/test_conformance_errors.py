"""Failed one-way commands in rare situations: merged failures, failures moved to another stream, long chains, failures
of other sessions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.raw import Raw

MAX_KEPT = 32
"""Maximum number of failures that a stream lists; see hearthd.device.streams.stream_errors."""


def spoil(gpu: hearth.Device, x: hearth.DeviceArray, stream: hearth.Stream | None = None) -> None:
    """Submits a launch that fails because it has one argument too few, so that the contents of `x` are invalid."""
    common(gpu, "add_one")((1,), (1,), (x,), stream=stream)


def told(what: Callable[[], object]) -> hearth.HearthError:
    """Returns the error that the call raises."""
    with pytest.raises(hearth.HearthError) as caught:
        what()
    return caught.value


# ---- buffers that a failure invalidates ----


def test_buffers_of_merged_failures_are_unreadable_before_the_report(gpu: hearth.Device) -> None:
    """The list is bounded, but failures that are merged in it must still be reported to the client."""
    side = gpu.stream()
    arrays = [gpu.zeros(4, np.int32) for _ in range(3 * MAX_KEPT)]
    gpu.synchronize()
    for array in arrays:
        spoil(gpu, array)
    for array in arrays:
        assert "add_one" in str(told(lambda array=array: array.get(stream=side)))  # type: ignore[misc]
    failures = told(gpu.synchronize).failures
    assert len(failures) <= MAX_KEPT
    assert len(failures) + sum(failure.merged for failure in failures) == len(arrays)
    for array in arrays:
        assert not array.get(stream=side).any()


def test_skipped_output_on_other_stream_stays_unreadable_until_that_stream_reports(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(4, np.int32), gpu.full(4, 5, np.int32)
    side, third = gpu.stream(), gpu.stream()
    gpu.synchronize()
    spoil(gpu, x)
    y.copy_from(x, stream=side)
    assert told(gpu.default_stream.synchronize).reason == "LAUNCH_INVALID"
    assert not x.get(stream=third).any()  # the client knows of this failure by now
    told(lambda: y.get(stream=third))  # but not that this array was never written
    (failure,) = told(side.synchronize).failures
    assert failure.reason == "DEPENDENCY_FAILED"
    assert (y.get(stream=third) == 5).all()


def test_long_chain_of_failed_allocations(gpu: hearth.Device) -> None:
    first = gpu.zeros(1, np.int32)
    gpu.synchronize()
    spoil(gpu, first)
    link = first
    for _ in range(2000):
        following = gpu.empty(1, np.int32)
        following.copy_from(link)
        link = following
    failures = told(gpu.synchronize).failures
    assert [failure.command for failure in failures] == ["launch add_one"]
    gpu.synchronize()
    saxpy_works(gpu)


def test_read_of_a_failed_buffer_consumes_no_error_of_the_producing_stream(gpu: hearth.Device) -> None:
    """The producer's failure is shown to every reader, and remains on its stream until the stream is waited for."""
    x, side = gpu.zeros(4, np.int32), gpu.stream()
    gpu.synchronize()
    spoil(gpu, x)
    for _ in range(3):
        assert told(lambda: x.get(stream=side)).reason == "LAUNCH_INVALID"
    side.synchronize()
    assert len(told(gpu.default_stream.synchronize).failures) == 1


def test_partial_writes_do_not_repair_a_failed_buffer(gpu: hearth.Device) -> None:
    x, side = gpu.zeros(8, np.int32), gpu.stream()
    gpu.synchronize()
    spoil(gpu, x)
    x[:4].fill(3)
    told(lambda: x.get(stream=side))
    x[4:].fill(3)
    told(lambda: x.get(stream=side))
    told(gpu.synchronize)
    assert (x.get(stream=side) == 3).all(), "commands that do not depend on the failed one have run"


# ---- a reservation that failed ----


def test_failed_reservation_is_raised_by_the_next_sync_and_by_each_use(gpu: hearth.Device) -> None:
    side = gpu.stream()
    lost = gpu.empty(1 << 60, np.uint8)
    assert told(lambda: lost[:4].get(stream=side)).reason in ("OUT_OF_MEMORY", "ALLOCATION_FAILED")
    error = told(gpu.synchronize)
    assert isinstance(error, hearth.OutOfMemoryError) and error.failures[0].command == "allocate"
    assert error.details["requested"] == str(1 << 60)
    # The sync has reported the failure; the handle still has no memory, and every use of it reports that.
    good = gpu.zeros(4, np.uint8)
    uses: list[Callable[[], object]] = [
        lost[:4].get,
        lambda: (lost[:4].fill(1), gpu.synchronize()),
        lambda: (good.copy_from(lost[:4]), gpu.synchronize()),
        lambda: (lost[:4].copy_from(good), gpu.synchronize()),
        lambda: (lost[:4].set(np.zeros(4, np.uint8)), gpu.synchronize()),
        lambda: (common(gpu, "add_one")((1,), (1,), (lost, np.int32(0))), gpu.synchronize()),
    ]
    for index, use in enumerate(uses):
        assert told(use).reason == "ALLOCATION_FAILED", index
    lost.free()
    gpu.synchronize()
    assert gpu.memory_usage().allocations == 1


# ---- the session that gets an error ----


def test_errors_of_a_destroyed_stream_go_to_the_default_stream_in_order(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(
            c.Command(create_stream=c.CreateStream(stream=7)),
            c.Command(stream=7, fill=c.Fill(buffer=901, size=1, pattern=b"x")),
            c.Command(fill=c.Fill(buffer=902, size=1, pattern=b"x")),
            c.Command(stream=7, fill=c.Fill(buffer=903, size=1, pattern=b"x")),
            c.Command(destroy_stream=c.DestroyStream(stream=7)),
            c.Command(fill=c.Fill(buffer=904, size=1, pattern=b"x")),
            c.Command(stream=7, fill=c.Fill(buffer=905, size=1, pattern=b"x")),  # this stream has been destroyed
        )
        failures = stream.failures()
        assert [failure.index for failure in failures] == [1, 2, 3, 5, 6]
        assert [failure.stream for failure in failures] == [7, 0, 7, 0, 0]
        assert all(from_status(failure.status).reason == Reason.INVALID_HANDLE for failure in failures)
        assert stream.failures() == []


def test_outputs_of_destroyed_stream_stay_invalid_until_failure_is_reported(gpu: hearth.Device) -> None:
    x, stream, side = gpu.zeros(4, np.int32, gpu.default_stream), gpu.stream(), gpu.stream()
    gpu.synchronize()
    spoil(gpu, x, stream)
    del stream
    told(lambda: x.get(stream=side))
    side.synchronize()
    assert len(told(gpu.default_stream.synchronize).failures) == 1
    assert not x.get(stream=side).any()


def test_errors_of_one_session_are_invisible_to_others(daemon: DaemonProcess) -> None:
    with daemon.connect() as failing, daemon.connect() as well:
        for _ in range(50):
            spoil(failing.device(0), failing.device(0).zeros(1, np.int32))
        gpu = well.device(0)
        x = gpu.zeros(4, np.int32)
        common(gpu, "add_one")((1,), (4,), (x, np.int32(4)))
        for ask in (gpu.synchronize, gpu.flush, gpu.default_stream.synchronize, x.get):
            ask()
        with gpu.profile():
            common(gpu, "add_one")((1,), (4,), (x, np.int32(4)))
        assert (x.get() == 2).all()
        assert "49 more" in str(told(failing.device(0).synchronize))


def test_errors_end_with_their_session(daemon: DaemonProcess) -> None:
    before = daemon.status()["devices"][0]["gauges"]
    node = daemon.connect()
    gpu = node.device(0)
    streams = [gpu.stream() for _ in range(3)]
    for stream in streams:
        spoil(gpu, gpu.zeros(4, np.int32, stream), stream)
    gpu.empty(1 << 60, np.uint8)
    node.close()
    after = daemon.status()["devices"][0]["gauges"]
    for name in ("buffers", "commands_waiting", "memory_in_use_bytes"):
        assert after[name] == before[name]
    with daemon.connect() as other:  # most likely on the same CUDA streams
        fresh = [other.device(0).stream() for _ in range(3)]
        for stream in fresh:
            stream.synchronize()
        other.device(0).synchronize()
        saxpy_works(other.device(0))


# ---- the time of the report ----


def test_flush_reports_errors_without_waiting_for_device(gpu: hearth.Device) -> None:
    x, add_one = gpu.zeros(4, np.int32), common(gpu, "add_one")
    add_one((1,), (4,), (x, np.int32(4)))
    gpu.synchronize()  # loads the code while no kernel runs
    with gated(gpu) as gate:
        gate.hold()
        add_one((1,), (4,), (x,))
        error = told(lambda: gpu.flush(timeout=20))
        assert len(error.failures) == 1
        assert not gpu.default_stream.done
        gate.open()
    gpu.synchronize()


def test_failing_compile_inside_a_profile_is_raised_by_the_profile(gpu: hearth.Device) -> None:
    x = gpu.zeros(1, np.int32)
    gpu.synchronize()
    bad = gpu.RawKernel('extern "C" __global__ void bad(int* x) { *x = missing_name; }', "bad")

    def profiled() -> None:
        with gpu.profile():
            bad((1,), (1,), (x,))

    error = told(profiled)
    assert isinstance(error, hearth.CompileError) and "missing_name" in error.log
    gpu.flush()
    gpu.synchronize()
    saxpy_works(gpu)


def test_failures_of_a_batch_and_of_single_calls_do_not_mix(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(c.Command(fill=c.Fill(buffer=901, size=1, pattern=b"x")))
        answered = stream.ask(c.Command(fill=c.Fill(buffer=902, size=1, pattern=b"x")))
        assert "902" in answered.error.message and not stream_failures(answered.error)
        failures = stream.failures()
        assert len(failures) == 1 and "901" in failures[0].status.message


def test_failed_write_skips_only_dependent_commands(raw: Raw) -> None:
    kept, copied = raw.buffer(bytes(8)), raw.buffer(bytes(8))
    with raw.execute() as stream:
        stream.batch(
            c.Command(write=c.Write(buffer=kept, data=bytes(9))),  # too long: no byte is written
            c.Command(copy=c.Copy(destination=copied, source=kept, size=8)),
            c.Command(fill=c.Fill(buffer=kept, size=8, pattern=b"z")),
        )
        failures = stream.failures()
        assert [failure.command for failure in failures] == ["write"]
    assert raw.read(copied, 8) == bytes(8), "skipped"
    assert raw.read(kept, 8) == b"z" * 8


@pytest.mark.parametrize("ask", ["sync", "sync of all", "flush", "read", "end of a profile"])
def test_request_reports_earlier_failures_and_no_later_ones(raw: Raw, ask: str) -> None:
    """The request may wait, while commands submitted after it fail immediately."""
    questions = {
        "sync": c.Command(sync=c.Sync()),
        "sync of all": c.Command(sync=c.Sync(all_streams=True)),
        "flush": c.Command(flush=c.Flush()),
        "read": c.Command(read=c.Read(buffer=1, size=8)),
        "end of a profile": c.Command(end_profile=c.EndProfile(profile=1)),
    }
    question = questions[ask]
    question.request = 77
    with raw.execute() as stream:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=1, size=8)),
            c.Command(start_profile=c.StartProfile(profile=1)),
            # waits for its bytes, and all later commands wait, too
            c.Command(write=c.Write(buffer=1, size=8, transfer=5)),
            question,
            c.Command(fill=c.Fill(buffer=901, size=1, pattern=b"x")),
        )
        raw.call("MemoryUsage", c.MemoryUsage())  # waits for nothing: the batch has been processed by now
        raw.device.Upload(iter([device_pb2.UploadRequest(session_token=raw.token, transfer=5, data=bytes(8))]))
        while (response := stream.receive()).WhichOneof("kind") != "result":
            pass
        assert response.result.request == 77 and not response.result.HasField("error"), response.result.error
        (failure,) = stream.failures()
        assert "901" in failure.status.message


def test_no_failure_is_reported_twice_to_concurrent_requests(daemon: DaemonProcess) -> None:
    with Raw(daemon.unix) as raw, raw.execute() as stream:
        stream.batch(
            c.Command(fill=c.Fill(buffer=901, size=1, pattern=b"x")),
            c.Command(request=1, sync=c.Sync()),
            c.Command(request=2, flush=c.Flush()),
            c.Command(request=3, sync=c.Sync(all_streams=True)),
        )
        results = {}
        while len(results) < 3:
            response = stream.receive()
            if response.WhichOneof("kind") == "result":
                results[response.result.request] = response.result
        assert sum(len(stream_failures(result.error)) for result in results.values()) == 1


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem"),
    [((1,), (1025,), 0), ((1, 1, 2**31), (1,), 0), ((1,), (2**16, 2**16, 1), 0), ((1,), (1,), 2**30)],
)
def test_invalid_unchecked_launch_costs_no_session_the_device(
    gpu: hearth.Device, daemon: DaemonProcess, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int
) -> None:
    pid, add_one, x = daemon.device_pid(), common(gpu, "add_one"), gpu.zeros(4, np.int32)
    for _ in range(2):
        add_one(grid, block, (x, np.int32(4)), shared_mem=shared_mem, mode="unchecked")
        assert isinstance(told(gpu.synchronize), hearth.LaunchError)
    add_one((1,), (4,), (x, np.int32(4)), mode="unchecked")
    assert x.get().tolist() == [1] * 4
    assert daemon.device_pid() == pid
