"""HEARTH_TRACE and `hearth trace`: programs of several kinds, and the trace file that each produces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth.cli.trace.summary import Summary, summarize
from hearthd.front.config.loader import load
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu
from tests.support.daemon.kernels import common

PROGRAM = """
import multiprocessing, os, subprocess, sys
import numpy as np, hearth
from tests.support.daemon.kernels import common

def work(index, times):
    with hearth.connect() as node:
        gpu = node.devices[index]
        add_one, x = common(gpu, "add_one"), gpu.zeros(256, np.int32)
        for _ in range(times):
            add_one((1,), (256,), (x, np.int32(256)))
        assert (x.get() == times).all()

if sys.argv[1] == "child":
    work(-1, 2)
    raise SystemExit
def unclosed():                              # its process ends without Python's exit functions
    global node
    node = hearth.connect()
    common(node.device(0), "add_one")((1,), (1,), (node.device(0).zeros(4, np.int32), np.int32(1)))

child = multiprocessing.get_context("fork").Process(target=unclosed)
child.start()
child.join()
subprocess.run([sys.executable, "-c", os.environ["PROGRAM"], "child"], check=True)
work(0, 8)
node = hearth.connect()                      # and never closed
node.devices[-1].zeros(4, np.int32)
raise RuntimeError("the end of it")
"""


def trace(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", "trace", *arguments], capture_output=True, text=True,
        env=environment(**variables), timeout=100, check=False,
    )  # fmt: skip


def launches(found: Summary) -> dict[str, int]:
    return {row.name: row.count for row in found.kernels}


def read(path: Path) -> Summary:
    return summarize(json.loads(path.read_text()))


def test_program_of_several_processes_that_fails(daemon: DaemonProcess, tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    done = trace(
        "record", "--output", str(output), "--", sys.executable, "-c", PROGRAM, "parent", HEARTH_TARGET=daemon.unix,
        PROGRAM=PROGRAM, PYTHONPATH=os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]),
    )  # fmt: skip
    assert done.returncode == 1 and "RuntimeError: the end of it" in done.stderr
    assert "hearth: the program ended with status 1" in done.stderr and not done.stdout
    assert list(tmp_path.iterdir()) == [output]
    found, last = read(output), daemon.ordinals()[-1]
    assert launches(found) == {"add_one": 11} and not found.dropped and not found.lost
    assert sorted(name.split(":")[0].split(", ")[1] for name, _, _ in found.devices) == [
        "device 0", "device 0", f"device {last}", f"device {last}",
    ]  # fmt: skip

    shown = trace("show", str(output))
    assert shown.returncode == 0 and not shown.stderr and "add_one" in shown.stdout and "GB/s" in shown.stdout
    document = json.loads(trace("show", str(output), "--json").stdout)
    assert document["kernels"][0]["count"] == 11 and document["schema"] == 1


def test_a_program_that_is_killed_and_one_that_uses_no_device(tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    done = trace("record", "-o", str(output), "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + signal.SIGKILL and "nothing was recorded" in done.stderr
    done = trace("record", "-o", str(output), "--", "true")
    assert done.returncode == 1 and "used no device" in done.stderr and not output.exists()


# ---- the variable without the command ----


@pytest.fixture
def traced(daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file into which connections opened from now on are traced."""
    path = tmp_path / "trace-%p.json"
    monkeypatch.setenv("HEARTH_TRACE", str(path))
    return tmp_path / f"trace-{os.getpid()}.json"


def test_trace_file_has_all_sessions_of_the_program(daemon: DaemonProcess, traced: Path) -> None:
    with daemon.connect() as first, daemon.connect() as second:
        for node in (first, second):
            x = node.device(0).zeros(16, np.int32)
            common(node.device(0), "add_one")((1,), (16,), (x, np.int32(16)))
        second.close()
        assert launches(read(traced)) == {"add_one": 1}, "each end of a session writes the records so far"
    assert launches(read(traced)) == {"add_one": 2}
    with daemon.connect():
        pass
    assert launches(read(traced)) == {"add_one": 2}
    with daemon.connect() as node:
        node.device(0).zeros(3, np.int32).get()
    found = read(traced)
    assert {row.name for row in found.transfers} == {"fill", "read"} and launches(found) == {"add_one": 2}


def test_traces_of_the_program_itself_are_part_of_the_trace_file(daemon: DaemonProcess, traced: Path) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        add_one, x = common(gpu, "add_one"), gpu.zeros(16, np.int32)

        def launch() -> None:
            add_one((1,), (16,), (x, np.int32(16)))

        launch()
        for _ in range(2):
            with gpu.trace() as trace:
                launch()
            assert [event.name for event in trace.events] == ["launch"]
        with pytest.raises(ZeroDivisionError), gpu.trace():
            launch()
            raise ZeroDivisionError
        launch()
        with gpu.trace(), pytest.raises(hearth.HearthError, match="is running on this device"):
            gpu.trace().__enter__()
    found = read(traced)
    assert launches(found) == {"add_one": 5} and len(found.devices) == 1


@on_cpu
def test_a_device_and_a_daemon_that_are_lost(start_daemon: StartDaemon, traced: Path) -> None:
    """A loss ends the trace at that time, and has no other effect on the program."""
    daemon = start_daemon()
    with daemon.connect() as node:
        gpu = node.device(0)
        gpu.zeros(4, np.int32).get()
        os.kill(daemon.device_pid(), signal.SIGKILL)
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        gpu.full(4, 3, np.int32).get()
    found = read(traced)
    assert found.lost == 1 and {row.name for row in found.transfers} == {"fill", "read"}
    node = daemon.connect()
    node.device(0).zeros(4, np.int32).get()
    daemon.stop()
    with pytest.warns(RuntimeWarning, match="the trace of device 0 was lost"):
        node.close()


@pytest.mark.parametrize(("path", "says"), [("", "is a directory"), ("none/trace.json", "which is not a directory")])
def test_trace_file_that_cannot_be_written_is_refused(
    daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    monkeypatch.setenv("HEARTH_TRACE", str(tmp_path / path))
    with pytest.raises(hearth.ArgumentError, match=says) as refused:
        daemon.connect()
    assert "HEARTH_TRACE" in str(refused.value) and refused.value.reason == "INVALID_ARGUMENT"


def test_the_daemon_ignores_the_variable() -> None:
    load(environ={"HEARTH_TRACE": "trace.json"})
