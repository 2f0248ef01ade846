"""A module load during an endless kernel of another session, with the driver's own behaviour.

Requires HEARTH_TEST_BACKEND=cuda; `tests/daemon/kernels/test_loads.py` has more tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON, Gate, saxpy_works

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

WAIT_S = 30.0
FIRST = r"""
extern "C" __global__ void says(int* x) { printf("here\n"); x[0] = 1; }
extern "C" __global__ void deep(int* x) {  // needs 16 KiB of local memory for each thread
    volatile int memory[4096];
    for (int i = 0; i < 4096; i++) memory[i * 7 % 4096] = i;
    x[0] = memory[7];
}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path, {"launch": {"load_timeout": "1s"}})
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


def module(gpu: hearth.Device, number: int) -> hearth.RawModule:
    return gpu.RawModule(code=f"{COMMON}\n__device__ int number = {number};")


def adds(gpu: hearth.Device, number: int) -> None:
    """Loads a separate module, and runs its kernel."""
    x = gpu.zeros(8, np.int32)
    module(gpu, number).get_function("add_one")((1,), (8,), (x, np.int32(8)))
    assert (x.get(timeout=WAIT_S) == 1).all()


def test_a_load_during_an_endless_kernel_is_refused(daemon: DaemonProcess) -> None:
    with daemon.connect() as one, daemon.connect() as another:
        gpu, guest = one.device(0), another.device(0)
        saxpy_works(guest)
        first = guest.RawModule(code=FIRST)
        says, deep = first.get_function("says"), first.get_function("deep")
        assert deep.local_size_bytes >= 16384  # the module is loaded; the driver provides this memory later
        before, printed = guest.zeros(8, np.int32), guest.zeros(1, np.int32)
        gate, stream = Gate(gpu), gpu.stream()
        gate.hold(stream=stream)
        gpu.flush()
        with pytest.raises(hearth.QuotaExceededError, match="hold of session") as caught:
            (late := module(guest, 1)).get_global("number", np.int32)
        error = caught.value
        assert error.reason == "QUEUE_FULL" and error.retryable and error.details["sessions"] == one.session_id
        for _ in range(2):  # the driver would wait inside the launch
            deep((1,), (1,), (before,))
            with pytest.raises(hearth.QuotaExceededError, match="first launch of deep"):
                guest.synchronize(timeout=WAIT_S)
        with pytest.raises(hearth.QuotaExceededError, match="first launch of deep"):
            guest.dispatch(deep, (1,), (1,), (hearth.Out(1, np.int32),), timeout=WAIT_S)
        with pytest.raises(hearth.QuotaExceededError, match="first launch of deep"), guest.graph():
            deep((1,), (1,), (before,))  # the driver would wait when the graph is instantiated
        says((1,), (1,), (printed,))
        with pytest.raises(hearth.QuotaExceededError, match="first launch of says"):
            guest.synchronize(timeout=WAIT_S)
        assert daemon.counter("loads_refused", 0) == 3 and daemon.gauge("loads_waiting") == 0
        other = guest.zeros(4, np.int32)  # copies and loaded kernels continue meanwhile
        assert (other.get(timeout=WAIT_S) == 0).all()
        with daemon.connect(isolation="dedicated") as apart:
            adds(apart.device(0), 1)
        gate.open()
        wait_until(lambda: gpu.synchronize(timeout=WAIT_S) is None, "the kernel's end")
        assert late.get_global("number", np.int32).get(timeout=WAIT_S)[0] == 1, "a later request gets it"
        adds(guest, 2)
        result = guest.zeros(8, np.int32)
        with guest.graph() as graph:
            deep((1,), (1,), (result,))
        graph.launch()
        assert result.get(timeout=WAIT_S)[0] == 1
        assert guest.dispatch(deep, (1,), (1,), (hearth.Out(1, np.int32),), timeout=WAIT_S)[0] == 1
        says((1,), (1,), (printed,))
        assert printed.get(timeout=WAIT_S)[0] == 1
        gate.close()
        gate.hold(stream=stream)
        says((1,), (1,), (before,))
        deep((1,), (1,), (result,))
        assert before.get(timeout=WAIT_S)[0] == result.get(timeout=WAIT_S)[0] == 1
        gate.open()
        assert not daemon.status()["devices"][0]["restarts"], "no process was lost"
