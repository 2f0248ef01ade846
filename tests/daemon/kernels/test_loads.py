"""A module load during an endless kernel of another session: CUDA loads no module before the kernel ends, and here the
CPU backend behaves in the same way. The waiting client gets an error in time, the wait is visible, and other sessions
are unaffected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.cli import main
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON, Gate, saxpy_works
from tests.support.daemon.reloading import Reloaded
from tests.support.folders import ROOT

WAIT_S = 30.0
"""Seconds: far more than any step here takes, but limited."""
SHORT = {"load_timeout": "500ms"}
LONG = {"load_timeout": "1h"}
_numbers = count()


@pytest.fixture(scope="module")
def reloaded(cache: Path) -> Iterator[Reloaded]:
    with pytest.MonkeyPatch.context() as patch:
        if BACKEND == "cpu":
            folders = [str(ROOT / "tests" / "support" / "daemon" / "waiting_cpu"), os.environ.get("PYTHONPATH", "")]
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        made = Reloaded(cache, launch=SHORT)
    yield made
    made.end()


@pytest.fixture
def daemon(reloaded: Reloaded) -> DaemonProcess:
    """The daemon with a short limit for waiting loads."""
    if reloaded.config["launch"] != SHORT:
        reloaded.change(launch=SHORT)
    return reloaded.daemon


@contextmanager
def busy(daemon: DaemonProcess) -> Iterator[tuple[hearth.Node, Gate]]:
    """A session whose kernel does not end before its gate is opened."""
    with daemon.connect() as node:
        gpu = node.device(0)
        gate, stream = Gate(gpu), gpu.stream()
        gate.hold(stream=stream)
        gpu.flush()
        try:
            yield node, gate
        finally:
            gate.open()


@contextmanager
def guest(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """The device of another session, which has created all objects of the first use."""
    with daemon.connect() as node:
        saxpy_works(node.device(0))
        yield node.device(0)


def fresh(gpu: hearth.Device) -> hearth.RawModule:
    """Returns a module that no process has loaded."""
    return gpu.RawModule(code=f"{COMMON}\n__device__ int number = {next(_numbers)};")


def works(module: hearth.RawModule, gpu: hearth.Device) -> None:
    x = gpu.zeros(8, np.int32)
    module.get_function("add_one")((1,), (8,), (x, np.int32(8)))
    assert (x.get(timeout=WAIT_S) == 1).all()


def events(daemon: DaemonProcess, event: str, session: str) -> list[dict[str, Any]]:
    """Returns the log entries of the event that name the session."""
    entries = [entry for entry in daemon.log_entries() if entry["event"] == event]
    return [entry for entry in entries if session in entry.get("sessions", ())]


def test_refused_load_names_blocking_kernel(daemon: DaemonProcess) -> None:
    before = daemon.counter("loads_refused", 0)
    with guest(daemon) as gpu, busy(daemon) as (node, gate):
        module = fresh(gpu)
        with pytest.raises(hearth.QuotaExceededError, match="hold of session") as caught:
            module.get_global("number", np.int32)
        error = caught.value
        assert error.reason == "QUEUE_FULL" and error.retryable and "dedicated" in error.fix
        assert error.details["sessions"] == node.session_id and error.details["kernels"] == "hold"
        for ask in (lambda: module.compile(timeout=WAIT_S), lambda: works(module, gpu)):
            with pytest.raises(hearth.QuotaExceededError):
                ask()
        assert daemon.gauge("loads_waiting") == 0
        assert daemon.counter("loads_refused", 0) == before + 1, "a load directly after the refused one does not wait"
        gate.open()
        works(fresh(gpu), gpu)
        works(module, gpu)  # a later request may succeed
        module.get_global("number", np.int32).get(timeout=WAIT_S)


def test_load_in_a_dedicated_process_is_not_blocked_by_other_sessions(daemon: DaemonProcess) -> None:
    with busy(daemon), daemon.connect(isolation="dedicated") as node:
        works(fresh(node.device(0)), node.device(0))


def test_waiting_load_is_visible_in_status_and_metrics(reloaded: Reloaded, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = reloaded.daemon
    reloaded.change(launch=LONG)
    with guest(daemon) as gpu, busy(daemon) as (node, _):
        module, session = fresh(gpu), gpu.node.session_id
        gpu.flush()
        wait_until(lambda: daemon.gauge("loads_waiting") == 1, "the load")
        (line,) = wait_until(lambda: events(daemon, "loads_wait", session), "the log's word")
        assert line["kernels"] == ["hold"] and line["sessions_of_kernels"] == [node.session_id]
        assert line["level"] == "warning" and line["device"] == 0 and line["waited_s"] >= 2
        page = daemon.metrics_with("hearth_loads_waiting")
        assert 'hearth_loads_waiting{device="0",tenant="default"} 1.0' in page
        waited = page.partition('hearth_load_wait_longest_seconds{device="0",tenant="default"} ')[2]
        assert float(waited.split()[0]) >= 2
        assert main.main(["status", daemon.unix]) == 0
        assert "1 module load is waiting for kernels to end" in capsys.readouterr().out
        assert main.main(["top", daemon.unix, "--once", "--interval", "0.1"]) == 0
        assert "1 module load is waiting for kernels to end" in capsys.readouterr().out
        reloaded.change(launch=SHORT)  # also for loads that already wait
        with pytest.raises(hearth.QuotaExceededError, match="hold of session"):
            module.compile(timeout=WAIT_S)
        assert len(events(daemon, "loads_wait", session)) == 1
        assert main.main(["status", daemon.unix]) == 0
        assert "for kernels to end" not in capsys.readouterr().out


def test_load_is_dropped_when_its_session_ends(reloaded: Reloaded) -> None:
    daemon = reloaded.daemon
    reloaded.change(launch=LONG)
    with guest(daemon) as staying, guest(daemon) as leaving, busy(daemon):
        loaded = daemon.counter("modules_loaded", 0)
        module = fresh(leaving)  # which is not unloaded before its session ends
        leaving.flush()
        wait_until(lambda: daemon.gauge("loads_waiting") == 1, "the load")
        leaving.node.close()
        wait_until(lambda: daemon.gauge("loads_waiting") == 0, "its end")
        del module
        assert (staying.ones(4, np.int32).get(timeout=WAIT_S) == 1).all()
    with guest(daemon) as gpu:
        works(fresh(gpu), gpu)
    assert daemon.counter("modules_loaded", 0) == loaded + 2, "the two modules of the last session"
