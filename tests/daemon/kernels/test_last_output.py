"""Output of kernels that end their process reaches the client together with the error."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, on_cpu, wait_until

pytestmark = on_cpu

CODE = r"""
#include <cassert>
extern "C" void abort();
__device__ __noinline__ void deep(int n) { volatile char big[1 << 24]; big[n] = 1; }
extern "C" __global__ void ends(int how, int n) {
    for (int i = 0; i < n; ++i) printf("%d: line %d\n", how, i);
    if (how == 0) *(volatile int*)8 = 1;
    if (how == 1) __trap();
    if (how == 2) assert(n < 0);
    if (how == 3) abort();
    if (how == 4) { __syncthreads(); *(volatile int*)8 = 1; }
    if (how == 5) deep(n);
    if (how == 6) printf((const char*)8);
}
"""


@pytest.mark.parametrize(
    ("how", "lines"), [(0, 1), (0, 3000), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2)],
    ids=["wild", "wild after much", "trap", "assert", "abort", "wild behind a barrier", "overflow", "within printf"],
)  # fmt: skip
def test_text_before_a_fault_reaches_the_client(lossy: DaemonProcess, how: int, lines: int) -> None:
    said: list[str] = []
    with lossy.connect() as node:
        node.on_output(said.append)
        gpu = node.device(0)
        ends = gpu.RawModule(code=CODE).get_function("ends")
        gpu.synchronize()
        ends((1,), (1,), (np.int32(how), np.int32(lines)))
        with pytest.raises(hearth.DeviceLostError, match="in kernel ends"):
            gpu.synchronize()
        wait_until(lambda: gpu.state == "serving", "the device's return")
    assert "".join(said).splitlines() == [f"{how}: line {i}" for i in range(lines)]


def test_output_of_another_session_is_not_sent_to_the_faulting_one(lossy: DaemonProcess) -> None:
    """If two sessions print, the text is written to the log, because its session is unknown."""
    said: list[str] = []
    code = CODE + '__device__ volatile int go;\nextern "C" __global__ void held() { printf("held\\n"); while (!go) {} }'
    with lossy.connect() as one, lossy.connect() as two:
        for node in (one, two):
            node.on_output(said.append)
        kernels = [node.device(0).RawModule(code=code) for node in (one, two)]
        kernels[0].get_function("held")((1,), (1,), ())
        one.device(0).flush()
        kernels[1].get_function("ends")((1,), (1,), (np.int32(0), np.int32(1)))
        for node in (two, one):
            with pytest.raises(hearth.DeviceLostError):
                node.device(0).synchronize()
        wait_until(lambda: two.device(0).state == "serving", "the device's return")
    assert said == [] and "0: line 0" in lossy.log()
