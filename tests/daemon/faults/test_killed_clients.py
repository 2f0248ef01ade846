"""Clients that are killed with SIGKILL at random moments: everything that they held is released.

HEARTH_TEST_CLIENTS=200 kills that number of clients; the default is fewer, because it takes time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon.doomed_client import SIZES, STEPS, Doomed
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.held import Held, State, state_of
from tests.support.daemon.kernels import saxpy_works
from tests.support.folders import ROOT

CLIENTS = int(os.environ.get("HEARTH_TEST_CLIENTS", "36"))
BATCH = 12
"""Maximum number of clients that run concurrently."""
LEASE_S = 6.0
LIFE_S = (0.02, 1.2)
"""Range of the seconds from a client's fork until it is killed."""
COMPILE_THREADS = 2
"""Compile threads of a device process (`compile.workers`); the second one starts when two sources arrive together."""
FRONT_THREADS = 8 + (os.cpu_count() or 1)
"""Threads of gRPC's core and of the event loop's executor: their number varies up to a limit that grows with the number
of processors."""
PRIVATE_KIB = 32 << 10
"""KiB of memory that a process may have gained: caches, pools and memory kept by the allocator, whose size depends on
the order of events."""


class Nursery:
    """The process from which the clients are forked."""

    def __init__(self, target: str, errors: Path) -> None:
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.daemon.doomed_client", target],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                cwd=ROOT,
                env=environment(PYTHONPATH=os.pathsep.join(sys.path), OPENBLAS_NUM_THREADS="1"),
            )  # fmt: skip

    def fork(self, seed: int) -> int:
        """Forks a client; returns its process id."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(cpu_count=2, sessions={"lease": f"{LEASE_S}s"})


@pytest.fixture
def nursery(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(daemon.unix, tmp_path / "errors")
    yield made
    made.close()


def everything(daemon: DaemonProcess) -> None:
    """Performs every action of a client on each device, so that everything that is created once and kept exists from
    now on (threads, pools, caches)."""
    with daemon.connect() as node:
        for gpu in node.devices:
            client = Doomed(node, gpu, random.Random(0))
            for step in STEPS:
                step(client)
            for size in SIZES:
                client.upload(size)
                client.download(size)


def massacre(nursery: Nursery, rng: random.Random, seeds: range) -> None:
    """Starts a client for each seed, and kills each at a different moment."""
    deaths: list[tuple[float, int]] = []
    for seed in seeds:
        pid = nursery.fork(seed)
        deaths.append((time.monotonic() + rng.uniform(*LIFE_S), pid))
        if len(deaths) >= BATCH:
            bury(deaths)
    while deaths:
        bury(deaths)


def bury(deaths: list[tuple[float, int]]) -> None:
    """Kills the client whose end is scheduled first."""
    deaths.sort()
    when, pid = deaths.pop(0)
    time.sleep(max(0.0, when - time.monotonic()))
    with contextlib.suppress(ProcessLookupError):  # it has already ended with an error: `errors` has the reason
        os.kill(pid, signal.SIGKILL)


def at_rest(daemon: DaemonProcess) -> State:
    """Returns the daemon's state after all leases have ended and all work is done."""
    began = time.monotonic()
    wait_until(lambda: not daemon.status()["sessions"], "the end of all sessions", 30)
    assert time.monotonic() - began < LEASE_S + 10
    wait_until(lambda: not held(daemon), "the end of their work", 30)
    with daemon.connect() as node:
        for gpu in node.devices:
            saxpy_works(gpu)
            gpu.memory_cleanup()
    wait_until(lambda: not daemon.status()["sessions"])
    return state_of(daemon)


def held(daemon: DaemonProcess) -> list[str]:
    """Returns the names of the gauges of resources that sessions hold on the devices."""
    return [name for gauges in state_of(daemon).gauges for name, value in gauges.items() if value]


def more(now: Held, before: Held, room: int) -> dict[str, object]:
    """Returns the resources that a process holds beyond `before`; `room` is the number of additional threads
    allowed."""
    found: dict[str, object] = {
        kind: (count, before.fds.get(kind, 0)) for kind, count in now.fds.items() if count > before.fds.get(kind, 0)
    }
    if now.threads > before.threads + room:
        found["threads"] = (now.threads, before.threads)
    if now.private_kib > before.private_kib + PRIVATE_KIB:
        found["private_kib"] = (now.private_kib, before.private_kib)
    return found


def growth(now: State, before: State) -> list[object]:
    """Returns the resources that the daemon holds beyond `before`."""
    found: list[object] = []
    processes = [("front", now.front, before.front, FRONT_THREADS)]
    for i, (a, b) in enumerate(zip(now.devices, before.devices, strict=True)):
        # A stream's thread (CPU) or event (GPU) is kept for the next session's stream.
        processes.append((f"device {i}", a, b, COMPILE_THREADS - 1 + max(0, now.streams[i] - before.streams[i])))
    for name, a, b, room in processes:
        beyond = more(a, b, room)
        if beyond:
            found.append((name, beyond))
    if now.gauges != before.gauges:
        found.append(("gauges", now.gauges, before.gauges))
    if now.processes > before.processes:
        found.append(("processes", now.processes, before.processes))
    return found


def stacks(daemon: DaemonProcess) -> str:
    """Returns the stacks of all threads of the device processes, which write them into the daemon's log on SIGUSR1."""
    start = len(daemon.log())
    for device in daemon.status()["devices"]:
        os.kill(device["pid"], signal.SIGUSR1)
        time.sleep(1)  # the processes write one after another, and no event signals that a dump is complete
    return daemon.log()[start:]


def test_killed_clients_release_all_resources(daemon: DaemonProcess, nursery: Nursery, tmp_path: Path) -> None:
    rng = random.Random(4)
    generations = [device["generation"] for device in daemon.status()["devices"]]
    everything(daemon)
    massacre(nursery, rng, range(BATCH))
    before = at_rest(daemon)
    massacre(nursery, rng, range(BATCH, BATCH + CLIENTS))
    after = at_rest(daemon)
    deadline = time.monotonic() + 60
    while (beyond := growth(after, before)) and time.monotonic() < deadline:
        time.sleep(0.25)  # compile workers that are no longer needed end after a while
        after = state_of(daemon)
    assert not beyond, f"{beyond}; streams {before.streams} to {after.streams}\n{stacks(daemon)}"
    assert [device["generation"] for device in daemon.status()["devices"]] == generations, daemon.log()[-8000:]
    errors = (tmp_path / "errors").read_text()
    assert "Error" not in errors, errors[-4000:]
    assert "Traceback" not in daemon.log(), daemon.log()[-4000:]
