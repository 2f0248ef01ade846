"""Sources that exceed a compiler's limits, or that try to include files of the host: only their sender is affected."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, alive, on_cpu, wait_until
from tests.support.daemon.kernels import common, saxpy_works
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.slow_compile import SLOW, processes
from tests.support.daemon.tenants import tenant, tenants
from tests.support.timing import LATE

TIMEOUT_S = 60.0
"""Time limit of a compile in seconds, for all tests but that of the time limit: an ordinary compile takes less, even on
a busy machine."""
SHORT_S = 5.0
"""Time limit of a compile in seconds in the test of the time limit."""
MEMORY = 256 << 20

LAUGHS = (
    "#define A0 x += 1; x *= 3;\n"
    + "".join(f"#define A{n} {f'A{n - 1} ' * 10}\n" for n in range(1, 10))
    + 'extern "C" __global__ void f(int* p) { int x = *p; A9 *p = x; }'
)
"""Expands to ten characters a billion times."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[DaemonProcess]:
    """A daemon with a tight limit on the memory of compiles."""
    with _limited(cache, TIMEOUT_S) as process:
        yield process


@pytest.fixture(scope="module")
def hasty(cache: Path) -> Iterator[DaemonProcess]:
    """A daemon with tight limits on the time and the memory of compiles."""
    with _limited(cache, SHORT_S) as process:
        yield process


@contextlib.contextmanager
def _limited(cache: Path, seconds: float) -> Iterator[DaemonProcess]:
    config = {"compile": {"timeout": f"{seconds:g}s", "memory": str(MEMORY), "workers": 1}}
    process = DaemonProcess(cache, config, cpu_count=1)
    pids = [device["pid"] for device in process.status()["devices"]]
    yield process
    assert [device["pid"] for device in process.status()["devices"]] == pids, process.log()[-4000:]
    code, left = process.stop(), process.left_behind()
    process.remove()
    assert code == 0 and not left


@pytest.fixture
def gpu(limited: DaemonProcess) -> Iterator[hearth.Device]:
    with limited.connect() as node:
        yield node.device(0)


def fresh(body: str) -> str:
    """Returns a source that is in no cache."""
    return f"// {uuid.uuid4()}\n{body}"


def compile_error(gpu: hearth.Device, code: str, **more: object) -> hearth.HearthError:
    with pytest.raises(hearth.HearthError) as caught:
        gpu.RawModule(code=fresh(code), **more).compile()
    return caught.value


def test_time_is_bounded(hasty: DaemonProcess, gpu: hearth.Device) -> None:
    saxpy_works(gpu)  # compiled by the other daemon, whose cache the `hasty` one shares
    before = hasty.counter("compile_crashes")
    with hasty.connect() as node:
        started = time.monotonic()
        error = compile_error(node.device(0), SLOW)
        took = time.monotonic() - started
        assert error.reason == "COMPILE_LIMIT" and error.details["limit"] == "time"
        assert f"{SHORT_S:g} s" in str(error) and "compile.timeout" in error.fix
        assert SHORT_S <= took < SHORT_S + LATE
        assert hasty.counter("compile_crashes") == before + 1
        saxpy_works(node.device(0))


def test_long_compile_delays_no_other_session(start_daemon: StartDaemon) -> None:
    """Another session's compile does not wait for the only configured worker."""
    daemon = start_daemon(compile={"timeout": "60s", "workers": 1})
    with daemon.connect() as busy, daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)  # compiles everything that all kernels share
        module = busy.device(0).RawModule(code=fresh(SLOW))
        worker = wait_until(lambda: _busy_worker(daemon.device_pid()), "a worker that compiles")
        x = gpu.zeros(16, np.int32)
        add_one = common(gpu, "add_one")
        add_one((1,), (16,), (x, np.int32(16)))
        fresh_module = gpu.RawModule(code=fresh('extern "C" __global__ void f(int* x) { *x += 1000; }'))
        fresh_module.get_function("f")((1,), (1,), (x,))
        assert x.get()[0] == 1001
        for _ in range(50):
            add_one((1,), (16,), (x, np.int32(16)))
            gpu.synchronize()
        assert alive(worker), "the other session's compile, or its launches, waited for the slow compile"
        assert x.get()[1] == 51
        del module


