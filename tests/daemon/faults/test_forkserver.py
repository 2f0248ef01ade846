"""The forkserver ends or hangs: no device is lost, and the forkserver is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import (
    DaemonProcess,
    StartDaemon,
    alive,
    command_of,
    marked,
    needs_devices,
    wait_until,
)
from tests.support.daemon.kernels import common, saxpy_works

Kill = Callable[[], None]


def stat(pid: int) -> list[str]:
    """Returns the fields of `/proc/PID/stat` from the state on; for a process that has ended, the state X and no
    parent."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["X", "0"]


def forkserver(daemon: DaemonProcess, but: int = 0) -> int:
    """Waits for a forkserver other than `but`; returns its pid. It is the forked child of the front that is not a
    device process."""

    def find() -> int:
        devices = {device["pid"] for device in daemon.status()["devices"]}
        for pid in marked(daemon.mark):
            ours = int(stat(pid)[1]) == daemon.process.pid
            if ours and pid not in devices and pid != but and "multiprocessing.forkserver" in command_of(pid):
                return pid
        return 0

    found: int = wait_until(find, "a forkserver")
    return found


def places(daemon: DaemonProcess) -> list[tuple[int, int, str]]:
    return [(device["pid"], device["generation"], device["state"]) for device in daemon.status()["devices"]]


def lose_device(daemon: DaemonProcess, number: signal.Signals = signal.SIGKILL, ordinal: int = 0) -> None:
    """Ends a device's process and returns when the next one serves."""
    pid, generation = daemon.device_pid(ordinal), daemon.generation(ordinal)
    os.kill(pid, number)

    def back() -> bool:
        device = daemon.status()["devices"][ordinal]
        return bool(device["generation"] > generation and device["state"] == "serving")

    wait_until(back, "the device's return", 60)
    wait_until(lambda: stat(pid)[0] == "X", "the wait for the process that was lost")


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(cpu_count=2, fresh=True)


@pytest.fixture
def two_devices(daemon: DaemonProcess) -> None:
    needs_devices(daemon, 2)


@pytest.fixture
def load(daemon: DaemonProcess) -> Iterator[Callable[[], None]]:
    """A client that launches and reads continuously. Calling the yielded function stops it, and checks that it has lost
    nothing."""
    stop, errors, counts = threading.Event(), [], []

    def work() -> None:
        try:
            with daemon.connect() as node:
                gpu = node.device(0)
                add, x = common(gpu, "add_one"), gpu.zeros(64, np.int32)
                steps = 0
                while not stop.is_set():
                    add((1,), (64,), (x, np.int32(64)))
                    steps += 1
                    if steps % 8 == 0:
                        np.testing.assert_array_equal(x.get(), steps)
                        counts.append(steps)
        except BaseException as error:  # reported by the test's own thread
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        reached = len(counts)
        wait_until(lambda: errors or len(counts) > reached + 2, "further steps")
        stop.set()
        thread.join(60)
        assert not errors and not thread.is_alive()

    wait_until(lambda: errors or counts, "the first steps")
    try:
        yield end
    finally:
        stop.set()
        thread.join(60)


def test_device_processes_outlive_the_forkserver(daemon: DaemonProcess, load: Kill) -> None:
    before = places(daemon)
    old = forkserver(daemon)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: not alive(old), "its end")
    new = forkserver(daemon, but=old)  # it is replaced in the background, and no device is lost
    load()
    assert places(daemon) == before
    lose_device(daemon)  # a child of the first forkserver: the front itself has reaped it
    assert "its process was killed by SIGKILL" in daemon.log()
    assert forkserver(daemon) == new
    with daemon.connect() as node:
        for gpu in node.devices:
            saxpy_works(gpu)


def test_exit_code_of_a_device_whose_forkserver_has_ended(daemon: DaemonProcess) -> None:
    old = forkserver(daemon)
    os.kill(old, signal.SIGKILL)
    forkserver(daemon, but=old)
    lose_device(daemon, signal.SIGSEGV)
    assert "its process was killed by SIGSEGV" in daemon.log()


@pytest.mark.usefixtures("two_devices")
def test_forkserver_killed_during_a_request(daemon: DaemonProcess) -> None:
    """The forkserver is stopped, so that the request waits in its socket, and is then killed."""
    old = forkserver(daemon)
    os.kill(old, signal.SIGSTOP)
    lost = daemon.device_pid(0)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: daemon.status()["devices"][0]["state"] != "serving", "the loss")
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: places(daemon)[0][1:] == (2, "serving"), "the device's return", 60)
    assert places(daemon)[1][1:] == (1, "serving")
    with daemon.connect() as node:
        saxpy_works(node.device(0))


@pytest.mark.usefixtures("two_devices")
def test_stopped_forkserver_is_replaced(daemon: DaemonProcess, load: Kill) -> None:
    """A stopped forkserver delays neither the front nor a device's return, and the ends of its children are noticed."""
    old = forkserver(daemon)
    os.kill(old, signal.SIGSTOP)
    assert daemon.get("/readyz").status == 200
    lose_device(daemon, ordinal=1)
    assert "its process was killed by SIGKILL" in daemon.log()
    assert not alive(old)
    load()
    assert places(daemon)[0][1:] == (1, "serving")


@pytest.mark.parametrize("replaced", [False, True])
def test_daemon_stops_cleanly_after_the_loss(daemon: DaemonProcess, replaced: bool) -> None:
    old = forkserver(daemon)
    os.kill(old, signal.SIGKILL)
    if replaced:
        forkserver(daemon, but=old)
    assert daemon.stop() == 0
    assert not daemon.left_behind()
    assert "Traceback" not in daemon.log()


def test_daemon_ends_while_its_forkserver_is_stopped(daemon: DaemonProcess) -> None:
    os.kill(forkserver(daemon), signal.SIGSTOP)
    assert daemon.stop() == 0
    assert not daemon.left_behind()


def test_device_processes_of_a_lost_forkserver_end_with_the_front(daemon: DaemonProcess) -> None:
    """Stopped device processes end too: the kernel ends them, without running their code."""
    old = forkserver(daemon)
    os.kill(old, signal.SIGKILL)
    forkserver(daemon, but=old)
    for pid, _, _ in places(daemon):
        os.kill(pid, signal.SIGSTOP)
    daemon.process.kill()
    daemon.process.wait()
    wait_until(lambda: not marked(daemon.mark), "the end of the front's processes")


def test_compilers_of_a_lost_device_are_waited_for(daemon: DaemonProcess) -> None:
    """A device process that is killed leaves a compile worker, which no other parent would reap."""
    pid = daemon.device_pid(0)
    workers = [child for child in marked(daemon.mark) if int(stat(child)[1]) == pid]
    assert workers
    lose_device(daemon)
    wait_until(lambda: all(stat(worker)[0] == "X" for worker in workers), "the end of its workers")


@pytest.mark.usefixtures("two_devices")
def test_repeatedly_ending_forkserver_ends_no_device(daemon: DaemonProcess) -> None:
    before, old = places(daemon), 0
    for _ in range(3):
        old = forkserver(daemon, but=old)
        os.kill(old, signal.SIGKILL)
        wait_until(lambda pid=old: not alive(pid), "its end")
    lose_device(daemon)
    assert places(daemon)[1] == before[1]
    assert daemon.log().count('"forkserver_lost"') == 3
    with daemon.connect() as node:
        assert isinstance(node, hearth.Node)
        saxpy_works(node.device(0))
