"""Device processes of one device that do not affect each other: dedicated sessions, tenants, idle processes that end,
fences."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, marked, wait_until
from tests.support.daemon.kernels import COMMON, saxpy_works
from tests.support.daemon.tenants import tenant, tenants
from tests.support.timing import LATE

FAULTS = """
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
"""
FAR = np.int64(1 << 45)
DEVICES: dict[str, Any] = {"max_restarts": 100, "max_faults": 100}


class Worker:
    """A session with a buffer and kernels, which detects whether its process has been lost."""

    def __init__(self, node: hearth.Node) -> None:
        self.node = node
        self.gpu = node.device(0)
        self.x = self.gpu.zeros(8, np.int32)
        module = self.gpu.RawModule(code=COMMON + FAULTS)
        self.add_one, self.wild, self.endless = (module.get_function(n) for n in ("add_one", "wild", "endless"))
        self.count = 0
        self.works()

    def works(self) -> None:
        """Checks that the buffer has the expected contents: its process has never been lost."""
        # A separate limit, because the session's may be too short for a busy machine.
        self.add_one((1,), (8,), (self.x, np.int32(8)), timeout=60)
        self.count += 1
        assert (self.x.get() == self.count).all()

    def fault(self) -> hearth.HearthError:
        """Loses the session's process; returns the error that reports the loss."""
        self.wild((1,), (1,), (self.x, FAR))
        with pytest.raises(hearth.HearthError) as caught:
            self.gpu.synchronize()
        return caught.value

    def again(self) -> None:
        """Continues with a new buffer."""
        self.x = self.gpu.zeros(8, np.int32)
        self.count = 0
        self.works()