@on_cpu
def test_endless_compiles_of_one_tenant_do_not_starve_others(start_daemon: StartDaemon) -> None:
    """Each tenant's device process has separate compile workers, so that compiles of other tenants never queue after
    its own."""
    compiling = {"timeout": "600s", "workers": 1}
    config, tokens = tenants("flood", "other", tenant("operator", rights=["admin"]), compile=compiling)
    daemon = start_daemon(cpu_count=1, **config)
    daemon.token = tokens["operator"]

    def workers(tenant: str) -> dict[str, int]:
        (device,) = daemon.status()["devices"]
        (pid,) = (each["pid"] for each in device["processes"] if each["tenant"] == tenant)
        return {"pid": pid, "busy": sum("cc1plus" in name for name in processes(pid).values())}

    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(daemon.connect(token=tokens["flood"])) for _ in range(3)]
        modules = [node.device(0).RawModule(code=fresh(SLOW)) for node in sessions for _ in range(8)]
        wait_until(lambda: workers("flood")["busy"] == 2, "as many compiles of the flood as may run", 60)
        with daemon.connect(token=tokens["other"]) as node:
            for _ in range(3):
                node.device(0).RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
            saxpy_works(node.device(0))
        assert workers("flood")["busy"] == 2, "its compiles continue, at most two concurrently"
        del modules


def test_memory_is_bounded(gpu: hearth.Device) -> None:
    error = compile_error(gpu, LAUGHS)
    assert error.reason == "COMPILE_LIMIT" and error.details["limit"] in ("memory", "time")
    assert error.details["allowed"] in (str(MEMORY), str(TIMEOUT_S)) and error.fix
    saxpy_works(gpu)


@pytest.mark.parametrize(
    "code",
    [
        "template <int N> struct F { static const int v = F<N - 1>::v + 1; };\n"
        'extern "C" __global__ void f(int* x) { *x = F<100000000>::v; }',
        "__device__ constexpr long loop(long n) { long s = 0; for (long i = 0; i < n; i++) s += i; return s; }\n"
        'extern "C" __global__ void f(long* x) { constexpr long v = loop(100000000000l); *x = v; }',
        '#include "self.h"',
        # NVRTC accepts a million of these; g++ does not.
        'extern "C" __global__ void f(int' + "*" * 300_000 + " x) {}" + ("" if BACKEND == "cpu" else "\n#error"),
        "__device__ int a[1ull << 32] = {1};\n" + 'extern "C" __global__ void f(int* x) { *x = a[5]; }',
    ],
    ids=["template depth", "constexpr loop", "include itself", "pointers", "array"],
)
def test_compile_bombs_fail_with_cause(gpu: hearth.Device, code: str) -> None:
    started = time.monotonic()
    error = compile_error(gpu, code, headers={"self.h": '#include "self.h"\n'})
    assert error.reason in ("COMPILE_FAILED", "COMPILE_LIMIT")
    assert error.details.get("log") or error.reason == "COMPILE_LIMIT" or error.details.get("signal")
    assert time.monotonic() - started < TIMEOUT_S + LATE


def test_the_log_of_a_failed_compile_passes_through_the_worker(gpu: hearth.Device) -> None:
    error = compile_error(gpu, "int f() {\n    return no_such_name;\n}\n")
    assert error.reason == "COMPILE_FAILED" and "no_such_name" in error.details["log"]
    undeclared = "".join(f"__device__ int f{n}() {{ return undeclared_{n}; }}\n" for n in range(2000))
    error = compile_error(gpu, undeclared)
    assert "undeclared_0" in error.details["log"] and len(error.details["log"]) < 1 << 20


