"""The daemon as a process with real device processes of the CPU backend: signals, exit codes, and no remaining
resources."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.folders import ROOT, short_folder

ENVIRON = {
    "PYTHONPATH": ":".join(str(ROOT / part) for part in ("proto", "server")),
    "PATH": os.environ.get("PATH", ""),
}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = short_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(sockets: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "hearthd", "serve", "--backend", "cpu", "--cpu-count", "1", "--grpc", "127.0.0.1:0",
             "--http", "", "--lanes", "", "--unix", str(sockets / "h.sock"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**ENVIRON, "HOME": str(tmp_path), **environ},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        readable = selector.select(30)
    assert readable, "not ready in time"
    line = process.stdout.readline()
    assert line.startswith("hearthd ready "), process.communicate(timeout=10)
    return line


def family(process: subprocess.Popen[str]) -> list[int]:
    """Returns the processes of the daemon's session, to which all processes that it starts belong."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == process.pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def all_gone(process: subprocess.Popen[str], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while family(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("group", [False, True])
def test_signal_ends_the_daemon_cleanly(start: Start, sockets: Path, number: signal.Signals, group: bool) -> None:
    process = start()
    line = ready(process)
    assert re.search(r"grpc=127\.0\.0\.1:[1-9]\d* ", line)
    assert len(family(process)) >= 3  # the front, the forkserver and a device process
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in errors and "device_lost" not in errors, errors
    assert all_gone(process)
    assert not any(sockets.iterdir())


def test_processes_end_with_a_killed_front(start: Start) -> None:
    process = start()
    ready(process)
    process.kill()
    process.wait(10)
    assert all_gone(process)
    again = start()
    ready(again)  # the socket that the first daemon left is replaced


def test_a_temporary_directory_with_a_long_path(start: Start, tmp_path: Path) -> None:
    """The path is longer than a socket's path may be; no file remains there."""
    folder = tmp_path / ("a" * 120)
    folder.mkdir()
    process = start(TMPDIR=str(folder))
    ready(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert not any(folder.iterdir())


def test_taken_addresses_are_one_clear_line(start: Start) -> None:
    first = start()
    ready(first)
    second = start()
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 1
    assert errors.count("\n") == 1 and "already serves" in errors
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        third = start("--grpc", f"127.0.0.1:{port}", "--unix", "")
        _, errors = third.communicate(timeout=20)
    assert third.returncode == 1
    assert errors.count("\n") == 1 and f"port {port}" in errors
    assert all_gone(second) and all_gone(third)
    assert first.poll() is None


def test_systemd_is_notified(start: Start, sockets: Path) -> None:
    path = sockets / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(20)
        process = start("--log-format", "json", NOTIFY_SOCKET=str(path), WATCHDOG_USEC="200000")
        told = ""
        while "READY=1" not in told or "WATCHDOG=1" not in told:
            told += systemd.recv(1000).decode() + "\n"
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in told:
            told += systemd.recv(1000).decode() + "\n"
        process.communicate(timeout=20)
    assert process.returncode == 0
