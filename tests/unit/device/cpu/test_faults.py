"""Faults of a kernel are real: they end the process, and therefore kernels run in separate processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cassert>
extern "C" __global__ void wild(int* p) { p[threadIdx.x + blockIdx.x] = 1; }
extern "C" __global__ void wild_in_fiber(int* p) { __syncthreads(); p[threadIdx.x] = 1; }
extern "C" __global__ void endless(volatile int* p) { while (p[0] == 0) {} }
extern "C" __global__ void trap(int* p) { printf("before\n"); if (threadIdx.x == 3) __trap(); }
extern "C" __global__ void check(int n) { assert(n > int(threadIdx.x) && "too few"); }
extern "C" __global__ void overflow(int* p) {
    __syncthreads();
    volatile char big[1 << 20];
    big[p[1]] = 1;
    p[0] = big[p[2] + 5];
}
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "module.so"
    path.write_bytes(Kernels(SOURCE).image)
    return path


def child(image: Path, call: str) -> subprocess.Popen[str]:
    script = f"""
    import pathlib, struct, numpy as np
    from hearthd.device.cpu.module import CpuModule
    from hearthd.device.cpu.toolchain import find_toolchain
    module = CpuModule(pathlib.Path({str(image)!r}).read_bytes(), find_toolchain())
    out = np.zeros(64, np.int32)
    good = struct.pack("=Q", out.ctypes.data)
    print("ready", flush=True)
    {call}
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("name", ["wild", "wild_in_fiber"])
@pytest.mark.parametrize("grid", [1, 50])
def test_a_wild_pointer_is_a_segmentation_fault(image: Path, name: str, grid: int) -> None:
    process = child(image, f"module.function({name!r}).launch(({grid}, 1, 1), (32, 1, 1), 0, struct.pack('=Q', 8))")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV


def test_a_stack_overflow_in_a_fiber_ends_the_process(image: Path) -> None:
    process = child(image, "module.function('overflow').launch((1, 1, 1), (2, 1, 1), 0, good)")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV


def test_trap_aborts_with_its_location(image: Path) -> None:
    process = child(image, "module.function('trap').launch((1, 1, 1), (8, 1, 1), 0, good)")
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert "__trap()" in err and "thread: [3,0,0]" in err and "before" in out


def test_failed_assertion_aborts_with_its_location(image: Path) -> None:
    process = child(image, "module.function('check').launch((1, 1, 1), (8, 1, 1), 0, struct.pack('=i', 5))")
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert (
        'kernel.cu:7: check: block: [0,0,0], thread: [5,0,0] Assertion `n > int(threadIdx.x) && "too few"` failed.'
        in err
    )


def test_endless_kernel_does_not_block_other_launches(image: Path) -> None:
    call = """
    import threading
    stuck = lambda: module.function('endless').launch((8, 1, 1), (4, 1, 1), 0, good)
    threading.Thread(target=stuck, daemon=True).start()
    import time
    time.sleep(0.2)
    other = np.zeros(64, np.int32)
    module.function('wild').launch((8, 1, 1), (4, 1, 1), 0, struct.pack("=Q", other.ctypes.data))
    print("done", other.sum(), flush=True)
    time.sleep(60)
    """
    process = child(image, textwrap.dedent(call).replace("\n", "\n    "))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "done 11\n"
    process.kill()
    process.communicate(timeout=60)


def test_forked_child_has_separate_workers(image: Path) -> None:
    call = """
    import os
    f = module.function('wild')
    f.launch((32, 1, 1), (8, 1, 1), 0, good)
    pid = os.fork()
    if pid == 0:
        out[:] = 0
        f.launch((32, 1, 1), (8, 1, 1), 0, good)
        os._exit(int(out.sum()))
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    """
    process = child(image, textwrap.dedent(call).replace("\n", "\n    "))
    out, err = process.communicate(timeout=60)
    assert "child 39" in out, err
