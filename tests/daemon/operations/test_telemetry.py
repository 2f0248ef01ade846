"""Counters of the daemon: by operation and device, in histograms, and across the loss of a device process."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated
from tests.support.daemon.raw import Raw, refused

HISTOGRAMS = (
    "batch_execution", "queue_delay", "launch_completion", "compile", "sync_wait", "transfer", "loop_turn",
)  # fmt: skip


class Page(NamedTuple):
    """A scrape: samples by name, device and a third label (an operation, a bucket's bound, or a direction with a
    path)."""

    samples: dict[tuple[str, str, str], float]

    def __call__(self, name: str, operation: str = "", device: str = "0") -> float:
        return self.samples.get((f"hearth_{name}", device, operation), 0.0)

    def buckets(self, name: str, device: str = "0") -> list[tuple[float, float]]:
        """Returns (bound, number of durations up to the bound), sorted by bound."""
        full = f"hearth_{name}_seconds_bucket"
        found = [(float(le), n) for (each, at, le), n in self.samples.items() if (each, at) == (full, device)]
        return sorted(found)


def scrape(daemon: DaemonProcess) -> Page:
    """Returns a page with the gauges of all devices that serve. The front leaves out those of a process that is too
    busy to answer."""

    def complete() -> Page | None:
        page = _scrape(daemon)
        up = [device for (name, device, _), value in page.samples.items() if name == "hearth_device_up" and value]
        return page if all(("hearth_buffers", device, "") in page.samples for device in up) else None

    page: Page = wait_until(complete, "a page with all gauges")
    return page


def _scrape(daemon: DaemonProcess) -> Page:
    samples = {}
    for family in text_string_to_metric_families(daemon.get("/metrics").body):
        for sample in family.samples:
            labels = sample.labels
            if "device" in labels and "backend" not in labels:
                what = " ".join(labels[name] for name in sorted(labels) if name not in ("device", "tenant"))
                assert (sample.name, labels["device"], what) not in samples, sample
                samples[sample.name, labels["device"], what] = sample.value
                assert labels.get("tenant", "default") == "default", sample
    return Page(samples)


@pytest.fixture
def moved(daemon: DaemonProcess) -> Callable[..., float]:
    """Returns a function that returns the change of a sample since the start of the test, summed over operations."""
    before = scrape(daemon)

    def difference(name: str, operation: str = "") -> float:
        return scrape(daemon)(name, operation) - before(name, operation)

    return difference


def test_one_launch_is_counted_once(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """Same counts as vyre: exactly one launch, no graph launch, and the actual numbers of bytes and threads."""
    add_one, x = common(gpu, "add_one"), gpu.zeros(1000, np.int32)
    add_one((4,), (256,), (x, np.int32(1000)))
    gpu.synchronize()
    before = scrape(daemon)
    add_one((4,), (256,), (x, np.int32(1000)))
    assert x.get().sum() == 2000
    gpu.synchronize()
    after = scrape(daemon)
    moved = {
        name: after(name) - before(name)
        for name in (
            "kernel_launches_total", "graph_launches_total", "prepared_launches_total", "scheduled_threads_total",
            "occupancy_measured_launches_total", "device_to_host_bytes_total", "device_to_host_operations_total",
            "host_to_device_bytes_total", "sync_points_total", "dispatches_total", "allocations_total",
        )
    }  # fmt: skip
    assert moved == {
        "kernel_launches_total": 1, "graph_launches_total": 0, "prepared_launches_total": 0,
        "scheduled_threads_total": 1024, "occupancy_measured_launches_total": 1, "device_to_host_bytes_total": 4000,
        "device_to_host_operations_total": 1, "host_to_device_bytes_total": 0, "sync_points_total": 1,
        "dispatches_total": 0, "allocations_total": 0,
    }  # fmt: skip
    occupancy = after("occupancy_sum_total") - before("occupancy_sum_total")
    assert 0 < occupancy <= 10_000
    assert after("commands_total", "launch") - before("commands_total", "launch") == 1
    assert after("commands_total", "read") - before("commands_total", "read") == 1


def test_bytes_are_downloaded_only_by_get(gpu: hearth.Device, moved: Callable[..., float]) -> None:
    x = gpu.asarray(np.arange(1000, dtype=np.int32))
    common(gpu, "add_one")((4,), (256,), (x, np.int32(1000)))
    assert repr(x) and len(x[10:20]) == 10 and x.reshape(10, 100)[2].shape == (100,)
    gpu.synchronize()
    assert moved("device_to_host_operations_total") == moved("commands_total", "read") == 0
    assert x[10:20].get().tolist() == list(range(11, 21))
    assert moved("device_to_host_operations_total") == 1 and moved("device_to_host_bytes_total") == 40


def test_launches_wait_for_no_answer(gpu: hearth.Device, moved: Callable[..., float]) -> None:
    """Launches return while the device is blocked, and share batches."""
    add_one, x = common(gpu, "add_one"), gpu.zeros(8, np.int32)
    add_one((1,), (8,), (x, np.int32(8)))
    gpu.synchronize()
    before = moved("batches_total")
    with gated(gpu) as gate:
        held = gpu.stream()
        gate.hold(stream=held)
        for _ in range(300):
            add_one((1,), (8,), (x, np.int32(8)), stream=held)
        assert not held.done
        gate.open()
        assert (x.get(stream=held) == 301).all()
    assert moved("batches_total") - before < 150


def test_commands_and_errors_by_operation(gpu: hearth.Device, raw: Raw, moved: Callable[..., float]) -> None:
    add_one, x, y = common(gpu, "add_one"), gpu.zeros(4, np.int32), gpu.zeros(4, np.int32)
    gpu.synchronize()
    add_one((1,), (4,), (x,))
    y.copy_from(x)  # skipped
    y.fill(3)
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()
    refused(raw.call, "Free", c.Free(buffers=[999]))
    with raw.execute() as stream:
        stream.batch(c.Command())  # a command without a kind
        stream.failures()
    assert moved("commands_total", "copy") == moved("command_errors_total", "copy") == 1
    assert moved("commands_total", "launch") == moved("command_errors_total", "launch") == 1
    assert moved("commands_total", "fill") == 3 and moved("command_errors_total", "fill") == 0
    assert moved("commands_total", "free") >= 1 and moved("command_errors_total", "free") == 1
    assert moved("commands_total", "other") == moved("command_errors_total", "other") == 1
    assert moved("command_errors_total", "sync") == 2, "they were answered with an earlier error"
    assert moved("command_failures_total", "INVALID_HANDLE") == 1 and moved("command_failures_total", "LAUNCH_INVALID")
    assert moved("command_failures_total", "DEPENDENCY_FAILED") == 1


def test_memory_copies_and_fills(gpu: hearth.Device, moved: Callable[..., float]) -> None:
    x = gpu.asarray(np.zeros(3 << 20, np.uint8))
    y = gpu.empty(3 << 20, np.uint8)
    y.copy_from(x)
    y.fill(1)
    y.get()
    x.free()
    too_much = gpu.empty(1 << 50, np.uint8)
    with pytest.raises(hearth.OutOfMemoryError):
        gpu.synchronize()
    too_much.free()
    gpu.synchronize()
    assert moved("host_to_device_bytes_total") == moved("device_to_host_bytes_total") == 3 << 20
    assert moved("device_to_device_bytes_total") == 3 << 20 and moved("device_to_device_operations_total") == 1
    assert moved("fills_total") == 1 and moved("filled_bytes_total") == 3 << 20
    assert moved("allocations_total") == 2 and moved("allocated_bytes_total") == 6 << 20
    assert moved("frees_total") == 1 and moved("freed_bytes_total") == 3 << 20
    assert moved("out_of_memory_total") == 1
    assert moved("transfer_seconds_count") >= 2


def test_bytes_are_counted_by_transfer_path(daemon: DaemonProcess, moved: Callable[..., float]) -> None:
    small, large, huge = (np.ones(size, np.uint8) for size in (1 << 10, 2 << 20, 9 << 20))
    with daemon.connect() as here, daemon.connect(lanes=False) as grpc, hearth.connect(daemon.grpc) as there:
        for node, data in ((here, large), (grpc, small), (grpc, large), (there, huge)):
            x = node.device(0).asarray(data)
            assert (x.get() == 1).all()
            doubled = node.device(0).empty_like(x)
            doubled.copy_from(x)
    for direction in ("upload", "download"):
        ways = {way: moved("transfer_bytes_total", f"{direction} {way}") for way in WAYS}
        assert ways == dict(zip(WAYS, (small.size, large.size, huge.size, large.size), strict=True)), direction


WAYS = ("inline", "chunks", "stripes", "shared_memory")


def test_modules_profiles_and_traces(gpu: hearth.Device, daemon: DaemonProcess, moved: Callable[..., float]) -> None:
    code = f'// {os.urandom(8).hex()}\nextern "C" __global__ void f() {{}}'
    with daemon.connect() as node:
        for _ in range(2):
            node.device(0).RawModule(code=code).get_function("f").num_regs  # noqa: B018
        with pytest.raises(hearth.CompileError):
            node.device(0).RawModule(code="nonsense").compile()
    with gpu.profile():
        gpu.synchronize()
    with pytest.raises(hearth.LaunchError), gpu.profile():
        common(gpu, "add_one")((1,), (1,), (np.uint64(0),))
    with gpu.trace(max_events=2):
        for _ in range(5):
            gpu.flush()
    assert moved("compile_cache_misses_total") == moved("compile_seconds_count") == 1
    assert moved("compile_cache_hits_total") >= 1 and moved("compile_failures_total") == 1
    assert moved("modules_loaded_total") >= 2
    wait_until(lambda: moved("modules_unloaded_total") >= 2, "the modules of the session that has ended")
    assert moved("profiles_total") == moved("profiles_void_total") == moved("traces_total") == 1
    assert moved("trace_events_total") == 2 and moved("trace_events_dropped_total") == 3


def started(page: Page) -> float:
    """Returns the number of commands of device 0 that are no longer waiting; commands of killed clients wait until
    their lease ends."""
    commands = sum(
        value for (name, device, _), value in page.samples.items() if (name, device) == ("hearth_commands_total", "0")
    )
    return commands - page("commands_waiting")


def test_histograms_count_waits_batches_and_turns(
    gpu: hearth.Device, daemon: DaemonProcess, moved: Callable[..., float]
) -> None:
    before = scrape(daemon)
    with gated(gpu) as gate:
        gate.hold()
        arrived = moved("commands_total", "sync")
        with pytest.raises(hearth.TimeoutError):
            # the client's timeout, which may pass before the daemon receives the command
            gpu.synchronize(timeout=0.1)
        wait_until(lambda: moved("commands_total", "sync") > arrived, "the command")
        time.sleep(0.05)  # the duration that is measured
        gate.open()
    assert moved("sync_wait_seconds_count") >= 2 and moved("sync_wait_seconds_sum") >= 0.05
    assert moved("batch_execution_seconds_count") >= 2 and moved("loop_turn_seconds_count") >= 2
    page = scrape(daemon)
    for name in HISTOGRAMS:
        buckets = page.buckets(name)
        counts = [count for _, count in buckets]
        assert counts == sorted(counts) and buckets[-1] == (float("inf"), page(f"{name}_seconds_count")), name
        assert all(abs(high / low - 2) < 1e-9 for (low, _), (high, _) in itertools.pairwise(buckets[:-1]))
        assert page(f"{name}_seconds_sum") >= 0
    # Compared with the start of the test, because commands that waited in a process that has ended are missing on all
    # pages.
    counted = page("queue_delay_seconds_count") - before("queue_delay_seconds_count")
    assert counted == started(page) - started(before) > 0, "it covers each command that does not wait"


def test_launches_are_timed_to_their_end(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """The first launch of a stream is timed, together with the work before it on the stream; then a sample of launches,
    however they are waited for."""
    add_one, x = common(gpu, "add_one"), gpu.zeros(8, np.int32)
    arguments = ((1,), (8,), (x, np.int32(8)))
    gpu.synchronize()
    before = scrape(daemon)

    def moved(name: str) -> float:
        return scrape(daemon)(f"launch_completion_seconds_{name}") - before(f"launch_completion_seconds_{name}")

    with gated(gpu) as gate:
        stream = gpu.stream()
        gate.hold(stream=stream)
        add_one(*arguments, stream=stream)
        gpu.flush()
        time.sleep(0.05)  # the duration that is measured
        gate.open()
        stream.synchronize()
    assert moved("count") >= 1 and moved("sum") >= 0.05
    count = moved("count")
    stream = gpu.stream()
    for _ in range(1000):
        add_one(*arguments, stream=stream)
    stream.synchronize()
    assert 1 <= moved("count") - count <= 60
    count = moved("count")
    for _ in range(128):
        add_one(*arguments, stream=stream)
        stream.synchronize()
    assert 3 <= moved("count") - count <= 16


def test_queue_delay_counts_waiting_commands(gpu: hearth.Device, moved: Callable[..., float]) -> None:
    code = f'// {os.urandom(8).hex()}\nextern "C" __global__ void f(int* x) {{ ++*x; }}'
    x = gpu.zeros(1, np.int32)
    gpu.RawModule(code=code).get_function("f")((1,), (1,), (x,))
    assert x.item() == 1
    assert moved("queue_delay_seconds_sum") > 0.02, "the launch and the read waited for the compile"


def test_gauges(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    names = ("buffers", "memory_in_use_bytes", "profiles_open", "traces_running", "commands_waiting")
    gpu.synchronize()
    before = scrape(daemon)

    def moved() -> dict[str, float]:
        page = scrape(daemon)
        assert page("memory_reserved_bytes") >= page("memory_in_use_bytes")
        return {name: page(name) - before(name) for name in names if page(name) != before(name)}

    x, y = gpu.zeros(1000, np.int32), gpu.zeros(24, np.uint8)
    gpu.synchronize()
    assert moved() == {"buffers": 2, "memory_in_use_bytes": 4024}
    with gpu.profile():
        gpu.flush()
        assert moved() == {"buffers": 2, "memory_in_use_bytes": 4024, "profiles_open": 1}
    x.free()
    y.free()
    gpu.synchronize()
    assert moved() == {}


def test_counters_survive_their_process(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=1)
    with daemon.connect() as node:
        gpu = node.device(0)
        add_one = common(gpu, "add_one")
        x = gpu.zeros(10, np.int32)
        for _ in range(7):
            add_one((1,), (10,), (x, np.int32(10)))
        gpu.synchronize()
        before = scrape(daemon)
        assert before("kernel_launches_total") == 7
        os.kill(daemon.device_pid(), signal.SIGKILL)
        wait_until(lambda: daemon.status()["devices"][0]["generation"] == 2, "the next process")
        between = scrape(daemon)
        assert between("kernel_launches_total") == 7 and between("device_generation") == 2
        y = gpu.zeros(10, np.int32)
        add_one((1,), (10,), (y, np.int32(10)))
        assert (y.get() == 1).all()
        after = scrape(daemon)
    assert after("kernel_launches_total") == 8
    assert all(
        after.samples[key] >= value
        for key, value in before.samples.items()
        if key[0].endswith(("_total", "_bucket", "_count")) and key in after.samples
    )
    assert after("commands_total", "launch") == 8
    assert daemon.counter("kernel_launches", 0) == 8


def test_counts_of_a_process_that_ends_itself_are_not_lost(start_daemon: StartDaemon) -> None:
    """The front does not query the process between the launch and its end: the process reports unasked."""
    daemon = start_daemon(cpu_count=1)
    with daemon.connect() as node:
        gpu = node.device(0)
        code = '__device__ volatile int on = 1; extern "C" __global__ void stuck() { while (on) {} }'
        stuck = gpu.RawKernel(code, "stuck")
        stuck.num_regs  # noqa: B018
        with pytest.raises(hearth.DeviceLostError):
            stuck((1,), (1,), (), timeout=0.05)
            gpu.synchronize()
        wait_until(lambda: scrape(daemon)("device_recovery_seconds_count") == 1, "the next process")
    page = scrape(daemon)
    assert page("kernel_launches_total") == page("kernel_timeouts_total") == 1
    assert page("device_restarts_total", "fault") == page("device_up") == 1
    assert page("device_start_seconds_count") == 2 and page("device_process_resident_memory_bytes") > 1 << 20
