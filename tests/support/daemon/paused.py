"""Clients that work while processes are paused: `python -m tests.support.daemon.paused TARGET SEED` performs the action
named by each line of its input.

It answers each line with "ok" or with a description of the failure. Every result is checked bit for bit, every launch
is counted, and the results depend on the order of launches. `Walker` is the test's interface to such a process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import hearth
from tests.support.daemon.harness import environment

SOURCE = r"""
extern "C" __global__ void step(unsigned int* x, unsigned int* launches, unsigned int k) {
    x[threadIdx.x] = x[threadIdx.x] * 1664525u + k + threadIdx.x;  // in another order, or twice, it is another result
    if (threadIdx.x == 0) launches[0] += 1;
}
"""
WIDTH = 64
TIMEOUT_S = 60.0
"""Time limit of a phase in seconds: pauses take seconds, and the machine may be busy."""


class Session:
    """A session and the record of its work."""

    def __init__(self, target: str, rng: random.Random) -> None:
        self.target, self.rng = target, rng
        self.node: hearth.Node | None = None

    def open(self, **options: Any) -> None:
        self.node = hearth.connect(self.target, timeout=TIMEOUT_S, **options)
        self.gpu = self.node.devices[-1]
        self.kernel = self.gpu.RawModule(code=SOURCE).get_function("step")
        self.x, self.launches = self.gpu.zeros(WIDTH, np.uint32), self.gpu.zeros(1, np.uint32)
        self.expected, self.launched = np.zeros(WIDTH, np.uint32), 0
        self.step(1)
        self.check()

    def dedicated(self) -> None:
        self.open(isolation="dedicated")

    def step(self, n: int) -> None:
        for _ in range(n):
            k = self.rng.randrange(1 << 32)
            self.kernel((1,), (WIDTH,), (self.x, self.launches, np.uint32(k)))
            self.expected = self.expected * np.uint32(1664525) + np.uint32(k) + np.arange(WIDTH, dtype=np.uint32)
        self.launched += n

    def check(self) -> None:
        ran = int(self.launches.get()[0])
        assert ran == self.launched, f"{self.launched} launches were submitted, {ran} have run"
        assert (self.x.get() == self.expected).all(), "launches ran in another order"

    def launch(self) -> None:
        for _ in range(100):
            self.step(1)
            self.gpu.synchronize()
        self.step(300)
        self.check()

    def copy(self) -> None:
        """Copies large arrays: through segments of shared memory on the Unix socket, through stripes over TCP."""
        noise = np.random.default_rng(self.rng.randrange(1 << 32))
        hosts = [noise.integers(0, 256, size, np.uint8) for size in (9 << 20, (2 << 20) + 7)]
        arrays = [self.gpu.asarray(host) for host in hosts]
        self.step(1)
        for host, array in zip(hosts, arrays, strict=True):
            assert (array.get() == host).all(), f"{host.size} bytes have changed"
        self.check()

    def read(self) -> None:
        for _ in range(40):
            host = np.full(self.rng.randrange(1, 5000), self.rng.randrange(1 << 32), np.uint32)
            assert (self.gpu.asarray(host).get() == host).all(), "a small array has changed"
            self.step(1)
        self.check()

    def close(self) -> None:
        assert self.node is not None
        self.node.close()
        self.node = None


PHASES: dict[str, Callable[[Session], None]] = {
    name: getattr(Session, name) for name in ("open", "dedicated", "launch", "copy", "read", "close")
}


class Walker:
    """A client process. `first` is the action that it performs before `ready` returns."""

    def __init__(self, target: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.support.daemon.paused", target, str(seed)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(),
        )  # fmt: skip
        self.pid = self.process.pid

    def start(self, phase: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{phase}\n")
        self.process.stdin.flush()

    def done(self, phase: str) -> None:
        """Waits until the process has finished a phase; if it does not, fails with the stack traces of its threads."""
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], 2 * TIMEOUT_S)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            self.process.stdin.close()  # type: ignore[union-attr]
            select.select([stdout], [], [], 2.0)
            self.process.kill()
            raise AssertionError(f"{phase} hangs:\n{stdout.read()}")
        line = stdout.readline()
        if line != f"ok {phase}\n":
            self.process.kill()
            raise AssertionError(f"{phase}: {line}{stdout.read()}")

    def end(self) -> None:
        """Ends the process, which must have no work left; kills it if it does not end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, file=sys.stdout)
    session = Session(sys.argv[1], random.Random(int(sys.argv[2])))
    for line in sys.stdin:
        PHASES[line.strip()](session)
        print("ok", line.strip(), flush=True)


if __name__ == "__main__":
    main()
