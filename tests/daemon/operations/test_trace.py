"""Traces: every command of a session with its times, and the file format for Perfetto."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import connection_of, number_of
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.raw import Raw, refused
from tests.support.timing import steady

HELD = 0.03


def check_times(events: list[hearth.TraceEvent]) -> None:
    """Checks properties of every trace: each command's times are in order, and so is the work of a stream on the
    device."""
    for event in events:
        assert 0 <= event.queued_ns <= event.submitted_ns <= event.started_ns <= event.ended_ns, event
    last: dict[int, hearth.TraceEvent] = {}
    for event in events:
        if event.device_ns and event.name != "all_reduce":
            before = last.get(event.stream)
            assert before is None or event.started_ns >= before.ended_ns - 2_000, (before, event)
            last[event.stream] = event


# ---- contents ----


def test_every_command_is_traced_with_bytes_and_geometry(gpu: hearth.Device) -> None:
    add_one, n = common(gpu, "add_one"), 1 << 16
    x, y = gpu.zeros(n, np.int32), gpu.zeros(n, np.int32)
    gpu.synchronize()
    before = time.time_ns()
    with gpu.trace() as trace:
        add_one((n // 256,), (256,), (x, np.int32(n)))
        add_one((n // 256,), (256,), (x, np.int32(n)))
        y.copy_from(x)
        x.set(np.full(n, 5, np.int32))
        x.fill(7)
        got = y.get()
        gpu.synchronize()
    assert (got == 2).all()
    events = trace.events
    assert [event.name for event in events] == ["launch", "launch", "copy", "write", "fill", "read", "sync"]
    assert [event.bytes for event in events] == [0, 0, 4 * n, 4 * n, 4 * n, 4 * n, 0]
    for launch in events[:2]:
        assert (launch.kernel, launch.grid, launch.block) == ("add_one", (n // 256, 1, 1), (256, 1, 1))
    assert all(event.grid is None and not event.kernel for event in events[2:])
    assert all(event.device_ns > 0 and not event.error for event in events[:6])
    assert len({(event.seq, event.index) for event in events}) == 7
    assert [(event.seq, event.index) for event in events] == sorted((event.seq, event.index) for event in events)
    check_times(events)
    assert trace.dropped == 0 and trace.kernels == []
    assert before - 50e6 <= trace.epoch_ns <= time.time_ns()
    assert events[-1].ended_ns <= time.time_ns() - trace.epoch_ns + 50e6


def test_device_time_is_measured_on_the_device(gpu: hearth.Device) -> None:
    def measure() -> list[hearth.TraceEvent]:
        with gated(gpu) as gate, gpu.trace() as trace:
            gate.hold()
            gate.hold()
            wait_until(lambda: gate.begun, "the kernel's begin")
            time.sleep(HELD)  # the duration that is measured
            gate.open()
        check_times(trace.events)
        return [event for event in trace.events if event.kernel == "hold"]

    # The second kernel only finds the gate open, which a busy machine may delay.
    first, second = steady(measure, lambda held: held[1].device_ns < held[0].device_ns)
    assert first.device_ns >= HELD * 1e9
    assert second.submitted_ns < first.ended_ns <= second.started_ns + 2_000, "the command waited on the device"
    assert second.device_ns < first.device_ns


def test_waiting_for_another_stream_is_not_counted_as_running(gpu: hearth.Device) -> None:
    add_one, x, side = common(gpu, "add_one"), gpu.zeros(1, np.int32), gpu.stream()
    add_one((1,), (1,), (x, np.int32(1)))  # otherwise the measured launch might wait for its compile
    gpu.synchronize()

    def measure() -> list[hearth.TraceEvent]:
        x.fill(0)
        with gated(gpu) as gate, gpu.trace() as trace:
            gate.hold(x)
            add_one((1,), (1,), (x, np.int32(1)), stream=side)
            wait_until(lambda: gate.begun, "the kernel's begin")
            time.sleep(HELD)
            gate.open()
        assert x.item() == 2
        return [event for event in trace.events if event.kernel in ("hold", "add_one")]

    held, waited = steady(measure, lambda events: events[1].device_ns < HELD * 0.9e9)
    assert (held.kernel, waited.kernel) == ("hold", "add_one")
    assert waited.stream == number_of(side) != held.stream
    assert waited.submitted_ns < held.ended_ns <= waited.started_ns + 2_000
    assert waited.device_ns < HELD * 0.9e9


def test_large_transfers_are_one_command(gpu: hearth.Device) -> None:
    """The memory is shared with the device process."""
    data, back = (hearth.empty_pinned(5 << 20, np.uint8) for _ in range(2))
    data[:] = np.random.default_rng(1).integers(0, 255, 5 << 20, np.uint8)
    x = gpu.empty(5 << 20, np.uint8)
    with gpu.trace() as trace:
        x.set(data)
        np.testing.assert_array_equal(x.get(out=back), data)
    write, read = (event for event in trace.events if event.bytes)
    assert (write.name, write.bytes, read.name, read.bytes) == ("write", 5 << 20, "read", 5 << 20)
    check_times(trace.events)


def test_failure_is_traced_and_raised_as_usual(gpu: hearth.Device) -> None:
    add_one, x = common(gpu, "add_one"), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with gpu.trace() as trace:
        add_one((1,), (1,), (x,))
        add_one((1,), (1,), (x, np.int32(1)))
        with pytest.raises(hearth.LaunchError, match="add_one"):
            gpu.synchronize()
        add_one((1,), (1,), (x, np.int32(1)))
    assert x.item() == 1
    errors = [(event.name, event.error) for event in trace.events]
    assert errors == [
        ("launch", "LAUNCH_INVALID"), ("launch", "DEPENDENCY_FAILED"), ("sync", "LAUNCH_INVALID"), ("launch", "")
    ]  # fmt: skip
    assert [event.kernel for event in trace.events] == ["add_one", "add_one", "", "add_one"]
    check_times(trace.events)


def test_launches_with_a_trace_do_the_same(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    x, y = gpu.full(64, 3, np.uint32), gpu.zeros(64, np.uint32)
    expected = np.zeros(64, np.uint32)
    for traced in (False, True, False):
        trace = gpu.trace()
        if traced:
            trace.__enter__()
        for _ in range(50):
            mix((1,), (64,), (x, y, np.int32(64)))
            expected = 3 * expected + 3
        if traced:
            trace.__exit__(None, None, None)
            assert len(trace.events) == 50
    np.testing.assert_array_equal(y.get(), expected)


def test_streams_of_a_module_that_is_still_compiling(gpu: hearth.Device, node: hearth.Node) -> None:
    """The wait is between arrival and submission, not on the device."""
    code = f'// {os.urandom(8).hex()}\nextern "C" __global__ void f(int* x) {{ x[threadIdx.x] += 1; }}'
    x = gpu.zeros(8, np.int32)
    gpu.synchronize()
    with gpu.trace() as trace:
        gpu.RawModule(code=code).get_function("f")((1,), (8,), (x,))
        gpu.synchronize()
    (launch,) = (event for event in trace.events if event.name == "launch")
    assert launch.kernel == "f" and launch.submitted_ns - launch.queued_ns > 20e6 > launch.device_ns
    check_times(trace.events)


def test_trace_has_the_time_of_each_collective(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    arrays = [gpu.ones(1 << 16, np.float32) for gpu in pair]
    group.all_reduce(arrays)
    group.synchronize()
    with pair[0].trace() as trace:
        group.all_reduce(arrays)
        group.synchronize()
        pair[0].synchronize()
    (reduced,) = (event for event in trace.events if event.name == "all_reduce")
    assert reduced.device_ns > 0 and reduced.bytes == 4 << 16
    check_times(trace.events)


def test_single_calls_are_traced(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4096))
    raw.call("StartTrace", c.StartTrace())
    raw.call("Fill", c.Fill(buffer=buffer, size=4096, pattern=b"ab"))
    assert refused(raw.call, "Fill", c.Fill(buffer=99, size=1, pattern=b"a")).reason == Reason.INVALID_HANDLE
    assert raw.read(buffer, 4) == b"abab"
    result = raw.call("EndTrace", c.EndTrace())
    names = [(event.name, event.error) for event in result.events]
    assert names == [("fill", ""), ("fill", "INVALID_HANDLE"), ("read", "")]
    assert all(event.seq == 0 for event in result.events)


# ---- start and end of a trace ----


def test_a_trace_is_bounded_and_counts_the_rest(gpu: hearth.Device) -> None:
    add_one, x = common(gpu, "add_one"), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with gpu.trace(max_events=5) as trace:
        for _ in range(40):
            add_one((1,), (1,), (x, np.int32(1)))
    assert len(trace.events) == 5 and trace.dropped == 35
    assert x.item() == 40
    check_times(trace.events)
    invalid: list[Any] = [0, -1, 2**32, "a", 1.5, True, [1]]
    for number in invalid:
        with pytest.raises(hearth.ArgumentError, match=r"max_events is .*; it must be an integer from 1"):
            gpu.trace(max_events=number)
    with gpu.trace(max_events=np.int64(1)) as trace:  # type: ignore[arg-type]
        x.fill(0)
        x.fill(1)
    assert len(trace.events) == 1


def test_trace_contains_only_commands_of_session_between_start_and_end(
    gpu: hearth.Device, daemon: DaemonProcess
) -> None:
    add_one, x = common(gpu, "add_one"), gpu.zeros(1, np.int32)
    add_one((1,), (1,), (x, np.int32(1)))
    with daemon.connect() as other, gpu.trace() as trace:
        y = other.device(0).zeros(1, np.int32)
        common(other.device(0), "add_one")((1,), (1,), (y, np.int32(1)))
        assert y.item() == 1
        add_one((1,), (1,), (x, np.int32(1)))
        gpu.synchronize()
    assert [event.name for event in trace.events] == ["launch", "sync"]
    add_one((1,), (1,), (x, np.int32(1)))
    with gpu.trace() as again:
        pass
    assert again.events == [] and x.item() == 3


def test_second_trace_of_session_is_refused(gpu: hearth.Device, raw: Raw) -> None:
    with gpu.trace() as trace:
        with pytest.raises(hearth.HearthError) as caught, gpu.trace():
            pass
        assert caught.value.reason == "PROFILE_INVALID"
        gpu.synchronize()
    assert [(event.name, event.error) for event in trace.events] == [("start_trace", "PROFILE_INVALID"), ("sync", "")]
    assert refused(raw.call, "EndTrace", c.EndTrace()).reason == Reason.PROFILE_INVALID
    with raw.execute() as stream:
        stream.batch(c.Command(end_trace=c.EndTrace()))
        assert [from_status(failure.status).reason for failure in stream.failures()] == [Reason.INVALID_ARGUMENT]


def test_events_cannot_be_read_before_the_end(gpu: hearth.Device) -> None:
    trace = gpu.trace()
    with trace, pytest.raises(hearth.ArgumentError, match="not ended"):
        print(trace.events)
    with pytest.raises(ZeroDivisionError), trace:
        1 / 0  # noqa: B018
    assert trace.events == []


def test_a_trace_that_is_left_open_ends_with_its_session(daemon: DaemonProcess) -> None:
    with Raw(daemon.unix) as raw, raw.execute() as stream:
        assert not stream.ask(c.Command(start_trace=c.StartTrace())).HasField("error")
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=1, size=64)), c.Command(fill=c.Fill(buffer=1, size=64, pattern=b"x"))
        )
        assert daemon.gauge("traces_running") >= 1
    wait_until(lambda: daemon.gauge("traces_running") == 0, "the end of the trace")


def test_the_end_waits_for_the_work(gpu: hearth.Device) -> None:
    with gated(gpu) as gate:
        trace = gpu.trace()
        trace.__enter__()
        gate.hold()
        attachment = connection_of(gpu).attachment()
        reply = attachment.request(c.Command(end_trace=c.EndTrace()))
        with pytest.raises(hearth.TimeoutError):
            reply.wait(0.05)
        gate.open()
        gpu.synchronize()
        assert [event.kernel for event in reply.wait(20).trace.events] == ["hold"]


def test_trace_ends_with_a_lost_device(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        with pytest.raises(hearth.DeviceLostError), gpu.trace():
            gpu.synchronize()
            os.kill(lossy.device_pid(), signal.SIGKILL)
            wait_until(lambda: not connection_of(gpu).attached, "the loss")
        with gpu.trace() as trace:
            gpu.synchronize()
        assert [event.name for event in trace.events] == ["sync"]


@pytest.mark.parametrize("package", ["nvtx", "cupti"])
def test_profilers_that_are_not_installed_cost_a_line_in_the_log(start_daemon: StartDaemon, package: str) -> None:
    daemon = start_daemon(cpu_count=1, profile={package: True})
    with daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        with gpu.trace() as trace:
            saxpy_works(gpu)
        assert "launch" in [event.name for event in trace.events] and not any(event.error for event in trace.events)
    warnings = [line for line in daemon.log().splitlines() if f"profile.{package} is set" in line]
    if BACKEND == "cpu" and importlib.util.find_spec(package) is None:
        assert all("install" in warning for warning in warnings)
        entries = sorted((entry["device"], entry["level"]) for entry in map(json.loads, warnings))
        assert entries == [(ordinal, "warning") for ordinal in daemon.ordinals()]


# ---- the file ----


def check_format(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Checks Chrome's Trace Event Format, JSON object form; returns the entries by phase."""
    assert document["displayTimeUnit"] in ("ms", "ns") and isinstance(document["otherData"], dict)
    phases: dict[str, list[dict[str, Any]]] = {}
    for entry in document["traceEvents"]:
        assert isinstance(entry["name"], str) and entry["name"]
        assert isinstance(entry["pid"], int) and isinstance(entry["tid"], int)
        phases.setdefault(entry["ph"], []).append(entry)
    assert phases.keys() <= {"X", "M", "s", "f"}
    named = {(entry["pid"], entry["tid"]) for entry in phases["M"] if entry["name"] == "thread_name"}
    processes = {entry["pid"] for entry in phases["M"] if entry["name"] == "process_name"}
    ends: dict[tuple[int, int], float] = {}
    for entry in phases.get("X", []):
        track = entry["pid"], entry["tid"]
        assert track in named and entry["pid"] in processes
        assert entry["ts"] >= ends.get(track, 0.0), "slices of a track do not overlap"
        assert entry["dur"] >= 0 and isinstance(entry["args"], dict) and isinstance(entry["cat"], str)
        ends[track] = entry["ts"] + entry["dur"]
    starts = {entry["id"]: entry for entry in phases.get("s", [])}
    for entry in phases.get("f", []):
        assert entry["bp"] == "e" and entry["ts"] >= starts.pop(entry["id"])["ts"]
        assert any(
            (span["pid"], span["tid"]) == (entry["pid"], entry["tid"])
            and span["ts"] <= entry["ts"] <= span["ts"] + span["dur"]
            for span in phases["X"]
        ), "an arrow ends at a slice"
    assert not starts
    return phases


