"""Clients that tests kill: `python -m tests.support.daemon.doomed_client TARGET` forks one client for each line of its
input.

A line is the client's seed; the process writes the client's pid in reply. Modules are imported once, before the first
fork, without starting gRPC. A client uses all features in a random order until it is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import hearth
import hearth.blocking.array
import hearth.blocking.graph
import hearth.blocking.group
import hearth.kernels.dispatch
import hearth.transport.grpc

SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void busy(float* x, int turns) {
    float v = x[threadIdx.x];
    for (int i = 0; i < turns; i++) v = v * 0.999f + 1.0f;
    x[threadIdx.x] = v;
}
extern "C" __global__ void chat(int n) { printf("thread %d of %d\n", (int)threadIdx.x, n); }
"""
N = 4096
SIZES = [100, 1 << 20, 5 << 20]
"""Sizes of transfers, in bytes: each takes a different path."""


class Doomed:
    """A client's session and the objects that it has created so far."""

    def __init__(self, node: hearth.Node, gpu: hearth.Device, rng: random.Random) -> None:
        self.node, self.gpu, self.rng = node, gpu, rng
        module = self.gpu.RawModule(code=SOURCE)
        self.scale, self.busy, self.chat = (module.get_function(name) for name in ("scale", "busy", "chat"))
        self.x, self.y = self.gpu.full(N, 3, np.float32), self.gpu.zeros(N, np.float32)
        self.kept: list[object] = []

    def step(self) -> None:
        self.rng.choice(STEPS)(self)

    def launch(self, n: int = 1) -> None:
        for _ in range(n):
            self.scale((16,), (256,), (self.x, self.y, np.float32(2), np.int32(N)))

    # ---- actions of the client ----

    def allocations(self) -> None:
        self.kept += [self.gpu.empty(self.rng.randrange(1, 300_000), np.uint8) for _ in range(20)]
        self.kept += self.gpu.empty_many([((8, 8), np.float32)] * 3)
        self.kept.append(self.gpu.empty_pitched((100, 77), np.float32))
        del self.kept[: self.rng.randrange(len(self.kept))]

    def persistent(self) -> None:
        with self.gpu.persistent_memory():
            self.kept.append(self.gpu.zeros(100_000, np.uint8))

    def upload(self, size: int | None = None) -> None:
        self.kept.append(self.gpu.asarray(np.zeros(size or self.rng.choice(SIZES), np.uint8)))

    def download(self, size: int | None = None) -> None:
        self.gpu.empty(size or self.rng.choice(SIZES), np.uint8).get()

    def launches(self) -> None:
        with self.gpu.stream():
            self.launch(200)

    def long_kernels(self) -> None:
        # About 10 ms each. If a kernel of a closed session still runs after seconds, which can happen on a busy
        # machine, its device process is ended.
        for _ in range(5):
            self.busy((1,), (32,), (self.x, np.int32(250_000)))

    def prints(self) -> None:
        self.gpu.on_output(lambda text: None)
        self.chat((2,), (8,), (np.int32(8),))
        self.gpu.synchronize()

    def graphs(self) -> None:
        with self.gpu.graph() as graph:
            self.launch(10)
        with self.gpu.prepared() as prepared:
            self.launch(10)
        graph.launch(50)
        prepared.launch(50)
        self.kept += [graph, prepared]

    def traces(self) -> None:
        with self.gpu.trace(), self.gpu.profile():
            self.launch(20)

    def dispatches(self) -> None:
        a = np.ones(N, np.float32)
        self.kept.append(
            self.gpu.dispatch_async(
                self.scale, 16, 256, ins=[a], outs=[(N, np.float32)], scalars=[np.float32(2), np.int32(N)]
            )
        )

    def collectives(self) -> None:
        group = hearth.Group(self.node.devices)
        parts = [device.ones(1000, np.float32) for device in self.node.devices]
        for _ in range(4):
            group.all_reduce(parts)

    def half_a_collective(self) -> None:
        """Submits the operation of one rank of two: the process of the other rank ends before it submits its part."""
        group = hearth.Group(self.node.devices)
        if len(group) > 1:
            group.send(group.devices[0].ones(1000, np.float32), to=1, timeout=1)

    def modules(self) -> None:
        number = self.rng.randrange(3)
        code = f'extern "C" __global__ void set(int* x) {{ x[threadIdx.x] = {number}; }}'
        kernel = self.gpu.RawModule(code=code).get_function("set")
        kernel((1,), (32,), (self.gpu.empty(32, np.int32),))
        self.kept.append(kernel)

    def events(self) -> None:
        with self.gpu.stream() as stream:
            self.kept += [stream.record(), stream]

    def errors(self) -> None:
        with contextlib.suppress(hearth.HearthError):
            self.scale((1,), (5000,), (self.x, self.y, np.float32(2), np.int32(N)))
            self.gpu.synchronize()

    def durable(self) -> None:
        x = self.gpu.durable(self.gpu.zeros(200_000, np.uint8))
        self.launch()
        x.checkpoint()
        self.kept.append(x)

    def published(self) -> None:
        name = f"weights of {os.getpid()}, {self.rng.getrandbits(64)}"
        self.gpu.publish(name, self.gpu.zeros(10_000, np.uint8))
        self.kept.append(self.gpu.attach(name))


STEPS: list[Callable[[Doomed], None]] = [
    value for name, value in vars(Doomed).items() if callable(value) and not name.startswith("_")
    and name not in ("step", "launch")
]  # fmt: skip


def live(target: str, seed: int) -> None:
    """Uses random features until it is killed, or until an action fails, which is reported on standard error."""
    rng = random.Random(seed)
    options: dict[str, Any] = {"isolation": "dedicated"} if seed % 7 == 3 else {}
    node = hearth.connect(target, name=f"doomed {seed}", **options)
    doomed = Doomed(node, rng.choice(node.devices), rng)
    while True:
        doomed.step()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed clients are reaped automatically
    assert threading.active_count() == 1, "a thread would not exist after the fork"
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            live(sys.argv[1], int(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
