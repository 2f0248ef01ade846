"""If a front is killed, all of its processes end, also during work, and the next daemon starts at the
same addresses."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.draining import compiling, endless
from tests.support.daemon.harness import BACKEND, MARK, DaemonProcess, environment, marked, shared_memory, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import Raw
from tests.support.daemon.slow_compile import SLOW

QUICKLY = 20.0
"""Seconds within which every process of a killed front has ended; usually it takes milliseconds."""

Start = Callable[..., DaemonProcess]


@pytest.fixture
def start(cache: Path) -> Iterator[Start]:
    """Starts daemons one after another in the same place: `start(after=first)`."""
    started: list[DaemonProcess] = []

    def begin(after: DaemonProcess | None = None) -> DaemonProcess:
        process = DaemonProcess(cache, cpu_count=2, after=after)
        started.append(process)
        return process

    yield begin
    left: list[str] = []
    for process in reversed(started):
        process.stop()
        left += process.left_behind()
    for process in started:
        process.remove()
    assert not left


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder for temporary files of the test's daemons; with a short path, because it may contain sockets."""
    with tempfile.TemporaryDirectory(prefix="hearth-t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def kill(daemon: DaemonProcess) -> float:
    """Kills the front; returns the seconds until the last of its processes has ended."""
    daemon.process.kill()
    daemon.process.wait()
    began = time.monotonic()
    wait_until(lambda: not marked(daemon.mark), "the end of the front's processes", QUICKLY)
    return time.monotonic() - began


def busy(raw: Raw, node: hearth.Node) -> list[object]:
    """Starts work of every kind: an endless kernel, an upload, a compile. The caller must keep the result alive."""
    keep: list[object] = [endless(node.devices[-1])]
    half = threading.Event()

    def messages() -> Iterator[device_pb2.UploadRequest]:
        yield device_pb2.UploadRequest(session_token=raw.token, transfer=5, data=bytes(1 << 20))
        half.wait(30)

    keep += [raw.device.Upload.future(messages()), half]
    load = c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SLOW.encode())
    keep.append(raw.device.LoadModule.future(device_pb2.LoadModuleRequest(target=raw.target(), command=load)))
    return keep


def test_kill_9_under_load_and_restart_at_the_same_addresses(start: Start, temporary: Path) -> None:
    segments = shared_memory()
    first = start()
    used = [device["memory"]["used_bytes"] for device in first.status()["devices"]]
    raw, node = Raw(first.grpc), first.connect()
    keep = busy(raw, node)
    wait_until(lambda: compiling(first), "the compile")
    kill(first)
    assert first.socket.exists(), "no process remained to remove it"
    with pytest.raises(hearth.HearthError):
        node.device(0).synchronize()
    left = [path.name for path in temporary.iterdir()]
    assert all(name.startswith("hearth-workers-") for name in left), left
    # with several pytest workers, the segments of the other workers would be counted as well
    if "PYTEST_XDIST_WORKER" not in os.environ:
        assert not shared_memory() - segments

    second = start(after=first)
    assert (second.grpc, second.http, second.unix) == (first.grpc, first.http, first.unix)
    with second.connect() as fresh:
        for gpu in fresh.devices:
            saxpy_works(gpu)
        # with several pytest workers, their daemons use memory of the GPU as well
        if BACKEND == "cuda" and "PYTEST_XDIST_WORKER" not in os.environ:
            again = [device["memory"]["used_bytes"] for device in second.status()["devices"]]
            assert all(now < before + (256 << 20) for now, before in zip(again, used, strict=True))
    assert second.stop() == 0
    assert not list(temporary.iterdir()), "the second daemon removes the files of the first"
    raw.channel.close()
    node.close()
    del keep


def test_kill_9_with_device_processes_that_are_stuck(start: Start) -> None:
    """A process that does not even read its link ends too."""
    daemon = start()
    pids = [device["pid"] for device in daemon.status()["devices"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    kill(daemon)


CLEARED = ("hearth-workers-", "hearth-forkserver-")
"""Directories that a killed process may leave, and that the next daemon removes."""


def test_next_daemon_removes_leftover_directories(start: Start, temporary: Path) -> None:
    stale = [temporary / f"{prefix}stale" for prefix in CLEARED]
    for path in stale:
        (path / "1").mkdir(parents=True)
    daemon = start()
    with daemon.connect() as node:
        saxpy_works(node.devices[0])
    assert not any(path.exists() for path in stale)


@pytest.mark.parametrize("seed", range(5))
def test_kill_9_during_the_start(temporary: Path, cache: Path, tmp_path: Path, seed: int) -> None:
    mark = f"killed-{os.getpid()}-{seed}-{time.monotonic_ns()}"
    arguments = ["--backend", BACKEND, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--lanes", ""]
    arguments += ["--unix", str(temporary / "s")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hearthd", "serve", *arguments], stdout=log, stderr=log,
            env=environment(**{MARK: mark, "HEARTH_CACHE_DIR": str(cache)}),
        )  # fmt: skip
    time.sleep(random.Random(seed).uniform(0.1, 1.5))  # a random moment
    process.kill()
    process.wait()
    wait_until(lambda: not marked(mark), "the end of its processes", 20)  # it may be importing CuPy
    left = {path.name for path in temporary.iterdir()} - {
        "s",
        "s.lock",
        "s.lane",
        "s.lane.lock",
        "s.call",
        "s.call.lock",
    }
    assert all(name.startswith(CLEARED) for name in left), left


def test_second_daemon_at_the_same_addresses_is_refused(start: Start) -> None:
    """A second daemon in the same place is refused with a reason, and affects no session."""
    daemon = start()
    for arguments in (
        ["--grpc", daemon.grpc, "--http", "", "--lanes", "", "--unix", ""],
        ["--grpc", "", "--http", daemon.http, "--lanes", "", "--unix", ""],
        ["--grpc", "", "--http", "", "--lanes", "", "--unix", str(daemon.socket)],
    ):
        command = [sys.executable, "-m", "hearthd", "serve", "--backend", "cpu", "--cpu-count", "1", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert "listen." in done.stderr and ("in use" in done.stderr or "already serves" in done.stderr)
    with daemon.connect() as node:
        saxpy_works(node.device(0))


def test_restart_on_a_port_with_connections_of_the_killed_daemon(start: Start) -> None:
    """Connections that were open when the front was killed do not keep its ports occupied (TIME_WAIT)."""
    first = start()
    hosts = [address.rpartition(":") for address in (first.grpc, first.http)]
    connections = [socket.create_connection((host, int(port))) for host, _, port in hosts for _ in range(5)]
    kill(first)
    second = start(after=first)
    with hearth.connect(second.grpc) as node:
        saxpy_works(node.device(0))
    for connection in connections:
        connection.close()
