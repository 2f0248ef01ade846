"""Times, prints, NVTX ranges and kernel activity on a real GPU: properties that a fake cannot show."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hearth
from hearthd.device.backend.compiler import Image, Source
from hearthd.device.printf_capture import may_print
from tests.support.daemon.harness import environment

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Event, Stream

pytestmark = pytest.mark.gpu

SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""

SAY = r"""
extern "C" __global__ void say(int n) { printf("%d says thread %d\n", n, threadIdx.x); }
"""

MS = 1_000_000

Start = Callable[..., hearth.Node]


def until(server: CudaServer, event: Event, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not server.done(event):
        assert time.monotonic() < deadline, "the event did not complete"
        time.sleep(0.0002)


def launch(server: CudaServer, code: str, name: str, stream: Stream, *values: Any) -> None:
    image = server.compiler.compile(Source(code))
    params = b"".join(value.tobytes() for value in values)
    server.launch(server.load(image).function(name), (1, 1, 1), (1, 1, 1), 0, stream, bytearray(params))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon on the first GPU, with settings of `[profile]` as keywords; returns a connection to it."""
    started: list[tuple[subprocess.Popen[str], hearth.Node]] = []

    def serve(**profile: bool) -> hearth.Node:
        config = tmp_path / f"{uuid.uuid4().hex[:8]}.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in profile.items()]
        config.write_text("\n".join(["[profile]", *lines, "[devices]", "visible = [0]"]))
        socket = tmp_path / "s"
        arguments = ["--config", str(config), "--backend", "cuda", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hearthd", "serve", *arguments, "--lanes", "", "--unix", str(socket)],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment(),
            )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("hearthd ready"), (line, (tmp_path / "log").read_text())
        node = hearth.connect(f"unix:{socket}")
        started.append((process, node))
        return node

    yield serve
    for process, node in started:
        node.close()
        process.terminate()
        process.wait(20)


# ---- times ----


def test_events_agree_with_those_of_cupy(server: CudaServer) -> None:
    import cupy

    kernel = cupy.RawKernel(SPIN, "spin")
    kernel((1,), (1,), (np.int64(1000),))
    stream = server.create_stream()
    with cupy.cuda.ExternalStream(stream.pointer):
        theirs = cupy.cuda.Event(), cupy.cuda.Event()
        ours = [server.record(stream, timing=True)]
        theirs[0].record()
        kernel((1,), (1,), (np.int64(20 * MS),))
        theirs[1].record()
        ours.append(server.record(stream, timing=True))
    until(server, ours[1])
    elapsed = server.elapsed_ns(*ours)
    theirs_ns = cupy.cuda.get_elapsed_time(*theirs) * 1e6
    assert 20 * MS <= theirs_ns <= elapsed <= theirs_ns + 0.2 * MS


def test_cold_and_warm_kernel_times_agree(start: Start) -> None:
    """Same definition as vyre (V1): a compile, a module load or a copy is not part of a kernel's time."""
    gpu = start().device(0)
    times = []
    spin = gpu.RawModule(code=f"// {uuid.uuid4()}\n{SPIN}").get_function("spin")
    for _ in range(4):
        with gpu.profile() as profile:
            spin((1,), (1,), (np.int64(10 * MS),))
        times.append(profile.device_ns)
    cold, *warm = times
    assert all(10 * MS <= each < 11 * MS for each in warm), times
    assert abs(cold - min(warm)) < 0.5 * MS, times
    with gpu.profile() as nested, gpu.profile() as inner:
        spin((1,), (1,), (np.int64(5 * MS),))
    assert 5 * MS <= inner.device_ns <= nested.device_ns < 10 * MS


def test_a_trace_has_the_devices_times(start: Start) -> None:
    gpu = start().device(0)
    spin = gpu.RawModule(code=SPIN).get_function("spin")
    side = gpu.stream()
    x = gpu.zeros(64 << 20, np.uint8)
    spin((1,), (1,), (np.int64(1000),))
    gpu.synchronize()
    with gpu.trace() as trace:
        spin((1,), (1,), (np.int64(8 * MS),))
        spin((1,), (1,), (np.int64(4 * MS),), stream=side)
        x.get()
        for _ in range(300):
            spin((1,), (1,), (np.int64(1000),))
        gpu.synchronize()
    events = trace.events
    for event in events:
        assert 0 <= event.queued_ns <= event.submitted_ns <= event.started_ns <= event.ended_ns, event
    long, beside = events[0], events[1]
    assert 8 * MS <= long.device_ns < 9 * MS and 4 * MS <= beside.device_ns < 5 * MS
    assert beside.started_ns < long.ended_ns, "two streams run concurrently"
    assert long.started_ns - long.submitted_ns < 1 * MS, "a command that starts immediately aligns the clocks"
    short = [event for event in events[2:] if event.name == "launch"]
    assert len(short) == 300 and sorted(event.device_ns for event in short)[150] < 0.2 * MS
    ends = [event.ended_ns for event in events if event.stream == 0 and event.device_ns]
    assert ends == sorted(ends)
    reads = [event for event in events if event.name == "read"]  # through shared memory, piece by piece
    assert sum(read.bytes for read in reads) == 64 << 20
    assert all(read.started_ns >= long.ended_ns - 2000 for read in reads)


