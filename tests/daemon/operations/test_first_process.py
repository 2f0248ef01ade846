"""hearthd as process 1 of a PID namespace, as in a container: it reaps inherited processes, and ends as usual."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, START_S, environment, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.timing import LATE

_ENDLESS = r'extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) { } }'


def _namespace() -> list[str]:
    """Returns the command that runs another one as process 1. Skips the test if namespaces are not permitted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare (util-linux) is not installed")
    command = [unshare, "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    if os.geteuid():
        command += ["--user", "--map-root-user"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no PID namespace may be made here: {tried.stderr.strip()}")
    return command


class Namespace:
    """A daemon that is process 1 of a separate namespace."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.socket = folder / "hearth.sock"
        settings = ["--grpc", "", "--http", "", "--lanes", "", "--unix", str(self.socket), "--cpu-count", "1"]
        serve = [sys.executable, "-m", "hearthd", "serve", "--backend", BACKEND, *settings]
        with (folder / "log").open("w") as log:
            self.unshare = subprocess.Popen(
                [*_namespace(), *serve], stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment(CACHE_DIRECTORY=str(cache)),
            )  # fmt: skip
        assert self.unshare.stdout is not None
        line = self.unshare.stdout.readline()
        assert line.startswith("hearthd ready"), (folder / "log").read_text()
        children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text()
        self.pid = int(children.split()[0])
        """Process id of process 1, in the namespace of the test."""

    def states(self) -> dict[int, str]:
        """Returns the state of each process of the namespace."""
        found, ours = {}, Path(f"/proc/{self.pid}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and (entry / "ns/pid").readlink() == ours:
                    found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
        return found

    def zombies(self) -> list[int]:
        return [pid for pid, state in self.states().items() if state == "Z"]

    def end(self) -> None:
        if self.unshare.poll() is None:
            self.unshare.kill()
        self.unshare.wait(START_S)
        assert self.unshare.stdout is not None
        self.unshare.stdout.close()


@pytest.fixture
def first(cache: Path) -> Iterator[Namespace]:
    folder = Path(tempfile.mkdtemp(prefix="hearth-test-"))  # a short path, because it contains a socket
    process = Namespace(folder, cache)
    yield process
    process.end()
    shutil.rmtree(folder)


def test_zombies_of_lost_device_processes_do_not_stay(first: Namespace) -> None:
    for _ in range(3):
        with hearth.connect(f"unix:{first.socket}", launch_timeout=0.3) as node:
            gpu = node.device(0)
            x = gpu.zeros(1, np.int32)
            gpu.RawModule(code=_ENDLESS).get_function("endless")((1,), (1,), (x,))
            with pytest.raises(hearth.DeviceLostError):
                gpu.synchronize()
    wait_until(lambda: not first.zombies(), "an end of all zombies", 10)
    with hearth.connect(f"unix:{first.socket}") as node:
        saxpy_works(node.device(0))


def test_sigterm_drains_and_ends_process_1(first: Namespace) -> None:
    node = hearth.connect(f"unix:{first.socket}")
    x = node.device(0).full(4, 7, np.int32)
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: node.draining, "the drain")
    assert (x.get() == 7).all()  # open sessions continue
    node.close()
    begin = time.monotonic()
    assert first.unshare.wait(START_S) == 0
    assert time.monotonic() - begin < LATE  # it ended before its drain timeout
    assert not first.socket.exists()
