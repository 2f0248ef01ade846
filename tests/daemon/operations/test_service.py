"""The daemon as a service: probes, metrics, start, stop, and refused starts."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client.parser import text_string_to_metric_families

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import session_of
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.raw import TIMEOUT, Raw

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# ---- gRPC's own services ----


def test_health_check(raw: Raw) -> None:
    stub: Any = health_pb2_grpc.HealthStub(raw.channel)
    names = ["", "hearth.v1.NodeService", "hearth.v1.DeviceService"]
    names += [f"device/{device.ordinal}" for device in raw.opened.devices]
    for name in names:
        assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT).status == SERVING, name
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="device/77"), timeout=TIMEOUT)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_health_watch_follows_the_device_and_the_drain(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2, drain_timeout="20s")
    channel = grpc.insecure_channel(daemon.unix)
    stub: Any = health_pb2_grpc.HealthStub(channel)
    seen: dict[str, queue.SimpleQueue[int]] = {"device/0": queue.SimpleQueue(), "": queue.SimpleQueue()}

    def watch(name: str) -> None:
        try:
            for answer in stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT):
                seen[name].put(answer.status)
        except grpc.RpcError:
            pass

    for name, states in seen.items():
        threading.Thread(target=watch, args=(name,), daemon=True).start()
        assert states.get(timeout=10) == SERVING
    os.kill(daemon.device_pid(), signal.SIGKILL)
    assert seen["device/0"].get(timeout=10) == NOT_SERVING
    assert seen["device/0"].get(timeout=20) == SERVING
    node = daemon.connect()
    x = node.device(0).full(4, 1, np.int32)
    daemon.process.send_signal(signal.SIGTERM)
    while seen[""].get(timeout=10) != NOT_SERVING:
        pass
    wait_until(lambda: daemon.get("/readyz").status == 503)
    assert daemon.get("/healthz").status == 200
    assert (x.get() == 1).all()  # open sessions continue
    with pytest.raises(hearth.HearthError, match="drain") as caught:
        daemon.connect()
    assert caught.value.reason == "DRAINING" and caught.value.retry_after
    node.close()
    assert daemon.stop() == 0
    channel.close()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(raw: Raw, version: str) -> None:
    service = f"grpc.reflection.{version}.ServerReflection"
    call: Any = raw.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )

    def ask(**fields: str) -> Any:
        (answer,) = call(iter([reflection_pb2.ServerReflectionRequest(**fields)]), timeout=TIMEOUT)
        return answer

    services = {service.name for service in ask(list_services="").list_services_response.service}
    assert {"hearth.v1.NodeService", "hearth.v1.DeviceService", "grpc.health.v1.Health", service} <= services
    symbols = ("hearth.v1.DeviceService", "hearth.v1.NodeService", "hearth.v1.Command", service)
    details = ("google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.RetryInfo", "google.rpc.BadRequest")
    for symbol in (*symbols, *details):
        files = ask(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
        assert symbol.rpartition(".")[2].encode() in files[0]
    assert ask(file_containing_symbol="google.rpc.Help").error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


# ---- HTTP ----


def test_probes_and_status(daemon: DaemonProcess, node: hearth.Node) -> None:
    node.device(0).synchronize()
    assert json.loads(daemon.get("/healthz").body) == {"status": "ok"}
    ready = daemon.get("/readyz")
    assert ready.status == 200 and json.loads(ready.body)["ready"] is True
    status = daemon.status()
    assert status["node"] == node.name and status["ready"] and not status["draining"] and status["uptime_seconds"] > 0
    device = status["devices"][0]
    assert (device["backend"], device["state"], device["generation"]) == (BACKEND, "serving", 1)
    assert device["pid"] > 0 and device["memory"]["total_bytes"] > 0 and device["counters"]["commands"] > 0
    (session,) = [entry for entry in status["sessions"] if entry["id"] == node.session_id]
    assert session["connected"] and session["devices"] == [0]
    assert session_of(node).token not in daemon.get("/status").body
    told = node.status()
    assert told.keys() == status.keys() and told["devices"][0].keys() == device.keys(), "gRPC returns the same document"
    assert told["started_unix"] == status["started_unix"]
    assert node.session_id in [entry["id"] for entry in told["sessions"]]
    assert daemon.get("/nothing").status == 404


def families(daemon: DaemonProcess) -> dict[str, Any]:
    page = daemon.get("/metrics")
    assert page.status == 200 and page.content_type.startswith("text/plain")
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(page.body):
        assert family.name not in found, f"{family.name} appears twice"
        found[family.name] = family
    return found


def test_metrics_are_a_valid_exposition(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    gpu.synchronize()
    body = daemon.get("/metrics").body
    found = families(daemon)
    for name, family in found.items():
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), name
        assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples}) == len(
            family.samples
        ), name
    for line in body.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0
    described = {line.split()[2] for line in body.splitlines() if line.startswith("# HELP")}
    assert described == {line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")}
    assert {"hearth_sessions", "hearth_device_up", "hearth_build_info", "grpc_server_handled"} <= found.keys()


def test_counters_move(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    x = gpu.zeros(1000, np.int32)
    gpu.synchronize()

    def value(name: str) -> float:
        samples = families(daemon)[name].samples
        return sum(s.value for s in samples if s.name.endswith("_total") and s.labels.get("device", "0") == "0")

    names = ["hearth_kernel_launches", "hearth_host_to_device_bytes", "hearth_device_to_host_bytes", "hearth_commands",
             "hearth_front_batches", "hearth_sync_points", "hearth_allocations", "grpc_server_started"]  # fmt: skip
    before = {name: value(name) for name in names}
    for _ in range(10):
        add_one((4,), (256,), (x, np.int32(1000)))
    gpu.asarray(np.zeros(5000, np.uint8)).get()
    gpu.synchronize()
    daemon.connect().close()
    moved = {name: value(name) - before[name] for name in names}
    assert moved["hearth_kernel_launches"] == 10 and moved["hearth_allocations"] == 1
    assert moved["hearth_host_to_device_bytes"] == moved["hearth_device_to_host_bytes"] == 5000
    assert all(moved.values()), moved


def test_failed_calls_are_counted_by_code(daemon: DaemonProcess, raw: Raw) -> None:
    def refusals() -> float:
        return sum(s.value for s in families(daemon)["grpc_server_handled"].samples
                   if s.labels["grpc_method"] == "Free" and s.labels["grpc_code"] == "NOT_FOUND")  # fmt: skip

    before = refusals()
    with pytest.raises(grpc.RpcError):
        raw.call("Free", c.Free(buffers=[999]))
    assert refusals() == before + 1


# ---- start and stop ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_daemon_cleanly(start_daemon: StartDaemon, number: signal.Signals) -> None:
    daemon = start_daemon()
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    daemon.process.send_signal(number)
    assert daemon.process.wait(20) == 0
    assert not daemon.socket.exists() and not list(daemon.folder.glob("*.lock"))
    assert not daemon.left_behind()


def test_daemon_ends_with_open_sessions_and_a_running_kernel(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="100ms")
    node = daemon.connect()
    gpu = node.device(0)
    with gated(gpu) as gate:
        gate.hold()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(30) == 0
        with pytest.raises(hearth.HearthError):
            gpu.synchronize()
    node.close()
    assert not daemon.left_behind()


def test_second_signal_ends_the_daemon_immediately(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="1h")
    node = daemon.connect()
    node.device(0).synchronize()
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: daemon.get("/readyz").status == 503)
    time.sleep(0.3)  # a signal that comes earlier is treated as the same signal
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(20) == 0
    node.close()


def test_the_log_is_json_without_a_terminal(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect(name="logged") as node:
        number = node.session_id
    daemon.stop()
    entries = [json.loads(line) for line in daemon.log().splitlines()]
    mine = [entry["event"] for entry in entries if entry.get("session") == number]
    assert mine == ["session_open", "session_close"]
    assert {"listening", "device_ready", "ready", "stopped"} <= {entry["event"] for entry in entries}
