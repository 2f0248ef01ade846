"""The daemon under a service manager, which the test simulates: start, faults, and end."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tests.support.daemon.durables import QUICK
from tests.support.daemon.harness import StartDaemon, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.notify_socket import NotifySocket
from tests.support.timing import steady

WATCHDOG_S = 1.2


def test_messages_to_the_service_manager_from_start_to_end(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = NotifySocket(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
    daemon = start_daemon(cpu_count=2, devices={"ping_timeout": "500ms", **QUICK}, drain_timeout="20s")
    pid, count = daemon.process.pid, len(daemon.ordinals())
    last, serving = count - 1, f"Serving {count} device{'s' * (count > 1)}"

    # Start: the daemon requests more time before it is ready.
    manager.until(lambda said: "READY" in said)
    before = [said for _, said in manager.heard if "WATCHDOG" not in said]
    assert before[0]["STATUS"] == "Starting" and "EXTEND_TIMEOUT_USEC" in before[0]
    assert before[-1]["STATUS"] == f"{serving}, 0 sessions"

    # Normal operation.
    node = daemon.connect()
    saxpy_works(node.device(0))
    manager.until(lambda said: said.get("STATUS") == f"{serving}, 1 session")

    # Reload.
    daemon.process.send_signal(signal.SIGHUP)
    assert int(manager.until(lambda said: "RELOADING" in said)["MONOTONIC_USEC"]) > 0
    manager.until(lambda said: said.get("READY") == "1")

    # A stopped device process is replaced, and the watchdog messages continue in the meantime.
    def replace() -> float:
        """Stops a device process; returns the longest time between two watchdog messages until it is replaced."""
        begin = len(manager.heard)
        stopped = daemon.device_pid(last)
        os.kill(stopped, signal.SIGSTOP)
        losses = (f"device {last} lost", f"device {last} starting")
        manager.until(lambda said: any(loss in said.get("STATUS", "") for loss in losses))
        manager.until(lambda said: said.get("STATUS") == f"{serving}, 1 session")
        wait_until(lambda: daemon.device_pid(last) != stopped)
        beats = [at for at, said in manager.heard[begin:] if "WATCHDOG" in said]
        return max((later - earlier for earlier, later in itertools.pairwise(beats)), default=0.0)

    assert steady(replace, lambda gap: gap < WATCHDOG_S) < WATCHDOG_S
    with daemon.connect() as other:  # the error of the loss may still be reported to `node`
        saxpy_works(other.device(0))

    # A stopped front sends no watchdog messages, so it would be restarted.
    os.kill(pid, signal.SIGSTOP)
    try:
        manager.listen(0.1)
        assert manager.listen(2 * WATCHDOG_S) == []
    finally:
        os.kill(pid, signal.SIGCONT)
    manager.until(lambda said: "WATCHDOG" in said)

    # Drain: the daemon reports how long it may take.
    daemon.process.send_signal(signal.SIGTERM)
    said = manager.until(lambda said: "Draining 1 sessions" in said.get("STATUS", ""))
    assert said["STOPPING"] == "1" and int(said["EXTEND_TIMEOUT_USEC"]) > 10**6
    daemon.process.send_signal(signal.SIGHUP)
    node.close()
    assert daemon.process.wait(20) == 0
    last = [said for said in manager.listen(0) if "WATCHDOG" not in said]
    assert last and not any("READY" in said or "RELOADING" in said for said in last)
    manager.close()
