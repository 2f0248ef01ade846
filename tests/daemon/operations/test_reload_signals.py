"""SIGHUP before the daemon is ready, while it drains, and when its terminal closes."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon.harness import BACKEND, environment, on_cpu, wait_until
from tests.support.daemon.reloading import Reloaded
from tests.support.daemon.tenants import tenants


def test_reload_during_a_drain(cache: Path) -> None:
    config, tokens = tenants("ci", "mine")
    reloaded = Reloaded(cache, **config, drain_timeout="30s")
    try:
        daemon = reloaded.daemon
        node, other = daemon.connect(token=tokens["ci"]), daemon.connect(token=tokens["mine"])
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: daemon.get("/readyz").status == 503)
        entry = reloaded.change(tenants=config["tenants"][1:])
        assert entry["sessions_ended"] == 1 and daemon.process.poll() is None
        other.device(0).synchronize()
        other.close()
        assert daemon.process.wait(20) == 0
        node.close()
    finally:
        reloaded.end()


def begun(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    with tempfile.TemporaryDirectory(prefix="hearth-test-") as folder:
        unix = f"{folder}-sock"
    listen = ["--unix", unix, "--grpc", "", "--http", "", "--lanes", "", "--backend", BACKEND, "--cpu-count", "1"]
    command = [sys.executable, "-m", "hearthd", "serve", *listen, "--log-format", "json", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), **more
    )


@on_cpu
def test_signals_from_the_first_moment_on(tmp_path: Path) -> None:
    """A signal during the start does not end the daemon; the reload happens when the daemon is ready."""
    process = begun()
    try:
        assert process.stdout is not None and process.stderr is not None
        wait_until(lambda: _catches(process.pid, signal.SIGHUP), "its handler")
        for _ in range(20):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        assert "ready" in process.stdout.readline()
        for line in process.stderr:
            if '"reloaded"' in line:
                break
        else:
            raise AssertionError("it did not reload")
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in errors


def _status(pid: int, field: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return line.split()[1]
    return "0"


def _catches(pid: int, number: int) -> bool:
    return bool(int(_status(pid, "SigCgt"), 16) >> (number - 1) & 1)


@on_cpu
@pytest.mark.parametrize("outlives", [False, True], ids=["", "nohup"])
def test_end_of_the_controlling_terminal(outlives: bool) -> None:
    """The close of the terminal stops the daemon like a service: SIGHUP is a reload only if the terminal still exists,
    or if the daemon was started with SIGHUP ignored."""
    ours, its = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)
        # independent of the setting that the test process inherited
        signal.signal(signal.SIGHUP, signal.SIG_IGN if outlives else signal.SIG_DFL)

    def reloaded() -> None:
        while '"reloaded"' not in process.stderr.readline():
            assert process.poll() is None

    process = begun(preexec_fn=take_terminal, pass_fds=(its,))
    try:
        assert process.stdout is not None and "ready" in process.stdout.readline() and process.stderr is not None
        process.send_signal(signal.SIGHUP)
        reloaded()
        os.close(its)
        os.close(ours)
        if outlives:
            reloaded()
            process.terminate()
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0 and ("SIGTERM" if outlives else "SIGHUP") in errors, errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
