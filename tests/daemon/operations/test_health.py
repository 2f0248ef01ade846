"""Health for unauthenticated callers and probes: gRPC, `/readyz` and `hearth status` agree, and no watcher delays
another."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, needs_devices, wait_until
from tests.support.daemon.http2 import DATA, Frame, Http2
from tests.support.daemon.kernels import saxpy_works

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
WATCH = "/grpc.health.v1.Health/Watch"


@contextmanager
def stub_of(target: str) -> Iterator[Any]:
    with grpc.insecure_channel(target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub: Any, name: str = "") -> int:
    status: int = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20).status
    return status


def watch(stub: Any, name: str = "") -> queue.SimpleQueue[int]:
    """Returns a queue that receives the statuses of a service name as they arrive."""
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read() -> None:
        try:
            for answer in stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=120):
                seen.put(answer.status)
        except grpc.RpcError:
            pass

    threading.Thread(target=read, daemon=True).start()
    return seen


def statuses(frames: Iterator[Frame], stream: int) -> Iterator[int]:
    for each in frames:
        if each.kind == DATA and each.stream == stream:
            yield health_pb2.HealthCheckResponse.FromString(each.payload[5:]).status


def surfaces(daemon: DaemonProcess, stub: Any) -> tuple[bool, bool, bool, bool, bool]:
    """Returns the readiness according to gRPC's health of the node, `/readyz`, `hearth status`, its exit code, and the
    metric."""
    command = [sys.executable, "-m", "hearth.cli.main", "status", daemon.unix, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.stdout, done.stderr
    metric = next(line for line in daemon.get("/metrics").body.splitlines() if line.startswith("hearth_ready "))
    return (
        check(stub) == SERVING,
        daemon.get("/readyz").status == 200,
        json.loads(done.stdout)["ready"],
        done.returncode == 0,
        metric.endswith(" 1.0"),
    )


def agree(daemon: DaemonProcess, stub: Any, ready: bool) -> None:
    wait_until(lambda: surfaces(daemon, stub) == (ready,) * 5, f"all saying {ready}")


def test_stopped_device_is_seen_everywhere_and_continues(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2)
    needs_devices(daemon, 2)
    with stub_of(daemon.unix) as stub, daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        agree(daemon, stub, ready=True)
        device, whole = watch(stub, "device/0"), watch(stub)
        assert device.get(timeout=20) == whole.get(timeout=20) == SERVING
        pid = daemon.device_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            assert device.get(timeout=20) == whole.get(timeout=20) == NOT_SERVING
            agree(daemon, stub, ready=False)
            first, *others = json.loads(daemon.get("/readyz").body)["devices"]
            assert first["state"] == "stalled" and "SIGSTOP" in first["detail"]
            assert all(other["state"] == "serving" for other in others)
            assert gpu.state == "stalled"
            assert check(stub, "device/1") == check(stub, "hearth.v1.DeviceService") == SERVING
        finally:
            os.kill(pid, signal.SIGCONT)
        assert device.get(timeout=20) == whole.get(timeout=20) == SERVING
        agree(daemon, stub, ready=True)
        saxpy_works(gpu)
        assert (gpu.state, gpu.generation, daemon.device_pid()) == ("serving", 1, pid)


def test_stopped_device_that_does_not_continue_is_replaced(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"ping_timeout": "2s"})
    with stub_of(daemon.unix) as stub:
        device = watch(stub, "device/0")
        assert device.get(timeout=20) == SERVING
        os.kill(daemon.device_pid(), signal.SIGSTOP)
        assert device.get(timeout=20) == NOT_SERVING
        assert device.get(timeout=60) == SERVING  # the next process
        assert daemon.generation() == 2
        agree(daemon, stub, ready=True)


def test_lost_device_is_seen_everywhere(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=1, devices={"max_restarts": 0, "visible": [0]})
    with stub_of(daemon.unix) as stub:
        device = watch(stub, "device/0")
        assert device.get(timeout=20) == SERVING
        os.kill(daemon.device_pid(), signal.SIGKILL)
        assert device.get(timeout=20) == NOT_SERVING
        agree(daemon, stub, ready=False)


def test_watcher_that_grants_no_window_delays_no_other(start_daemon: StartDaemon) -> None:
    """While the watcher reads nothing, the daemon drains; every other caller is notified, and so is the watcher when it
    reads."""
    daemon = start_daemon(drain_timeout="60s")
    with daemon.connect() as node, stub_of(daemon.unix) as stub, Http2(daemon.grpc, window=0) as stranger:
        saxpy_works(node.device(0))
        streams = [stranger.call(WATCH) for _ in range(8)]
        wait_until(lambda: gauge(daemon, "hearth_health_watchers") == len(streams), "the stranger's calls")
        seen = watch(stub)
        assert seen.get(timeout=20) == SERVING
        daemon.process.send_signal(signal.SIGTERM)
        assert seen.get(timeout=20) == NOT_SERVING
        assert watch(stub).get(timeout=20) == NOT_SERVING
        agree(daemon, stub, ready=False)
        stranger.grant(streams[0], 1000)
        told = statuses(stranger.frames(), streams[0])
        assert (next(told), next(told)) == (SERVING, NOT_SERVING)
    assert daemon.stop() == 0


def gauge(daemon: DaemonProcess, name: str) -> float:
    for line in daemon.get("/metrics").body.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return -1


def test_watchers_are_limited_for_each_address_and_in_total(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(health={"watchers": 5, "watchers_per_address": 3})
    with stub_of(daemon.grpc) as tcp, stub_of(daemon.unix) as unix, Http2(daemon.grpc, window=0) as stranger:
        for _ in range(6):
            stranger.call(WATCH)
        wait_until(lambda: gauge(daemon, "hearth_health_watchers") == 3, "the stranger's calls")
        with pytest.raises(grpc.RpcError) as caught:
            next(tcp.Watch(health_pb2.HealthCheckRequest(), timeout=20))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert [watch(unix).get(timeout=20) for _ in range(2)] == [SERVING] * 2
        with pytest.raises(grpc.RpcError) as caught:
            next(unix.Watch(health_pb2.HealthCheckRequest(), timeout=20))
        assert "which is the maximum" in caught.value.details()  # type: ignore[attr-defined]
        assert check(tcp) == check(unix) == SERVING  # a probe is never refused
        page = daemon.get("/metrics").body
        assert 'hearth_health_watcher_faults_total{why="address"} 4.0' in page
        assert 'hearth_health_watcher_faults_total{why="total"} 1.0' in page
    wait_until(lambda: gauge(daemon, "hearth_health_watchers") == 0, "the end of the calls")
    assert daemon.log().count('"health_watcher"') == 1


def test_health_lists_every_name(daemon: DaemonProcess) -> None:
    with stub_of(daemon.unix) as stub:
        listed = stub.List(health_pb2.HealthListRequest(), timeout=20).statuses
        devices = {f"device/{device['ordinal']}" for device in daemon.status()["devices"]}
        names = {"", "hearth.v1.NodeService", "hearth.v1.DeviceService", *devices}
        assert set(listed) == names
        assert {each.status for each in listed.values()} == {SERVING}
        unknown = watch(stub, "no/such")
        assert unknown.get(timeout=20) == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