def test_trace_file_has_the_perfetto_format(gpu: hearth.Device, tmp_path: Path) -> None:
    add_one, side = common(gpu, "add_one"), gpu.stream()
    x, y = gpu.zeros(1000, np.int32), gpu.zeros(1000, np.int32, side)
    gpu.synchronize()
    with gpu.trace() as trace:
        for _ in range(10):
            add_one((4,), (256,), (x, np.int32(1000)))
            add_one((4,), (256,), (y, np.int32(1000)), stream=side)
        add_one((1,), (1,), (x,))
        y.get(stream=side)
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()
    path = tmp_path / "trace.json"
    trace.save(path)
    document = json.loads(path.read_text())
    phases = check_format(document)
    assert document["otherData"]["dropped"] == 0 and int(document["otherData"]["epoch_unix_ns"]) == trace.epoch_ns
    titles = {entry["args"]["name"] for entry in phases["M"] if entry["name"] == "process_name"}
    assert titles == {f"host, device 0: {gpu.properties.name}", f"device 0: {gpu.properties.name}"}
    tracks = {entry["args"]["name"] for entry in phases["M"] if entry["name"] == "thread_name"}
    assert tracks == {"default stream", f"stream {number_of(side)}"}
    on_device = [entry for entry in phases["X"] if entry["pid"] == 2]
    assert sum(entry["name"] == "add_one" for entry in on_device) == 20
    launch = next(entry for entry in on_device if entry["name"] == "add_one")
    assert launch["args"]["grid"] == [4, 1, 1] and launch["args"]["block"] == [256, 1, 1] and launch["args"]["seq"] > 0
    first = next(event for event in trace.events if event.kernel == "add_one")
    assert launch["ts"] == first.started_ns / 1e3 and launch["dur"] == pytest.approx(first.device_ns / 1e3)
    read = next(entry for entry in on_device if entry["name"] == "read")
    assert read["args"]["bytes"] == 4000
    failed = [entry for entry in phases["X"] if "error" in entry["args"]]
    assert {entry["cat"] for entry in failed} == {"error"} and len(failed) == 2
    assert len(phases["s"]) == len(phases["f"]) == len(on_device)
    assert repr(trace).startswith("<hearth.Trace of device 0")


def test_an_empty_trace_is_a_valid_file(gpu: hearth.Device) -> None:
    with gpu.trace() as trace:
        pass
    document = trace.to_json()
    assert document["traceEvents"] == [] and json.dumps(document)
