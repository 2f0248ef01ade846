"""Faults that end a device process: reported by name, without effect on other processes, and recovered quickly."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, alive, marked, wait_until
from tests.support.daemon.kernels import saxpy_works

FAULTS = """
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
extern "C" __global__ void fine(int* x) { x[threadIdx.x] += 1; }
"""
FAR = np.int64(1 << 45)


class Faulty:
    """A connection to a daemon, and the kernels above."""

    def __init__(self, daemon: DaemonProcess, ordinal: int = 0) -> None:
        self.daemon = daemon
        self.node = daemon.connect()
        self.gpu = self.node.device(ordinal)
        self.x = self.gpu.zeros(8, np.int32)
        module = self.gpu.RawModule(code=FAULTS)
        self.wild, self.endless, self.fine = (module.get_function(name) for name in ("wild", "endless", "fine"))
        self.works()

    def works(self) -> None:
        """Checks that a kernel runs on the array, which holds zeros. It has a separate limit, because the daemon's
        may be too short for a busy machine."""
        self.fine((1,), (8,), (self.x,), timeout=60)
        assert (self.x.get() == 1).all()

    def fault(self) -> None:
        self.wild((1,), (1,), (self.x, FAR))

    def back(self) -> None:
        """Waits until the device serves again, and checks that all surviving objects work."""
        wait_until(lambda: self.gpu.state == "serving", "the device's return")
        with pytest.raises(hearth.BufferLostError) as caught:
            self.x.get()
        assert caught.value.reason == "BUFFER_LOST" and caught.value.fix
        self.x = self.gpu.zeros(8, np.int32)
        self.works()


def test_wild_pointer_ends_only_its_device(lossy: DaemonProcess) -> None:
    faulty = Faulty(lossy)
    pid, first = lossy.device_pid(), lossy.generation()
    bystander, stop, rounds = None, threading.Event(), []
    if len(faulty.node.devices) > 1:
        other, second = faulty.node.device(1), lossy.generation(1)

        def work() -> None:
            while not stop.is_set():
                saxpy_works(other)
                rounds.append(time.monotonic())

        bystander = threading.Thread(target=work)
        bystander.start()
        wait_until(lambda: rounds)
    stream = faulty.gpu.stream()
    faulty.fault()
    with pytest.raises(hearth.DeviceLostError) as caught:
        faulty.gpu.synchronize()
    lost_at = time.monotonic()
    error = caught.value
    assert error.reason == "DEVICE_LOST" and error.details["generation"] == str(first) and error.retry_after
    if BACKEND == "cpu":
        assert "SIGSEGV" in str(error) and error.details["signal"] == "SIGSEGV"
    faulty.gpu.synchronize()  # the loss is reported only once
    faulty.back()
    recovered = time.monotonic() - lost_at
    assert recovered < 30, f"{recovered:.1f} s"
    assert faulty.gpu.generation == first + 1 and faulty.daemon.device_pid() != pid and not alive(pid)
    with stream:
        saxpy_works(faulty.gpu)
    if bystander is not None:
        wait_until(lambda: rounds[-1] > lost_at)
        stop.set()
        bystander.join(30)
        assert not bystander.is_alive()
        saxpy_works(faulty.node.device(1))
        assert faulty.node.device(1).generation == second
    metrics = faulty.daemon.get("/metrics").body
    assert (
        f'hearth_device_generation{{device="0"}} {first + 1}.0' in metrics
        and "hearth_device_restarts_total{" in metrics
    )
    faulty.node.close()


def test_all_sessions_of_the_device_are_notified(lossy: DaemonProcess) -> None:
    faulty = Faulty(lossy)
    with faulty.daemon.connect() as node, faulty.daemon.connect() as idle:
        gpu = node.device(0)
        held = gpu.full(4, 1, np.int32)
        gpu.synchronize()
        quiet = idle.device(0).zeros(4)
        idle.device(0).synchronize()
        faulty.fault()
        with pytest.raises(hearth.DeviceLostError):
            faulty.gpu.synchronize()
        wait_until(lambda: gpu.state == "serving")
        with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)):
            held.get()
        with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)):
            quiet.get()
        for device in (gpu, idle.device(0)):
            try:
                device.synchronize()
            except hearth.DeviceLostError:
                device.synchronize()
            saxpy_works(device)
    faulty.node.close()


def test_use_of_lost_arrays_of_every_kind_is_refused(lossy: DaemonProcess) -> None:
    faulty = Faulty(lossy)
    gpu, x = faulty.gpu, faulty.x
    view, event = x[2:4], gpu.default_stream.record()
    faulty.fault()
    with pytest.raises(hearth.DeviceLostError):
        x.get()
    wait_until(lambda: gpu.state == "serving")
    uses: list[Callable[[hearth.DeviceArray], object]] = [
        lambda x: x.get(), lambda x: x.fill(0), lambda x: x.set(np.zeros(x.shape, np.int32)), lambda x: x.copy(),
        lambda x: faulty.fine((1,), (1,), (x,)),
    ]  # fmt: skip
    for use, array in itertools.product(uses, (x, view)):
        with pytest.raises(hearth.BufferLostError):
            use(array)
    with pytest.raises(hearth.InvalidHandleError):
        event.synchronize()
    usage = gpu.memory_usage()
    assert usage.allocations == 0
    del x, view
    faulty.back()
    faulty.node.close()


def test_a_launch_timeout_names_the_kernel(lossy: DaemonProcess) -> None:
    faulty = Faulty(lossy)
    faulty.x.fill(0)
    began = time.monotonic()
    faulty.endless((1,), (1,), (faulty.x,), timeout=0.2)
    with pytest.raises(hearth.DeviceLostError, match="endless") as caught:
        faulty.gpu.synchronize()
    assert 0.15 < time.monotonic() - began < 20
    assert "0.2 s" in str(caught.value)
    faulty.back()
    faulty.fine((1,), (8,), (faulty.x,), timeout=60)
    assert (faulty.x.get() == 2).all()
    faulty.node.close()


def test_the_limit_of_the_configuration(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(launch={"timeout": "300ms"})
    faulty = Faulty(daemon)
    faulty.x.fill(0)
    faulty.endless((1,), (1,), (faulty.x,))
    with pytest.raises(hearth.DeviceLostError, match="endless") as caught:
        faulty.gpu.synchronize()
    assert "0.3 s" in str(caught.value)
    faulty.back()
    faulty.node.close()


def test_a_limit_does_not_count_waiting(lossy: DaemonProcess) -> None:
    """The time limit of a short kernel starts after the long kernel before it on its stream has ended."""
    for limit in (0.3, 3.0, 10.0):  # on a busy machine, a short limit may end the kernel while it runs
        faulty, first = Faulty(lossy), lossy.generation()
        gate = faulty.gpu.RawModule(
            code='__device__ volatile int gate;\nextern "C" __global__ void hold() { while (!gate) {} }'
        )
        variable, side = gate.get_global("gate", np.int32), faulty.gpu.stream()
        gate.get_function("hold")((1,), (1,), timeout=60)
        faulty.fine((1,), (8,), (faulty.x,), timeout=limit)
        time.sleep(2 * limit)  # twice the limit, which must not end the kernel
        assert lossy.generation() == first and lossy.status()["devices"][0]["state"] == "serving"
        try:
            variable.set(np.ones(1, np.int32), stream=side)
            assert (faulty.x.get() == 2).all()
        except (hearth.DeviceLostError, hearth.BufferLostError):
            wait_until(lambda: lossy.status()["devices"][0]["state"] == "serving")
            continue
        finally:
            faulty.node.close()
        assert lossy.generation() == first
        return
    raise AssertionError("the limit ended the kernel")


def test_kill_9_of_a_device_process(lossy: DaemonProcess) -> None:
    faulty, first = Faulty(lossy), lossy.generation()
    os.kill(faulty.daemon.device_pid(), signal.SIGKILL)
    wait_until(lambda: faulty.gpu.generation == first + 1 and faulty.gpu.state == "serving")
    with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)) as caught:
        faulty.x.get()
    if isinstance(caught.value, hearth.DeviceLostError):
        assert "SIGKILL" in str(caught.value)
    faulty.back()
    faulty.node.close()


def test_kill_9_under_load(lossy: DaemonProcess) -> None:
    """Uploads, downloads and launches of many threads end with one of the two errors, and everything works
    afterwards."""
    faulty = Faulty(lossy)
    seen: list[BaseException] = []
    stop = threading.Event()

    def work(seed: int) -> None:
        host = np.full(3 << 20, seed, np.uint8)
        while not stop.is_set():
            try:
                x = faulty.gpu.asarray(host)
                assert (x.get() == seed).all()
            except (hearth.DeviceLostError, hearth.BufferLostError) as error:
                seen.append(error)
            except BaseException as error:
                seen.append(error)
                return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    first = lossy.generation()
    for generation in (first + 1, first + 2):
        os.kill(faulty.daemon.device_pid(), signal.SIGKILL)
        wait_until(lambda wanted=generation: faulty.gpu.generation == wanted and faulty.gpu.state == "serving")
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    strangers = [error for error in seen if not isinstance(error, hearth.DeviceLostError | hearth.BufferLostError)]
    assert not strangers
    while True:
        try:
            faulty.gpu.synchronize()
            break
        except hearth.DeviceLostError:
            continue
    saxpy_works(faulty.gpu)
    faulty.node.close()


def test_kill_9_of_the_front_leaves_nothing(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2)
    faulty = Faulty(daemon)
    faulty.x.fill(0)
    faulty.endless((1,), (1,), (faulty.x,))
    pids = marked(daemon.mark)
    assert daemon.device_pid() in pids
    daemon.process.kill()
    daemon.process.wait()
    wait_until(lambda: not marked(daemon.mark), "the end of the device processes", 10)
    with pytest.raises(hearth.HearthError) as caught:
        faulty.gpu.synchronize()
    assert isinstance(caught.value, hearth.ConnectError)
    faulty.node.close()


def test_a_device_that_fails_again_and_again_is_fenced(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2, devices={"max_restarts": 1})
    with daemon.connect() as node:
        gpu = node.device(0)
        for generation in (1, 2):
            wait_until(lambda wanted=generation: gpu.generation == wanted and gpu.state == "serving")
            os.kill(daemon.device_pid(), signal.SIGKILL)
            wait_until(lambda wanted=generation: gpu.state == "fenced" or gpu.generation > wanted)
        wait_until(lambda: gpu.state == "fenced")
        with pytest.raises(hearth.HearthError) as caught:
            gpu.zeros(4).get()
        assert caught.value.reason in ("DEVICE_UNAVAILABLE", "DEVICE_LOST")
        if len(node.devices) > 1:
            saxpy_works(node.device(1))
            assert daemon.get("/readyz").status == 200  # a fenced device does not make the node unready
