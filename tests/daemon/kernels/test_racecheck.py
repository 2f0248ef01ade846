"""Races in shared memory reach the client: in the kernel's output, and as the error of a validated launch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

import hearth
from tests.support.daemon import harness
from tests.support.daemon.harness import DaemonProcess, StartDaemon, on_cpu, wait_until

CODE = """
extern "C" __global__ void racy(int* x) {
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void clean(int* x) {
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];
    if (threadIdx.x == 0) printf("clean\\n");
}
"""
MESSAGE = (
    r"kernel racy, block \(0,0,0\): read/write race in shared memory \(s \+ \d+ bytes\): thread \(\d+,0,0\) read at "
    r"kernel.cu\(5\), thread \(\d+,0,0\) wrote at kernel.cu\(4\)"
)

pytestmark = on_cpu


@pytest.fixture
def daemon(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> DaemonProcess:
    monkeypatch.setattr(harness, "environment", partial(harness.environment, HEARTH_CPU_RACECHECK="1"))
    return start_daemon()


@pytest.fixture
def gpu(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    with hearth.connect(daemon.unix) as node:
        yield node.devices[0]


def test_a_race_is_shown_in_the_kernel_s_output_and_logged(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    texts: list[str] = []
    gpu.on_output(texts.append)
    module = gpu.RawModule(code=CODE)
    x = gpu.asarray(np.arange(64, dtype=np.int32))
    module.get_function("clean")((1,), (64,), (x,))
    module.get_function("racy")((1,), (64,), (x,))
    gpu.synchronize()
    first, second = "".join(texts).splitlines()
    assert first == "clean"
    assert second.startswith("hearth racecheck: kernel racy") and "add __syncthreads() between them" in second
    wait_until(lambda: "hearth racecheck: kernel racy" in daemon.log())


def test_a_validated_launch_with_a_race_fails(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=CODE)
    x = gpu.asarray(np.arange(64, dtype=np.int32))
    module.get_function("clean")((1,), (64,), (x,), mode="validate")
    gpu.synchronize()
    module.get_function("racy")((1,), (64,), (x,), mode="validate")
    with pytest.raises(hearth.LaunchError, match=MESSAGE) as caught:
        gpu.synchronize()
    assert caught.value.reason == "DATA_RACE"
    details = caught.value.details
    assert details["kernel"] == "racy" and {details["first_line"], details["second_line"]} == {
        "kernel.cu(4)", "kernel.cu(5)"
    }  # fmt: skip
    module.get_function("clean")((1,), (64,), (x,), mode="validate")
    gpu.synchronize()
