"""`hearth doctor` against daemons in all states, and against other servers: it names the problem, and
ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.cli import main
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu
from tests.support.daemon.tenants import new_token, tenant, tenants

CLOSED = "127.0.0.1:1"
Doctor = Callable[..., dict[str, list[dict[str, Any]]]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Doctor:
    """Runs `hearth doctor` in this process; returns its checks by name, and verifies that the exit status matches
    them."""
    for name in [name for name in os.environ if name.startswith("HEARTH_")]:
        monkeypatch.delenv(name)

    def go(*arguments: str) -> dict[str, list[dict[str, Any]]]:
        status = main.main(["doctor", "--json", *arguments])
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert not err and document["schema"] == 1
        found: dict[str, list[dict[str, Any]]] = {}
        for check in document["checks"]:
            assert check["status"] in ("ok", "skipped") or check["fix"], check
            found.setdefault(check["name"], []).append(check)
        failed = any(check["status"] == "failed" for checks in found.values() for check in checks)
        assert status == int(failed) and document["healthy"] is not failed
        return found

    return go


def only(found: dict[str, list[dict[str, Any]]], name: str) -> tuple[str, str]:
    (check,) = found[name]
    return check["status"], f"{check['detail']} -> {check['fix']}"


def failures(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [name for name, checks in found.items() if any(check["status"] == "failed" for check in checks)]


@pytest.mark.parametrize("road", ["unix", "grpc"])
def test_all_checks_pass_for_a_healthy_daemon(doctor: Doctor, daemon: DaemonProcess, road: str) -> None:
    with daemon.connect() as node:  # a client that another test has killed has its lease still
        before = {each.session_id for each in node.sessions()} - {node.session_id}
    ordinals = daemon.ordinals()
    tried = ordinals[-1:] if road == "grpc" else ordinals
    found = doctor(getattr(daemon, road), *(("--device", str(tried[0])) if road == "grpc" else ()))
    assert not failures(found)
    ways = ("socket", "lane", "shared memory") if road == "unix" else ("name", "port", "protocol", "stripes")
    for name in (*ways, *(f"device {ordinal}" for ordinal in ordinals), "session", "daemon", "ready", "clock"):
        assert only(found, name)[0] == "ok", found[name]
    status, told = only(found, "identity")  # without tenants, any user may use the port
    assert status == ("warning" if road == "grpc" else "ok") and ("every user" in told) == (road == "grpc")
    assert [name for name in found if name.startswith("compiler")] == [f"compiler {ordinal}" for ordinal in tried]
    for ordinal in tried:
        status, told = only(found, f"compiler {ordinal}")  # a busy machine may be slow
        assert status in ("ok", "warning") and "allowed: allocate, write, launch, read" in told
    with daemon.connect() as node:
        assert {each.session_id for each in node.sessions()} <= before | {node.session_id}, "it left no session"


def test_text_output_with_a_warning(daemon: DaemonProcess) -> None:
    last = daemon.ordinals()[-1]
    done = subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", "doctor", "--device", str(last)], capture_output=True, text=True,
        env=environment(HEARTH_TARGET=daemon.unix, HEARTH_TAGET="x"), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok       client          hearth ")
    place = next(index for index, line in enumerate(lines) if line.startswith("warning  environment"))
    assert lines[place + 1].split() == ["->", "unset", "HEARTH_TAGET"]
    assert [line[9:].split()[:2] for line in lines if line[9:].startswith("compiler")] == [["compiler", str(last)]]
    assert " warning, " in lines[-1] and "failed" not in lines[-1]


def test_absent_daemon_is_reported(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor(CLOSED)
    assert failures(found) == ["port"] and "hearthd serve" in only(found, "port")[1]
    assert only(found, "session")[0] == only(found, "protocol")[0] == "skipped"
    found = doctor(f"unix:{tmp_path}/none.sock")
    assert failures(found) == ["socket"] and "does not exist" in only(found, "socket")[1]
    assert failures(doctor("unix:")) == ["target"] and failures(doctor("no..such.name")) == ["name"]


def test_a_stale_socket(doctor: Doctor, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "h.sock"))
    found = doctor(f"unix:{tmp_path}/h.sock")
    assert failures(found) == ["socket"] and "is stale" in only(found, "socket")[1]


def test_the_port_of_http(doctor: Doctor, daemon: DaemonProcess) -> None:
    found = doctor(daemon.http)
    assert failures(found) == ["protocol"] and "plain HTTP" in only(found, "protocol")[1]


def test_daemon_that_never_answers(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = doctor(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.5")
    assert failures(found) == ["protocol"] and "does not answer" in only(found, "protocol")[1]


def test_tls(doctor: Doctor, start_daemon: StartDaemon, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    certificate, key = ours.issue("localhost")
    config, tokens = tenants("alice", tls={"certificate": str(certificate), "key": str(key)})
    daemon = start_daemon(**config)
    port = daemon.grpc.rpartition(":")[2]
    target, token = f"https://localhost:{port}", ("--token", tokens["alice"])
    found = doctor(target, *token)
    assert failures(found) == ["certificate"] and "HEARTH_CA" in only(found, "certificate")[1]
    assert "localhost" in only(found, "certificate")[1]
    assert "ask for the one that did" in only(doctor(target, "--ca", str(theirs.pem)), "certificate")[1]
    found = doctor(f"https://127.0.0.1:{port}", *token, "--ca", str(ours.pem))
    assert (
        failures(found) == ["certificate"] and "a name that the certificate contains" in only(found, "certificate")[1]
    )
    found = doctor(daemon.grpc, *token)
    assert failures(found) == ["protocol"] and f"use https://{daemon.grpc}" in only(found, "protocol")[1]
    found = doctor(target, *token, "--ca", str(ours.pem))
    assert not failures(found) and "alice" in only(found, "identity")[1], found
    assert only(found, "certificate")[0] == "ok" and only(found, "stripes")[0] == "ok"


def test_expired_and_plain(doctor: Doctor, daemon: DaemonProcess, tmp_path: Path) -> None:
    """A daemon does not start with an expired certificate, but the certificate may expire later."""
    ours = Authority(tmp_path / "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("localhost", expired=True))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                        secured.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = doctor(f"https://localhost:{server.getsockname()[1]}", "--ca", str(ours.pem))
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert failures(found) == ["certificate"] and "expired" in only(found, "certificate")[1]
    found = doctor(f"https://{daemon.grpc}")
    assert failures(found) == ["protocol"] and "without https://" in only(found, "protocol")[1]


def test_tokens_rights_and_draining(doctor: Doctor, start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        tenant("all", rights=["admin", "allocate", "read", "write", "launch"]),
        tenant("no-launch", rights=["allocate", "read", "write"]),
        tenant("observer", rights=["observe"]),
    )
    daemon = start_daemon(**config)
    assert failures(doctor(daemon.grpc)) == ["session"]
    found = doctor(daemon.grpc, "--token", new_token())
    assert failures(found) == ["session"] and "the argument token" in only(found, "session")[1]
    assert "hearth_" not in str(found)
    found = doctor(daemon.grpc, "--token", "two words")
    assert failures(found) == ["credentials"] and only(found, "port")[0] == "ok"
    found = doctor(daemon.grpc, "--token-file", "/nowhere")
    assert set(failures(found)) == {"environment", "credentials"}
    found = doctor(daemon.unix, "--token", tokens["no-launch"])
    status, text = only(found, "compiler 0")
    assert not failures(found) and status == "warning" and "allowed: allocate, write" in text
    for address, name in ((daemon.unix, "shared memory"), (daemon.grpc, "stripes")):
        found = doctor(address, "--token", tokens["observer"])
        assert not failures(found) and only(found, "compiler 0")[0] == "skipped"
        status, text = only(found, name)
        assert status == "skipped" and "segment_bytes" not in text and "may not" in text
    found = doctor(daemon.unix, "--token", tokens["all"], "--device", "7")
    assert failures(found) == ["compiler"] and "no device 7" in only(found, "compiler")[1]
    with daemon.connect(token=tokens["all"]) as node:
        node.drain()
        found = doctor(daemon.unix, "--token", tokens["all"])
    assert failures(found) == ["session"] and "drain" in only(found, "session")[1]


@on_cpu
def test_without_lanes_and_without_a_compiler(
    doctor: Doctor, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("CXX", raising=False)
        daemon = start_daemon(cache_dir=tmp_path, lanes={"enabled": False})
    found = doctor(daemon.unix)
    assert failures(found) == [f"compiler {ordinal}" for ordinal in daemon.ordinals()]
    assert "compiler" in only(found, "compiler 0")[1]
    assert only(found, "lane")[0] == "warning" and only(found, "shared memory")[0] == "warning"
    assert only(doctor(daemon.grpc), "stripes")[0] == "warning"


def test_a_daemon_with_few_descriptors(doctor: Doctor, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(open_files=256, **tenants(tenant("mine", users=[os.getuid()], rights=["admin"]))[0])
    status, told = only(doctor(daemon.unix), "descriptors")
    assert status == "warning" and "may open 256 files" in told and "needs 1024" in told
    assert '"few_descriptors"' in daemon.log()