# ---- printf ----


def test_kernels_that_print_are_recognised(server: CudaServer) -> None:
    say = server.compiler.compile(Source(SAY))
    spin = server.compiler.compile(Source(SPIN))
    assert may_print(say.code) and not may_print(spin.code)
    assert isinstance(say, Image)


def test_flush_delivers_output_of_completed_kernels_without_waiting(
    server: CudaServer, capfd: pytest.CaptureFixture[str]
) -> None:
    stream, busy = server.create_stream(), server.create_stream()
    server.flush_output()
    launch(server, SAY, "say", stream, np.int32(7))
    until(server, server.record(stream))
    launch(server, SPIN, "spin", busy, np.int64(300 * MS))
    running = server.record(busy)
    began = time.perf_counter()
    for _ in range(100):
        server.flush_output()
    took = time.perf_counter() - began
    assert not server.done(running), "the other kernel still runs"
    assert took < 0.1, "a flush does not wait for kernels"
    assert "7 says thread 0\n" in capfd.readouterr().out
    until(server, running)


def test_prints_arrive_before_the_answer(start: Start) -> None:
    node = start()
    gpu = node.device(0)
    texts: list[str] = []
    node.on_output(texts.append)
    say = gpu.RawModule(code=SAY).get_function("say")
    x = gpu.zeros(4, np.int32)
    for n, wait in enumerate((gpu.synchronize, x.get, gpu.default_stream.synchronize)):
        say((1,), (2,), (np.int32(n),))
        wait()
        assert "".join(texts) == f"{n} says thread 0\n{n} says thread 1\n"
        texts.clear()
    for n in range(50):
        say((1,), (1,), (np.int32(n),))
    gpu.synchronize()
    assert "".join(texts) == "".join(f"{n} says thread 0\n" for n in range(50))


def test_waiting_for_a_print_does_not_wait_for_others(start: Start) -> None:
    node = start()
    gpu = node.device(0)
    texts: list[str] = []
    node.on_output(texts.append)
    say, spin = gpu.RawModule(code=SAY).get_function("say"), gpu.RawModule(code=SPIN).get_function("spin")
    busy, free = gpu.stream(), gpu.stream()
    say((1,), (1,), (np.int32(1),), stream=free)
    spin((1,), (1,), (np.int64(1000),), stream=busy)
    gpu.synchronize()
    spin((1,), (1,), (np.int64(500 * MS),), stream=busy)
    began = time.perf_counter()
    say((1,), (1,), (np.int32(2),), stream=free)
    free.synchronize()
    assert time.perf_counter() - began < 0.3 and texts[-1] == "2 says thread 0\n"
    gpu.synchronize()


# ---- NVTX and CUPTI ----


def test_ranges_change_nothing_but_the_profilers_view(start: Start, tmp_path: Path) -> None:
    gpu = start(nvtx=True).device(0)
    spin = gpu.RawModule(code=SPIN).get_function("spin")
    with gpu.trace() as trace:
        for _ in range(20):
            spin((1,), (1,), (np.int64(1000),))
        gpu.synchronize()
    assert len(trace.events) == 21 and not any(event.error for event in trace.events)
    assert "NVTX" not in (tmp_path / "log").read_text(), "CuPy has it, where the nvtx package is not installed"


@pytest.mark.skipif(importlib.util.find_spec("cupti") is None, reason="cupti-python is not installed")
def test_cuptis_kernels_agree_with_the_events(start: Start, tmp_path: Path) -> None:
    gpu = start(cupti=True).device(0)
    spin = gpu.RawModule(code=SPIN).get_function("spin")
    spin((1,), (1,), (np.int64(1000),))
    gpu.synchronize()
    with gpu.trace() as trace:
        for _ in range(10):
            spin((2,), (32,), (np.int64(1 * MS),))
        gpu.synchronize()
    log = (tmp_path / "log").read_text()
    assert "CUPTI" not in log, log
    launches = [event for event in trace.events if event.name == "launch"]
    assert len(trace.kernels) == 10
    for event, kernel in zip(launches, trace.kernels, strict=True):
        assert (kernel.seq, kernel.index, kernel.name) == (event.seq, event.index, "spin")
        assert (kernel.grid, kernel.block) == (event.grid, event.block)
        assert kernel.registers >= spin.num_regs  # the allocated number, which is rounded up
        assert 1 * MS <= kernel.ended_ns - kernel.started_ns <= event.device_ns + 2000
        assert abs(kernel.started_ns - event.started_ns) < 0.2 * MS
    with gpu.graph() as graph:
        for _ in range(3):
            spin((1,), (1,), (np.int64(1000),))
    with gpu.trace() as trace:
        graph.launch(2)
        gpu.synchronize()
    assert len(trace.kernels) == 6 and len({(kernel.seq, kernel.index) for kernel in trace.kernels}) == 1


@pytest.mark.skipif(importlib.util.find_spec("cupti") is not None, reason="cupti-python is installed")
def test_missing_cupti_is_logged_with_the_reason(start: Start, tmp_path: Path) -> None:
    gpu = start(cupti=True).device(0)
    with gpu.trace() as trace:
        gpu.zeros(4, np.int32)
    assert trace.kernels == [] and trace.events
    assert "cupti-python" in (tmp_path / "log").read_text()
