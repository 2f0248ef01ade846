"""Launches by number of threads, and the default device."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.blocking import node as nodes
from tests.support.daemon.harness import DaemonProcess, environment

CODE = """
extern "C" __global__ void count(int* hits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) hits[i] += blockDim.x;
}
extern "C" __global__ void __launch_bounds__(64) narrow(int* hits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) hits[i] += blockDim.x;
}
"""


@pytest.mark.parametrize("name", ["count", "narrow"])
def test_every_element_has_a_thread(gpu: hearth.Device, name: str) -> None:
    f = gpu.RawKernel(CODE, name)
    best = f.occupancy(1).suggested_block
    assert best <= f.max_threads_per_block
    for n in (1, 63, 64, 1000, 5000):
        x = gpu.zeros(5000, np.int32)
        f.forall(n)(x, n)
        f.forall(n, 32)(x, n)
        assert x.get().tolist() == [best + 32] * n + [0] * (5000 - n)


def test_stream_and_shared_memory(gpu: hearth.Device) -> None:
    f, x = gpu.RawKernel(CODE, "count"), gpu.zeros(100, np.int32)
    with gpu.stream() as s:
        x = gpu.zeros(100, np.int32)
    f.forall(100, 64, s, 1024)(x, 100)
    f.forall(100, 64, stream=0, shared_mem=100 << 10)
    s.synchronize()
    assert x.get().tolist() == [64] * 100
    roomy, full = f.forall(100, shared_mem=0), f.forall(100, shared_mem=100 << 10)
    for launch in (roomy, full):
        launch(x, 100)
    gpu.synchronize()


def test_forall_of_zero_threads_launches_nothing_and_negative_numbers_are_refused(gpu: hearth.Device) -> None:
    f, x = gpu.RawKernel(CODE, "count"), gpu.zeros(4, np.int32)
    f.forall(0)(x, 4)
    assert x.get().tolist() == [0] * 4
    for n, block in ((-1, 0), (-64, 64), (5, -1)):
        with pytest.raises(hearth.ArgumentError, match="is negative"):
            f.forall(n, block)


def test_forall_of_a_kernel_that_does_not_compile_raises_compile_error(gpu: hearth.Device) -> None:
    f = gpu.RawKernel("this is no kernel", "count")
    with pytest.raises(hearth.CompileError):
        f.forall(5)


def test_asyncio_waits_for_the_block_size(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            f, x = node.gpu.RawKernel(CODE, "narrow"), node.gpu.zeros(100, np.int32)
            (await f.forall(100))(x, 100)
            (await f.forall(100, 16))(x, 100)
            best = (await f.occupancy(1)).suggested_block
            assert (await x.get()).tolist() == [best + 16] * 100
            assert (await node.gpu.arange(3).get()).tolist() == [0, 1, 2]

    asyncio.run(main())


def test_the_first_device_of_a_node(node: hearth.Node) -> None:
    assert node.gpu is node.device(0)


def test_the_default_device_keeps_its_session(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_TARGET", daemon.unix)
    monkeypatch.setattr(nodes, "_defaults", {})
    gpu = hearth.device()
    assert hearth.device() is gpu and hearth.device(0).node is gpu.node
    with pytest.raises(hearth.ArgumentError, match="has no device 99"):
        hearth.device(99)
    gpu.node.close()
    again = hearth.device()
    assert again is not gpu and again.arange(2).get().tolist() == [0, 1]
    again.node.close()


def test_a_forked_process_has_another_default_session(daemon: DaemonProcess) -> None:
    code = (
        "import os, sys, hearth\n"
        "first = hearth.device().node.session_id\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    node = hearth.device().node\n"
        "    right = node.session_id != first and hearth.device().ones(2).get().tolist() == [1, 1]\n"
        "    node.close()\n"
        "    os._exit(0 if right else 3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert hearth.device().node.session_id == first\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, env=environment(HEARTH_TARGET=daemon.unix), timeout=120, check=True)