def test_a_compiler_that_crashes_costs_one_compile(limited: DaemonProcess, gpu: hearth.Device) -> None:
    device = limited.device_pid()
    before = limited.counter("compile_crashes")
    saxpy_works(gpu)  # ensures that a compile worker exists
    module = gpu.RawModule(code=fresh(SLOW))
    worker = wait_until(lambda: _busy_worker(device), "a worker that compiles")
    os.kill(worker, signal.SIGSEGV)
    with pytest.raises(hearth.CompileError) as caught:
        module.compile()
    assert caught.value.reason == "COMPILE_FAILED" and caught.value.details["signal"] == "SIGSEGV"
    assert "SIGSEGV" in str(caught.value)
    gpu.RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
    assert limited.counter("compile_crashes") == before + 1


def _busy_worker(device: int) -> int:
    """Returns the pid of the busy compile worker of a device process: a worker with a compiler as a child, or with
    processor time; 0 if none is busy."""
    workers = [pid for pid in processes(device) if _parent(pid) == _broker(device)]
    if BACKEND == "cpu":
        return next((pid for pid in workers if "cc1plus" in processes(pid).values()), 0)
    before = {pid: _cpu_ticks(pid) for pid in workers}
    if all(ticks < 60 for ticks in before.values()):
        return 0  # no more than a worker needs to start
    time.sleep(0.1)
    return next((pid for pid, ticks in before.items() if _cpu_ticks(pid) > ticks + 5), 0)


def _broker(device: int) -> int:
    """Returns the pid of the broker of a device process, which is the child of its keeper; 0 while there is no
    broker."""
    found = (pid for pid in processes(device) if _parent(_parent(pid)) == device)
    return next(found, 0)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"] + ["0"] * 50


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _cpu_ticks(pid: int) -> int:
    return int(_stat(pid)[11])


def test_compile_is_stopped_when_its_session_ends(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(compile={"timeout": "60s", "workers": 1})
    device = daemon.device_pid()
    with daemon.connect() as node:
        module = node.device(0).RawModule(code=fresh(SLOW))
        worker = wait_until(lambda: _busy_worker(device), "a worker that compiles")
    del module
    wait_until(lambda: not alive(worker), "the end of the worker")
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    assert daemon.device_pid() == device


def test_compile_of_a_dropped_module_is_stopped(gpu: hearth.Device, limited: DaemonProcess) -> None:
    device = limited.device_pid()
    module = gpu.RawModule(code=fresh(SLOW))
    worker = wait_until(lambda: _busy_worker(device), "a worker that compiles")
    del module
    wait_until(lambda: not alive(worker), "the end of the worker", TIMEOUT_S / 2)
    saxpy_works(gpu)


def test_compile_workers_end_with_a_killed_device_process(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(compile={"timeout": "60s"})
    device = daemon.device_pid()
    with daemon.connect() as node:
        module = node.device(0).RawModule(code=fresh(SLOW))
        wait_until(lambda: _busy_worker(device), "a worker that compiles")
        under = processes(device)
        os.kill(device, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, under)), "the end of the workers")
        del module


@on_cpu
def test_a_broker_that_is_killed_is_replaced(start_daemon: StartDaemon) -> None:
    """The next broker compiles the pending sources; the device process and its sessions are unaffected."""
    daemon = start_daemon(compile={"timeout": "60s", "workers": 1})
    device = daemon.device_pid()
    with daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        broker = _broker(device)
        os.kill(broker, signal.SIGKILL)
        gpu.RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
        second = _broker(device)
        assert second not in (0, broker)
        module = gpu.RawModule(code=fresh(SLOW))
        worker = wait_until(lambda: _busy_worker(device), "a worker that compiles")
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: not alive(worker), "the end of its worker")
        wait_until(lambda: _busy_worker(device), "the same compile at a third broker", 60)
        del module
        gpu.RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
        saxpy_works(gpu)
        assert daemon.device_pid() == device and _broker(device) not in (broker, second)
    assert daemon.log().count('"broker_lost"') == 2
    assert 'hearth_brokers_lost_total{device="0",tenant="default"} 2' in daemon.get("/metrics").body


