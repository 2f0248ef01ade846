"""Record of a kernel that crashes its process, read from a file after the process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.shared import crash_record
from hearthd.shared.crash_record import Crash, CrashRecord, RunningKernel
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cassert>
extern "C" int raise(int);
extern "C" void exit(int);
extern "C" __global__ void fine(int* p) { p[threadIdx.x + blockIdx.x] = 1; }
extern "C" __global__ void wild(char* p) { if (blockIdx.x + 1 == gridDim.x) p[4096] = 1; }
extern "C" __global__ void wild_in_fiber(char* p) { __syncthreads(); if (threadIdx.x == 3) p[4096] = 1; }
extern "C" __global__ void overflow(int* p) {
    __syncthreads();
    volatile char big[1 << 20];
    big[p[1]] = 1;
    p[0] = big[p[2] + 5];
}
extern "C" __global__ void trap(int*) { if (threadIdx.x == 3) __trap(); }
extern "C" __global__ void check(long n) { assert(n > int(threadIdx.x) && "too few"); }
extern "C" __global__ void illegal(int*) { __builtin_trap(); }
extern "C" __global__ void raises(long number) { raise(int(number)); }
extern "C" __global__ void leaves(long code) { exit(int(code)); }
extern "C" __global__ void endless(volatile int* p) { while (p[0] == 0) {} }
extern "C" __global__ void divides(int* p) { p[0] = 5 / p[1]; }
"""
LONG = "a_kernel_with_a_very_long_name" * 8


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "module.so"
    path.write_bytes(Kernels(SOURCE + f'extern "C" __global__ void {LONG}(int*) {{ __builtin_trap(); }}').image)
    return path


@pytest.fixture
def record() -> Iterator[int]:
    file = crash_record.make()
    yield file
    os.close(file)


SCRIPT = """
import os, pathlib, struct, sys, threading, time
import numpy as np
from hearthd.shared import crash_record
from hearthd.device.cpu.crash_recorder import CrashRecorder
from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.toolchain import find_toolchain
crashes = CrashRecorder()
module = CpuModule(pathlib.Path(sys.argv[1]).read_bytes(), find_toolchain())
crashes.set_runtime(module.runtime)
crashes.start(os.dup(int(sys.argv[2])))
out = np.zeros(64, np.int32)
def launch(name, value=None, grid=1, block=4, session="a-session"):
    crashes.set_session(session)
    block_of_parameters = struct.pack("=q", out.ctypes.data if value is None else value)
    module.function(name).launch((grid, 1, 1), (block, 1, 1), 0, block_of_parameters)
def beside(name, session):
    threading.Thread(target=launch, args=(name,), kwargs={"session": session}, daemon=True).start()
    while name not in [each.kernel for each in crash_record.read(int(sys.argv[2])).running]:
        time.sleep(0.001)
"""


