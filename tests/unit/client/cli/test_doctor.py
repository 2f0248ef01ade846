"""Conclusions of `hearth doctor`, which never hangs or crashes."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hearth.cli.doctor import client, daemon, network
from hearth.cli.doctor.check import Check, Findings, run_bounded
from hearth.endpoint.target import resolve
from hearth.errors import ConnectError
from hearth.types import DeviceInfo, DeviceProperties, NodeInfo
from hearth_proto import VERSION
from hearth_proto.v1 import node_pb2
from hearthd.front.config import loader
from tests.support.folders import ROOT


def of(checks: Check | list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.status) for check in ([checks] if isinstance(checks, Check) else checks)]


# ---- how anything is looked at ----


def test_a_slow_check_fails_and_delays_no_other() -> None:
    never = threading.Event()

    def hangs() -> Check:
        never.wait()
        return Check("slow", "ok", "")

    (check,) = run_bounded("slow", 0.05, hangs)
    assert check.status == "failed" and "within 0.05 s" in check.detail and check.fix
    never.set()


def test_exception_in_a_check_is_reported_in_one_line() -> None:
    def raises(error: Exception) -> Any:
        def work() -> Check:
            raise error

        return work

    (check,) = run_bounded("x", 5, raises(ConnectError("none\nthere.", fix="start one.")))
    assert (check.status, check.detail, check.fix) == ("failed", "none there.", "start one.")
    (check,) = run_bounded("x", 5, raises(KeyError("odd")))
    assert check.status == "failed" and check.detail.startswith("KeyError")


def test_findings_are_printed_immediately_and_counted() -> None:
    told: list[Any] = []
    findings = Findings(told.append)
    assert findings.add(Check("a", "ok", "")) and findings.healthy
    assert findings.add(Check("b", "warning", "", "do")) and findings.healthy
    assert not findings.run("c", 5, lambda: Check("c", "failed", "", "do")) and not findings.healthy
    findings.skip(("d", "e"), "the check 'c' did not pass")
    assert [len(each) for each in told] == [1, 1, 1, 2]
    assert findings.counts() == "1 failed, 1 warning, 1 ok, 2 skipped"


# ---- this side ----


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("1.76.0", ">=1.76", True),
        ("1.75.9", ">=1.76", False),
        ("1.100.0rc1", ">=1.76", True),
        ("6.31.1", ">=6.31.1,<8", True),
        ("7.99", ">=6.31.1,<8", True),
        ("8", ">=6.31.1,<8", False),
        ("8.0.0", "<8,>=6.31.1", False),
    ],
)
def test_ranges(version: str, wanted: str, holds: bool) -> None:
    assert client.in_range(version, wanted) is holds


def test_versions() -> None:
    assert {check.status for check in client.versions()} == {"ok"}
    checks = client.versions({"grpcio": "1.2", "protobuf": "7.0", "numpy": "2.0"}.__getitem__)
    assert of(checks) == [("client", "ok"), ("grpcio", "failed"), ("protobuf", "ok"), ("numpy", "ok")]
    assert "pip install" in checks[1].fix

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert of(client.versions(missing))[1:] == [(name, "failed") for name in client.REQUIRED]


def test_required_versions_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, wanted in client.REQUIRED.items():
        assert f'"{name}{wanted}"' in text


def test_the_environment(tmp_path: Path) -> None:
    def statuses(**variables: str) -> list[str]:
        return [check.status for check in client.environment(variables)]

    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    assert statuses() == ["ok"] and statuses(HEARTH_TOKEN_FILE=str(token), HEARTH_LISTEN_GRPC="x") == ["ok"]
    assert statuses(HEARTH_TOKEN_FILE="/nowhere") == ["ok", "failed"]
    assert statuses(HEARTH_CA=str(tmp_path)) == ["ok", "failed"]
    assert statuses(HEARTH_TOKEN="a", HEARTH_TOKEN_FILE=str(token)) == ["ok", "warning"]
    token.chmod(0o644)
    assert statuses(HEARTH_TOKEN_FILE=str(token)) == ["ok", "warning"]
    checks = client.environment({"HEARTH_TOKEN": "secret", "HEARTH_TAGET": "x", "https_proxy": "p"}, loopback=False)
    assert [check.status for check in checks] == ["ok", "warning", "warning"]
    assert "did you mean HEARTH_TARGET?" in checks[1].detail and not any("secret" in str(check) for check in checks)


def test_variables_of_the_daemon_are_not_unknown() -> None:
    variables = {f"HEARTH_{'_'.join(path).upper()}": "x" for path in loader.settings() if path != ("tenants",)}
    variables |= dict.fromkeys((*loader.DEBUG_VARIABLES, loader.FILE_VARIABLE), "x")
    assert "HEARTH_DEVICES_BACKEND" in variables and of(client.environment(variables)) == [("environment", "ok")]
    assert of(client.environment({"HEARTH_DEVICE_BACKEND": "x"})) == [("environment", "ok"), ("environment", "warning")]


# ---- the way ----


def test_sockets(tmp_path: Path) -> None:
    path = tmp_path / "h.sock"
    found = network.unix_socket
    assert "does not exist" in found(str(path))[0].detail
    path.write_text("")
    assert "is not a socket" in found(str(path))[0].detail
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert "is stale" in found(str(path))[0].detail
        listening.listen()
        assert of(found(str(path))) == [("socket", "ok"), ("socket", "warning")]
        (tmp_path / "h.sock.call").touch()
        assert of(found(str(path))) == [("socket", "ok")]
        if os.getuid():
            path.chmod(0)
            assert "no permission to use" in found(str(path))[0].detail
    assert found("a\0b")[0].status == "failed" and found(str(tmp_path / ("x" * 300)))[0].status == "failed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks plain HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer begins with b'SSH-2.0-OpenSSH_'"),
        (b"", "it closes connections immediately"),
        (b"\0\0\0\4\0\0\0\0\0", "HTTP/2 without TLS"),
    ],
)
def test_protocol_of_a_port_is_recognised(answer: bytes, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        check = network.protocol(resolve(f"127.0.0.1:{server.getsockname()[1]}"), 5.0)
        assert says in check.detail
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_absent_daemon_and_unknown_name() -> None:
    assert network.reachable(resolve("127.0.0.1:1"), 2.0).status == "failed"
    assert network.resolved(resolve("no..such:1")).status == "failed"
    assert network.resolved(resolve("[::1]:7421")).status == "ok"


def test_certificates_that_expire_soon() -> None:
    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp()
    peer = {"notAfter": "Jan 11 00:00:00 2030 GMT", "subjectAltName": (("DNS", "gpu-box"),)}
    check = network.certificate_expiry(peer, now)
    assert check.status == "warning" and "gpu-box" in check.detail and "10 days from now" in check.detail
    assert network.certificate_expiry({**peer, "notAfter": "Jan 11 00:00:00 2031 GMT"}, now).status == "ok"


# ---- the daemon ----

DEVICE = DeviceInfo(0, "serving", 1, DeviceProperties.of(node_pb2.DeviceProperties(name="x", backend="cuda")), 1, "")
NODE = NodeInfo("box", VERSION, (1, 1), (DEVICE,), frozenset(), False)


def test_versions_of_the_daemon() -> None:
    assert daemon.version(NODE).status == "ok"
    assert daemon.version(replace(NODE, server_version="0.0.1")).status == "warning"
    assert daemon.version(replace(NODE, protocol=(7, 9))).status == "failed"


def test_states() -> None:
    assert daemon.state(NODE).status == "ok"
    assert daemon.state(replace(NODE, draining=True)).status == "warning"
    fenced = replace(DEVICE, state="fenced", detail="too many faults")
    assert daemon.state(replace(NODE, devices=(fenced,))).status == "failed"
    devices = (DEVICE, fenced, replace(DEVICE, state="lost"), replace(DEVICE, state="starting"))
    checks = daemon.devices(replace(NODE, devices=devices))
    assert [check.status for check in checks] == ["ok", "failed", "warning", "warning"]
    assert "too many faults" in checks[1].detail and "`hearth restart-device 0`" in checks[1].fix
    assert daemon.devices(replace(NODE, devices=()))[0].status == "failed"


def test_faults() -> None:
    assert daemon.faults({}, 0).status == "skipped" and daemon.faults({"faults": []}, 0).status == "ok"
    fault = {"time_unix": 90.0, "device": 1, "reason": "DEVICE_LOST", "detail": "it crashed", "kernels": ["bad"]}
    check = daemon.faults({"faults": [fault]}, 100.0)
    assert check.status == "warning" and "bad was running" in check.detail and "10 s ago on device 1" in check.detail
    assert daemon.faults({"faults": [fault]}, 1e6).status == "ok"
    assert daemon.faults({"faults": [{**fault, "reason": "restart"}]}, 100.0).status == "ok"
    assert daemon.faults({"faults": [{}]}, 100.0).status in ("ok", "warning")


def test_descriptors() -> None:
    shares = {"grpc": 220, "call": 147}
    assert daemon.descriptors({"descriptors": None}).status == daemon.descriptors({}).status == "skipped"
    enough = daemon.descriptors({"descriptors": {"limit": 1024, "needed": 1024, "shares": shares}})
    assert enough.status == "ok" and "220 connections for gRPC" in enough.detail
    few = daemon.descriptors({"descriptors": {"limit": 1023, "needed": 1024, "shares": shares}})
    assert few.status == "warning" and "needs 1024" in few.detail and "LimitNOFILE" in few.fix


def test_clocks() -> None:
    assert daemon.skew(101, 100, 102).status == "ok" and daemon.skew(99, 100, 102).status == "ok"
    assert "8.0 s ahead" in daemon.skew(110, 100, 102).detail
    assert "10.0 s behind" in daemon.skew(90, 100, 102).detail


def test_the_local_driver() -> None:
    def missing(_: str) -> object:
        raise OSError

    assert daemon.local_driver(NODE, True, missing).status == "warning"
    assert daemon.local_driver(NODE, True, str).status == "ok"
    assert daemon.local_driver(NODE, False, missing).status == "skipped"