def processes(daemon: DaemonProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.status()["devices"][0]["processes"]
    return found


def pid_of(daemon: DaemonProcess, *, tenant: str | None = None, session: str = "") -> int:
    (found,) = [
        each for each in processes(daemon)
        if each["session"] == session and (tenant is None or each["tenant"] == tenant) and each["pid"]
    ]  # fmt: skip
    pid: int = found["pid"]
    return pid


def device_processes(daemon: DaemonProcess) -> int:
    return len([each for each in processes(daemon) if each["pid"]])


@pytest.fixture(scope="module")
def lenient(cache: Any) -> Iterator[DaemonProcess]:
    """A daemon without tenants whose device tolerates many faults."""
    process = DaemonProcess(cache, {"devices": DEVICES}, 1)
    yield process
    assert process.stop() == 0
    left = process.left_behind()
    process.remove()
    assert not left


def test_faults_of_dedicated_and_shared_sessions_do_not_affect_each_other(lenient: DaemonProcess) -> None:
    with lenient.connect() as shared_node, lenient.connect(isolation="dedicated") as own_node:
        assert own_node.isolation == "dedicated"
        shared, own = Worker(shared_node), Worker(own_node)
        assert device_processes(lenient) == 2
        error = own.fault()
        assert error.reason == "DEVICE_LOST"
        shared.works()
        assert lenient.get("/readyz").status == 200
        own.again()
        shared.works()
        error = shared.fault()
        assert error.reason == "DEVICE_LOST"
        own.works()
        shared.again()
        own.works()
    wait_until(lambda: device_processes(lenient) == 1, "the end of the dedicated process")


def test_a_hang_of_a_dedicated_session_ends_with_its_own_limit(lenient: DaemonProcess) -> None:
    with lenient.connect() as shared_node, lenient.connect(isolation="dedicated", launch_timeout=0.3) as own_node:
        shared, own = Worker(shared_node), Worker(own_node)
        own.endless((1,), (1,), (own.gpu.zeros(8, np.int32),))
        begin = time.monotonic()
        with pytest.raises(hearth.DeviceLostError, match=r"longer than its limit of 0\.3 s") as caught:
            own.gpu.synchronize()
        assert time.monotonic() - begin < LATE and "endless" in str(caught.value)
        shared.works()
        own.again()
        shared.works()


@pytest.mark.parametrize("way", ["prepared", "graph"])
def test_session_launch_limit_applies_to_prepared_lists_and_graphs(lenient: DaemonProcess, way: str) -> None:
    with lenient.connect(isolation="dedicated", launch_timeout=0.2) as node:
        own = Worker(node)
        if way == "prepared":
            program = own.gpu.prepare([(own.endless, 1, 1, (own.gpu.zeros(8, np.int32),))])
            program.launch()
        else:
            x = own.gpu.zeros(8, np.int32)
            with own.gpu.graph() as graph:
                own.endless((1,), (1,), (x,))
            graph.launch()
        with pytest.raises(hearth.DeviceLostError, match=r"limit of 0\.2 s"):
            own.gpu.synchronize()


def test_session_limit_is_capped_by_the_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(launch={"timeout": "200ms"}, devices=DEVICES)
    with daemon.connect(launch_timeout=600) as node:
        worker = Worker(node)
        worker.endless((1,), (1,), (worker.gpu.zeros(8, np.int32),))
        with pytest.raises(hearth.DeviceLostError, match=r"limit of 0\.2 s"):
            worker.gpu.synchronize()


def test_each_tenant_has_its_process_and_only_that_is_lost(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("x", "y", devices=DEVICES)
    daemon = start_daemon(**config)
    assert device_processes(daemon) == 1, "one process has shown that the device serves"
    first = processes(daemon)[0]["pid"]
    with daemon.connect(token=tokens["x"]) as x_node, daemon.connect(token=tokens["y"]) as y_node:
        x, y = Worker(x_node), Worker(y_node)
        assert pid_of(daemon, tenant="x") == first, "the first session got the existing process"
        assert device_processes(daemon) == 2
        with daemon.connect(token=tokens["x"]) as again:
            third = Worker(again)
            os.kill(pid_of(daemon, tenant="x"), signal.SIGKILL)
            for one in (x, third):
                with pytest.raises(hearth.DeviceLostError):
                    one.gpu.synchronize()
                y.works()
                one.again()
        y.works()
        os.kill(pid_of(daemon, tenant="y"), signal.SIGKILL)
        with pytest.raises(hearth.DeviceLostError):
            y.gpu.synchronize()
        x.works()
        y.again()
        counters = daemon.get("/metrics", daemon.observer).body
        assert 'hearth_kernel_launches_total{device="0",tenant="x"}' in counters
        assert 'hearth_kernel_launches_total{device="0",tenant="y"}' in counters


def test_idle_processes_end_and_are_started_again(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("x", "y", devices={**DEVICES, "idle_timeout": "300ms"})
    daemon = start_daemon(**config)
    baseline = len(marked(daemon.mark))
    for _ in range(2):
        with daemon.connect(token=tokens["x"]) as x, daemon.connect(token=tokens["y"]) as y:
            saxpy_works(x.device(0))
            saxpy_works(y.device(0))
            with daemon.connect(token=tokens["y"], isolation="dedicated") as own:
                saxpy_works(own.device(0))
                assert device_processes(daemon) == 3
            wait_until(lambda: device_processes(daemon) == 2, "the end of the dedicated one")
        wait_until(lambda: device_processes(daemon) == 0, "the end of idle processes")
        status = daemon.status()
        assert status["devices"][0]["state"] == "serving" and daemon.get("/readyz").status == 200
        assert status["devices"][0]["restarts"] == {}
    wait_until(lambda: len(marked(daemon.mark)) <= baseline, "every other process's end")
    assert '"device_lost"' not in daemon.log()


def test_session_with_repeated_faults_is_quarantined_and_others_stay(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2, devices={"max_restarts": 3, "max_faults": 2, "restart_window": "60s"})
    with daemon.connect() as node, daemon.connect() as innocent_node:
        worker = Worker(node)
        elsewhere = None
        if len(node.devices) > 1:
            elsewhere = node.device(1).zeros(1 << 20, np.uint8)
            node.device(1).synchronize()
        for number in range(3):
            assert worker.fault().reason == "DEVICE_LOST"
            if number < 2:
                worker.again()
        with pytest.raises(hearth.HearthError) as caught:
            worker.gpu.zeros(8, np.int32).get()
        assert caught.value.reason == "SESSION_BARRED" and "dedicated" in caught.value.fix
        if elsewhere is not None:
            with pytest.raises(hearth.HearthError) as caught:
                elsewhere.get()
            assert caught.value.reason == "SESSION_BARRED"
            wait_until(lambda: daemon.gauge("memory_in_use_bytes", 1) == 0, "the release of its memory")
        Worker(innocent_node).works()
        assert daemon.status()["devices"][0]["state"] == "serving", "one faulting session does not fence the device"
    with daemon.connect() as node:
        Worker(node).works()


def test_a_fenced_process_of_one_tenant_while_another_is_served(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("x", "y", tenant("operator", rights=["admin"]), devices={"max_restarts": 1})
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["x"]) as x_node, daemon.connect(token=tokens["y"]) as y_node:
        x, y = Worker(x_node), Worker(y_node)
        for generation in range(2):
            os.kill(pid_of(daemon, tenant="x"), signal.SIGKILL)
            with pytest.raises(hearth.DeviceLostError):
                x.gpu.synchronize()
            if not generation:
                x.again()
        with pytest.raises(hearth.HearthError, match="fenced") as caught:
            x.gpu.zeros(8, np.int32).get()
        assert caught.value.reason == "DEVICE_UNAVAILABLE"
        y.works()
        assert daemon.get("/readyz").status == 200


def test_no_more_processes_than_configured(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"max_processes": 2})
    with daemon.connect() as shared, daemon.connect(isolation="dedicated") as own:
        Worker(shared).works()
        Worker(own).works()
        for timeout in (1, 5, 20):  # attempts are repeated until the timeout; a longer one if none was answered
            with (
                pytest.raises(hearth.HearthError) as caught,
                daemon.connect(isolation="dedicated", timeout=timeout) as third,
            ):
                third.device(0).zeros(8, np.int32).get()
            if "allowed" in caught.value.details:
                break
        assert caught.value.reason == "DEVICE_UNAVAILABLE" and caught.value.details["allowed"] == "2"
        own.close()
        with daemon.connect(isolation="dedicated") as third:
            Worker(third).works()


@pytest.mark.parametrize("spare", [False, True])
def test_time_until_a_faulted_device_serves_again(start_daemon: StartDaemon, spare: bool) -> None:
    """Measures the time from the faulting launch to the next result, with all objects created again; printed with
    -s."""
    daemon = start_daemon(devices={**DEVICES, "spare": spare})
    took = []
    with daemon.connect() as node:
        worker = Worker(node)
        for _ in range(5):
            if spare:
                wait_until(lambda: any(each["tenant"] is None and each["state"] == "serving"
                                       for each in processes(daemon)), "the spare process")  # fmt: skip
            begin = time.perf_counter()
            worker.fault()
            worker.again()
            took.append(time.perf_counter() - begin)
    print(f"fault to served again on {BACKEND}, spare={spare}: median {statistics.median(took) * 1e3:.0f} ms, {took}")
    assert statistics.median(took) < 10


def test_groups_of_sessions_in_separate_processes(start_daemon: StartDaemon) -> None:
    """Both groups reduce over the same devices; the loss of a process affects only one of the groups."""
    daemon = start_daemon(cpu_count=2, devices=DEVICES)
    with daemon.connect() as shared_node, daemon.connect(isolation="dedicated") as own_node:
        if len(shared_node.devices) < 2:
            pytest.skip("needs two devices")

        def reduces(node: hearth.Node) -> None:
            group = hearth.Group(node.devices[:2])
            arrays = [gpu.full(1000, rank + 1, np.float32) for rank, gpu in enumerate(node.devices[:2])]
            group.all_reduce(arrays)
            assert all((array.get() == 3).all() for array in arrays)

        for _ in range(2):
            for node in (shared_node, own_node):
                reduces(node)
        own_devices = daemon.status()["devices"][1]["processes"]
        (pid,) = [each["pid"] for each in own_devices if each["session"] == own_node.session_id]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: '"device_lost"' in daemon.log(), "the loss is known")
        reduces(shared_node)
        with pytest.raises(hearth.HearthError):
            reduces(own_node)
        wait_until(lambda: _works(lambda: reduces(own_node)), "the other group's recovery")
        reduces(shared_node)


def _works(what: Callable[[], None]) -> bool:
    try:
        what()
    except hearth.HearthError:
        return False
    return True