def dies(image: Path, record: int, body: str) -> tuple[int, CrashRecord, str]:
    """Runs the script; returns its exit code, the record, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + textwrap.dedent(body), str(image), str(record)],
        pass_fds=(record,), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, crash_record.read(record), done.stderr


def crash_of(image: Path, record: int, body: str, number: int) -> Crash:
    code, last, err = dies(image, record, body)
    assert code == -number, err
    assert last.crash is not None and last.crash.signal == number
    return last.crash


@pytest.mark.parametrize("grid", [1, 64])
def test_a_wild_pointer_names_kernel_session_address_and_block(image: Path, record: int, grid: int) -> None:
    """Checks any of 64 blocks, because any worker thread may run the last one."""
    crash = crash_of(image, record, f"launch('fine'); launch('wild', 8192, grid={grid})", signal.SIGSEGV)
    assert crash == Crash(signal.SIGSEGV, RunningKernel("wild", "a-session"), 3 * 4096, (grid - 1, 0, 0))


def test_fault_in_a_fiber_is_attributed(image: Path, record: int) -> None:
    crash = crash_of(image, record, "launch('wild_in_fiber', 8192)", signal.SIGSEGV)
    assert (crash.culprit, crash.address) == (RunningKernel("wild_in_fiber", "a-session"), 3 * 4096)


def test_stack_overflow_is_attributed(image: Path, record: int) -> None:
    crash = crash_of(image, record, "launch('overflow', block=2)", signal.SIGSEGV)
    assert crash.culprit == RunningKernel("overflow", "a-session")


def test_impossible_address_is_omitted_or_exact(image: Path, record: int) -> None:
    crash = crash_of(image, record, "launch('wild', 1 << 62)", signal.SIGSEGV)
    assert crash.culprit == RunningKernel("wild", "a-session")
    assert crash.address in (None, (1 << 62) + 4096)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("launch('trap')", "hearth: __trap(): block: [0,0,0], thread: [3,0,0]"),
        ("launch('check', 2)", 'thread: [2,0,0] Assertion `n > int(threadIdx.x) && "too few"` failed.'),
    ],
)
def test_error_text_of_process_is_kept(image: Path, record: int, call: str, said: str) -> None:
    crash = crash_of(image, record, call, signal.SIGABRT)
    assert crash.culprit is not None and crash.culprit.kernel in call
    assert said in crash.message and crash.address is None


def test_an_illegal_instruction(image: Path, record: int) -> None:
    crash = crash_of(image, record, "launch('illegal')", signal.SIGILL)
    assert crash.culprit == RunningKernel("illegal", "a-session") and crash.address is None


@pytest.mark.parametrize(
    "number", [signal.SIGFPE, signal.SIGBUS, signal.SIGABRT, signal.SIGSEGV, signal.SIGTRAP, signal.SIGSYS]
)
def test_signals_raised_by_the_kernel_itself(image: Path, record: int, number: int) -> None:
    crash = crash_of(image, record, f"launch('raises', {int(number)})", number)
    assert crash == Crash(number, RunningKernel("raises", "a-session"))


def test_a_long_name_is_cut(image: Path, record: int) -> None:
    crash = crash_of(image, record, f"launch({LONG!r})", signal.SIGILL)
    assert crash.culprit is not None and crash.culprit.kernel == LONG[:191]


def test_record_distinguishes_the_faulting_kernel_from_concurrent_ones(image: Path, record: int) -> None:
    body = """
    beside("endless", "bystander")
    launch("wild", 8192, session="culprit")
    """
    code, last, err = dies(image, record, body)
    assert code == -signal.SIGSEGV, err
    assert last.crash is not None and last.crash.culprit == RunningKernel("wild", "culprit")
    assert set(last.running) == {RunningKernel("wild", "culprit"), RunningKernel("endless", "bystander")}


def test_fault_outside_of_kernels_is_attributed_to_no_running_kernel(image: Path, record: int) -> None:
    body = """
    import ctypes
    beside("endless", "bystander")
    ctypes.memset(8192, 0, 8)
    """
    code, last, err = dies(image, record, body)
    assert code == -signal.SIGSEGV, err
    assert last == CrashRecord((RunningKernel("endless", "bystander"),), Crash(signal.SIGSEGV, None, 8192))


def test_killed_process_leaves_the_running_kernels(image: Path, record: int) -> None:
    code, last, _ = dies(image, record, "beside('endless', 's'); os.kill(os.getpid(), 9); time.sleep(60)")
    assert (code, last) == (-signal.SIGKILL, CrashRecord((RunningKernel("endless", "s"),)))


def test_a_signal_from_outside_names_its_sender(image: Path, record: int) -> None:
    body = """
    child = os.fork()
    if child == 0:
        os.kill(os.getppid(), 11)
        os._exit(0)
    time.sleep(60)
    """
    launched = "launch('fine')\n" + textwrap.dedent(body)
    crash = crash_of(image, record, launched, signal.SIGSEGV)
    assert crash.culprit is None and crash.sender > 0


def test_kernel_that_calls_exit(image: Path, record: int) -> None:
    code, last, _ = dies(image, record, "launch('leaves', 7)")
    assert (code, last) == (7, CrashRecord((RunningKernel("leaves", "a-session"),)))


def test_completed_kernels_leave_no_record(image: Path, record: int) -> None:
    """Checks that division by zero has a result, and that threads that end free their slots."""
    body = """
    launch("divides")
    for i in range(2000):
        thread = threading.Thread(target=launch, args=("divides",))
        thread.start()
        thread.join()
    """
    code, last, err = dies(image, record, body)
    assert (code, last) == (0, CrashRecord()), err
    head = 512
    taken = [
        number for number in range(crash_record.SLOTS)
        if os.pread(record, 4, head + number * 256) != bytes(4)
    ]  # fmt: skip
    assert len(taken) <= 1


def test_the_file_cannot_be_made_shorter(record: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(record, 0)
    assert crash_record.read(record) == CrashRecord()


@given(st.binary(min_size=52, max_size=4096), st.integers(0, crash_record.SIZE - 4096))
def test_corrupt_records_are_parsed_without_error(noise: bytes, at: int) -> None:
    data = bytearray(crash_record.SIZE)
    data[at : at + len(noise)] = noise
    data[: min(8, len(noise))] = (2).to_bytes(4, "little") + noise[4:8]
    last = crash_record.parse(bytes(data))
    for each in last.running:
        assert each.kernel.isprintable() and len(each.kernel) <= 192
    assert crash_record.parse(noise) == CrashRecord()