@on_cpu
def test_a_device_process_without_a_keeper_is_replaced_when_it_is_unused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    device = daemon.device_pid()
    with daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        os.kill(_parent(_broker(device)), signal.SIGKILL)
        with pytest.raises(hearth.HearthError, match="broker") as caught:
            gpu.RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
        assert caught.value.reason == "INTERNAL" and "restart-device" in caught.value.fix
        wait_until(lambda: "keeper_lost" in daemon.log(), "the record of the loss")
        saxpy_works(gpu)  # compiled kernels continue to work
        assert daemon.device_pid() == device
    wait_until(lambda: not alive(device), "the end of the process that can compile nothing")
    with daemon.connect() as node:
        gpu = node.device(0)
        gpu.RawModule(code=fresh('extern "C" __global__ void f() {}')).compile()
        saxpy_works(gpu)
        assert gpu.generation == 2


# ---- sources that are too large ----


def test_a_source_of_50_mib(limited: DaemonProcess, gpu: hearth.Device) -> None:
    large = "// " + "x" * (50 << 20)
    with pytest.raises(hearth.ArgumentError, match="bytes; the daemon accepts at most") as caught:
        gpu.RawModule(code=large)
    assert caught.value.reason == "MESSAGE_TOO_LARGE" and caught.value.fix
    with Raw(limited.unix) as raw:
        limit = raw.opened.limits.max_code_bytes
        for size in (limit + 1, 50 << 20):
            load = c.LoadModule(module=raw.mint(), kind=c.CODE_KIND_CUDA_CPP, code=b" " * size)
            try:
                error = refused(raw.call, "LoadModule", load)
                assert error.reason == Reason.MESSAGE_TOO_LARGE and error.details["allowed"] == str(limit)
            except AssertionError:  # gRPC's own limit applies first, and gives no details
                assert size > 31 << 20
    saxpy_works(gpu)


# ---- files of the host ----


@pytest.mark.parametrize(
    "code",
    [
        '#include "/etc/passwd"',
        '#include "../../../../../../etc/passwd"',
        "#define S(x) #x\n#define Q(x) S(x)\n#include Q(/etc/passwd)",
        '#line 1 "/etc/passwd"\n#error quoted',
        '#if __has_include("/etc/passwd")\n#error it is there\n#endif',
        'const char x[] = {\n#embed "/etc/passwd"\n};',
        '__asm__(".incbin \\"/etc/passwd\\"");',
    ],
    ids=["absolute", "relative", "macro", "line", "has_include", "embed", "incbin"],
)
def test_files_of_the_host_cannot_be_read_through_the_compiler(gpu: hearth.Device, code: str) -> None:
    error = compile_error(gpu, code)
    assert error.reason == "COMPILE_FAILED"
    told = f"{error} {error.fix} {error.details}"
    assert "root:" not in told and "it is there" not in told
    assert "headers=" in error.fix and error.details["include"] and int(error.details["line"]) >= 2


def test_files_in_daemon_working_directory_are_not_included(gpu: hearth.Device) -> None:
    """NVRTC searches the working directory, which would be the daemon's without an explicit setting."""
    for name in ("Makefile", "pyproject.toml", "hearth.sock"):
        error = compile_error(gpu, f'#include "{name}"\nint x = no_such_name;')
        assert error.reason == "COMPILE_FAILED" and name in error.details["log"] and "headers=" in error.fix
        assert "PHONY" not in error.details["log"] and "hatchling" not in error.details["log"]


@pytest.mark.parametrize("name", ["/etc/mine.h", "../mine.h", "a/../../mine.h", ""])
def test_invalid_header_names_are_refused(gpu: hearth.Device, name: str) -> None:
    error = compile_error(gpu, 'extern "C" __global__ void f() {}', headers={name: "int x;"})
    assert error.reason == "COMPILE_FAILED" and "header name" in str(error) and error.fix
