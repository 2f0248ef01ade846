"""A session loses its device's process repeatedly, by its own kernels and by SIGKILL; two other sessions are
unaffected.

HEARTH_TEST_STORM=20 is the full test: that number of rounds of each kind of loss. HEARTH_TEST_BACKEND=cuda requires two
GPUs.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, alive, wait_until

ROUNDS = int(os.environ.get("HEARTH_TEST_STORM", "4"))
LIMIT_S = 0.2
SIZES = (1, 1000, 700_001)

SOURCE = r"""
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
extern "C" __global__ void step(unsigned* x, unsigned k, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = x[i] * 3u + k;
}
"""
FAR = np.int64(1 << 45)


class Bystander:
    """A session with checked work in a separate thread, until it is asked to end."""

    def __init__(self, gpu: hearth.Device) -> None:
        self.rounds = 0
        self.errors: list[str] = []
        self.gpu = gpu
        self._step = gpu.RawModule(code=SOURCE).get_function("step")
        self._held = gpu.asarray(np.arange(10_000, dtype=np.uint32))
        self._work()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            try:
                self._work()
                self.rounds += 1
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                return

    def _work(self) -> None:
        host = np.random.default_rng(self.rounds).integers(0, 2**32, 3000, np.uint32)
        x = self.gpu.asarray(host)
        for k in range(5):
            self._step((12,), (256,), (x, np.uint32(k), np.int32(3000)))
            host = host * np.uint32(3) + np.uint32(k)
        np.testing.assert_array_equal(x.get(), host)
        np.testing.assert_array_equal(self._held.get(), np.arange(10_000, dtype=np.uint32))

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs"


class Victim:
    """The session that loses its device repeatedly: its durable arrays, and their expected contents."""

    def __init__(self, daemon: DaemonProcess, gpu: hearth.Device) -> None:
        self.daemon, self.gpu = daemon, gpu
        module = gpu.RawModule(code=SOURCE)
        self._wild, self._endless, self._step = (module.get_function(name) for name in ("wild", "endless", "step"))
        self.expected = [np.random.default_rng(size).integers(0, 2**32, size, np.uint32) for size in SIZES]
        self.arrays = [gpu.durable(gpu.asarray(host)) for host in self.expected]
        gpu.synchronize()

    def advance(self, k: int) -> None:
        """Changes the arrays, makes a checkpoint, and changes the arrays once more without a checkpoint."""
        self._change(k)
        self.gpu.checkpoint(*self.arrays)
        self.gpu.synchronize()
        self.expected = [host * np.uint32(3) + np.uint32(k) for host in self.expected]
        self._change(k + 1)

    def _change(self, k: int) -> None:
        for array in self.arrays:
            self._step((64,), (256,), (array, np.uint32(k), np.int32(array.size)))

    # ---- the three kinds of loss: each method returns when the loss has been noticed ----

    def illegal_address(self) -> float:
        self._wild((1,), (1,), (self.gpu.zeros(1, np.int32), FAR))
        return self._lost()

    def endless_kernel(self) -> float:
        self._endless((1,), (1,), (self.gpu.zeros(1, np.int32),), timeout=LIMIT_S)
        return self._lost()

    def kill(self) -> float:
        self.gpu.synchronize()
        os.kill(self.daemon.device_pid(self.gpu.ordinal), signal.SIGKILL)
        return time.monotonic()

    def _lost(self) -> float:
        with pytest.raises(hearth.DeviceLostError):
            self.gpu.synchronize()
        return time.monotonic()

    def served_again(self, since: float) -> float:
        """Returns the seconds after `since` at which a kernel has run and its result has been read; then compares the
        durable arrays."""
        wait_until(self._served, "being served again", 30)
        took = time.monotonic() - since
        for array, host in zip(self.arrays, self.expected, strict=True):
            np.testing.assert_array_equal(array.get(), host)
        return took

    def _served(self) -> bool:
        try:
            x = self.gpu.full(100, 7, np.uint32)
            self._step((1,), (128,), (x, np.uint32(1), np.int32(100)))
            return bool((x.get() == 22).all())
        except (hearth.DeviceLostError, hearth.BufferLostError, hearth.UnavailableError):
            return False


def test_repeated_faults_end_only_the_faulting_session(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"max_restarts": 10_000, "max_faults": 10_000, "restart_window": "1s"}
    daemon = start_daemon(cpu_count=2, devices=limits)
    with daemon.connect() as node, daemon.connect() as other, daemon.connect(isolation="dedicated") as own:
        if len(node.devices) < 2:
            pytest.skip("needs two devices")
        victim = Victim(daemon, node.device(0))
        far, near = Bystander(other.device(1)), Bystander(own.device(0))
        apart = [each["pid"] for each in daemon.status()["devices"][0]["processes"] if each["session"]]
        assert len(apart) == 1 and apart[0] != daemon.device_pid(0)
        losses: list[Callable[[], float]] = [victim.illegal_address, victim.endless_kernel, victim.kill] * ROUNDS
        random.Random(11).shuffle(losses)
        took: list[tuple[str, float]] = []
        try:
            for number, lose in enumerate(losses):
                before = far.rounds, near.rounds
                victim.advance(2 * number)
                took.append((lose.__name__, victim.served_again(lose())))
                wait_until(lambda before=before: far.rounds > before[0] and near.rounds > before[1], "others' work")
        finally:
            far.end()
            near.end()
        assert not far.errors and not near.errors
        assert victim.gpu.generation > len(losses) and far.gpu.generation == 1
        assert alive(apart[0])
    seconds = [each for _, each in took]  # `make bench --only faults` checks these times
    with capsys.disabled():
        by_kind = {kind: statistics.median(each for name, each in took if name == kind) for kind, _ in took}
        each = ", ".join(f"{kind} {median:.3f} s" for kind, median in by_kind.items())
        print(
            f"\n{len(losses)} losses: served again after {statistics.median(seconds):.3f} s (median; most "
            f"{max(seconds):.3f} s; {each}); others did {far.rounds} and {near.rounds} rounds meanwhile"
        )
