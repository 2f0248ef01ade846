"""Processes that are stopped for a while, as by a paused machine, a debugger or a host that swaps.

The front, a device process, a client or the forkserver is stopped (SIGSTOP) for 0.1 to 5 s while clients open sessions,
get their lanes, launch, copy by segments and by stripes, read and close. Nothing hangs, every command runs exactly
once, every result is correct, and no device is lost. HEARTH_TEST_ROUNDS is the number of rounds; the pauses of the
first round are short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth.session.timing import Timing
from hearth.transport import base
from hearth.transport.lane import Lane
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, command_of, marked, needs_devices, wait_until
from tests.support.daemon.kernels import common, saxpy_works
from tests.support.daemon.paused import Walker

ROUNDS = int(os.environ.get("HEARTH_TEST_ROUNDS", "1"))
SHORT = (0.1, 0.3, 1.1)
"""Durations of pauses in seconds. The client waits one second for its lane, the front a quarter of a second for a
stream to become idle."""
TIMEOUT = "60s"
"""Timeout for a device process that does not answer a ping: a busy machine lengthens pauses."""
LONG = (*SHORT, 0.6, 2.0, 5.0)
WITHIN = {"open": 0.06, "dedicated": 0.3, "launch": 0.1, "copy": 0.05, "read": 0.08, "close": 0.003}
"""Seconds after the start of each phase within which the pause begins."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def forkserver_of(daemon: DaemonProcess) -> int:
    """Returns the pid of the forkserver, a child of the front."""
    for pid in marked(daemon.mark):
        with contextlib.suppress(OSError):  # a process that has ended in the meantime
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == daemon.process.pid and "forkserver" in command_of(pid):
                return pid
    raise AssertionError("the daemon has no forkserver")


# ---- all combinations ----


@pytest.fixture(scope="module")
def paused(cache: Path) -> Iterator[DaemonProcess]:
    """The module's daemon, which must survive all pauses without losing a device."""
    daemon = DaemonProcess(cache, {"devices": {"ping_timeout": TIMEOUT}})
    yield daemon
    generations = [device["generation"] for device in daemon.status()["devices"]]
    faults = daemon.status()["faults"]
    code, log, left = daemon.stop(), daemon.log(), daemon.left_behind()
    daemon.remove()
    assert code == 0 and not left, log[-4000:]
    assert '"level": "error"' not in log and "never retrieved" not in log, log[-4000:]
    assert not faults and set(generations) == {1}, log[-4000:]


@pytest.fixture(scope="module")
def walkers(paused: DaemonProcess) -> Iterator[list[Walker]]:
    targets = [paused.unix, paused.unix, paused.grpc]
    each = [Walker(target, seed) for seed, target in enumerate(targets)]
    yield each
    for walker in each:
        walker.end()


@pytest.mark.parametrize("victim", ["front", "device", "client", "forkserver"])
def test_pauses_at_every_phase(paused: DaemonProcess, walkers: list[Walker], victim: str) -> None:
    rng = random.Random(f"pauses of {victim}")
    for number in range(ROUNDS):
        opening = "dedicated" if victim == "forkserver" or number % 4 == 3 else "open"
        for phase in (opening, "launch", "copy", "read", "close"):
            if victim == "forkserver" and number == 0 and phase not in (opening, "close"):
                pause = 0.0  # the forkserver takes no part in these phases
            else:
                pause = rng.choice(LONG if number else SHORT)
            for walker in walkers:
                walker.start(phase)
            if pause:
                time.sleep(rng.uniform(0, WITHIN[phase]))
                with stopped(pid_of(victim, paused, rng.choice(walkers))):
                    time.sleep(pause)
            for walker in walkers:
                walker.done(phase)


def pid_of(victim: str, daemon: DaemonProcess, walker: Walker) -> int:
    if victim == "front":
        return daemon.process.pid
    if victim == "client":
        return walker.pid
    return forkserver_of(daemon) if victim == "forkserver" else daemon.device_pid(-1)


# ---- specific moments ----


@pytest.mark.parametrize("victim", ["front", "device"])
def test_client_without_its_lane_is_answered(
    paused: DaemonProcess, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """The front is stopped from before the ticket is presented until the client has sent its work over the stream. Or
    the device process is stopped after the front has handed over the lane to it."""
    pid = paused.process.pid if victim == "front" else paused.device_pid()
    given_up = threading.Event()
    original, threads = base.open_lane, []

    def pause() -> None:
        given_up.wait(30)
        time.sleep(0.2)  # until the client sends its work
        os.kill(pid, signal.SIGCONT)

    def late(path: str, ticket: bytes) -> Lane | None:
        os.kill(pid, signal.SIGSTOP)
        threads.append(threading.Thread(target=pause))
        threads[-1].start()
        try:
            return original(path, ticket)
        finally:
            given_up.set()

    with hearth.connect(paused.unix, timeout=60) as node:
        monkeypatch.setattr(base, "open_lane", late)
        gpu = node.device(0)
        connection_of(gpu).timing = Timing(lane_retry=600.0)
        x = gpu.zeros(4, np.int32)
        add_one = common(gpu, "add_one")
        for _ in range(3):
            add_one((1,), (4,), (x, np.int32(4)))
            gpu.synchronize(timeout=60)
        assert x.get().tolist() == [3] * 4
        assert len(threads) == 1, "one stream, which was not resumed"
        threads[0].join()
        assert connection_of(gpu).outages == 0 and connection_of(gpu).attachment().channel is None
    with paused.connect() as other:
        saxpy_works(other.device(0))


def test_a_paused_device_process_is_waited_for(paused: DaemonProcess) -> None:
    """While a device process is stopped, nothing in the front blocks: other devices, the status page, new sessions. The
    device is shown as stalled, and the same process continues afterwards."""
    needs_devices(paused, 2)
    pid = paused.device_pid(0)
    with paused.connect() as node:
        saxpy_works(node.device(1))  # compiles the kernel before a process is stopped
        with stopped(pid):
            saxpy_works(node.device(1))
            with paused.connect() as other:
                assert other.sessions()
            wait_until(lambda: paused.status()["devices"][0]["state"] == "stalled", "its being called stalled")
            assert paused.status()["devices"][1]["state"] == "serving"
        wait_until(lambda: paused.status()["devices"][0]["state"] == "serving", "its going on")
        saxpy_works(node.device(0))
    assert (paused.device_pid(0), paused.generation(0)) == (pid, 1)
