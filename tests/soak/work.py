"""Work of the clients of the soak test: each kind is an endless generator that does a round of work and yields.

Every result is checked.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import hearth
from tests.soak.ledger import Ledger
from tests.support.daemon.kernels import COMMON

SOURCE = (
    COMMON
    + r"""
extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
"""
)


@dataclass
class Client:
    """A client of the soak."""

    target: str
    rng: random.Random
    ledger: Ledger
    number: int

    def connect(self, target: str = "", **options: Any) -> hearth.Node:
        """Opens a session, with a timeout suitable for a busy machine."""
        return hearth.connect(target or self.target, timeout=60, **options)

    def device(self, node: hearth.Node) -> hearth.Device:
        return node.devices[self.number % len(node.devices)]


Rounds = Iterator[None]


class Counter:
    """A buffer whose only number every launch of `add_one` increments, to detect lost and repeated launches."""

    def __init__(self, gpu: hearth.Device) -> None:
        module = gpu.RawModule(code=SOURCE)
        self.add_one, self.mix = module.get_function("add_one"), module.get_function("mix")
        self.count = gpu.zeros(1, np.int32)
        self.x = gpu.asarray(np.arange(1, 65, dtype=np.uint32))
        self.y = gpu.zeros(64, np.uint32)
        self.launched = 0
        self.expected = np.zeros(64, np.uint32)

    def launch(self, n: int) -> None:
        for _ in range(n):
            self.add_one((1,), (1,), (self.count, np.int32(1)))
            self.mix((1,), (64,), (self.x, self.y, np.int32(64)))
            self.expected = 3 * self.expected + np.arange(1, 65, dtype=np.uint32)
        self.launched += n

    def check(self, ledger: Ledger, what: str) -> None:
        ledger.counted(int(self.count.get()[0]), self.launched, what)
        ledger.check(bool((self.y.get() == self.expected).all()), f"{what}: the order of launches")


def launches(client: Client) -> Rounds:
    """Launches in a loop, on two streams that share a buffer."""
    with client.connect(name="soak launches") as node:
        gpu = client.device(node)
        counter = Counter(gpu)
        streams = [gpu.stream(), gpu.stream()]
        while True:
            for stream in streams:
                with stream:
                    counter.launch(client.rng.randrange(1, 60))
            counter.check(client.ledger, "launches")
            yield


def transfers(client: Client) -> Rounds:
    """Uploads and downloads of all sizes, inline and streamed, several concurrently."""
    with client.connect(name="soak transfers") as node:
        gpu = client.device(node)
        while True:
            sizes = [client.rng.choice([1, 1000, 65_537, 1 << 20, (1 << 20) + 7, 6 << 20]) for _ in range(3)]
            hosts = [np.random.default_rng(client.rng.randrange(2**32)).integers(0, 256, n, np.uint8) for n in sizes]
            arrays = [gpu.asarray(host) for host in hosts]
            for host, array in zip(hosts, arrays, strict=True):
                client.ledger.check(bool((array.get() == host).all()), f"a transfer of {host.size} bytes")
            part = slice(hosts[0].size // 3, hosts[0].size // 2 + 1)
            client.ledger.check(bool((arrays[0][part].get() == hosts[0][part]).all()), "a part of an array")
            yield


def graphs(client: Client) -> Rounds:
    """Graphs and prepared lists, launched many times, destroyed and created again."""
    with client.connect(name="soak graphs") as node:
        gpu = client.device(node)
        while True:
            counter = Counter(gpu)
            counter.launch(1)
            with gpu.graph() as graph:
                counter.add_one((1,), (1,), (counter.count, np.int32(1)))
            with gpu.prepared() as prepared:
                counter.add_one((1,), (1,), (counter.count, np.int32(1)))
            for _ in range(client.rng.randrange(1, 12)):
                n = client.rng.randrange(1, 40)
                graph.launch(n)
                prepared.launch(n)
                counter.launched += 2 * n
                client.ledger.counted(int(counter.count.get()[0]), counter.launched, "graph launches")
                yield
            del graph, prepared


def dispatches(client: Client) -> Rounds:
    """Dispatches, awaited and not awaited."""
    with client.connect(name="soak dispatches") as node:
        gpu = client.device(node)
        scale = gpu.RawModule(code=SOURCE).get_function("scale")
        while True:
            n = client.rng.choice([1, 100, 5000, 400_000])
            a = np.random.default_rng(n).random(n, np.float32)
            pending = [
                gpu.dispatch_async(
                    scale, (n + 255) // 256, 256, ins=[a], outs=[(n, np.float32)], scalars=[np.float32(k), np.int32(n)]
                )
                for k in range(1, 4)
            ]
            for k, each in enumerate(pending, 1):
                (out,) = each.result()
                client.ledger.check(bool(np.array_equal(out, np.float32(k) * a)), "a dispatch")
            yield


def telemetry(client: Client) -> Rounds:
    """Profiles and traces; memory in other layouts and modes."""
    with client.connect(name="soak telemetry") as node:
        gpu = client.device(node)
        counter = Counter(gpu)
        while True:
            n = client.rng.randrange(1, 20)
            with gpu.trace() as trace, gpu.profile() as whole, gpu.profile():
                counter.launch(n)
            client.ledger.counted(sum(event.kernel == "add_one" for event in trace.events), n, "traced launches")
            client.ledger.check(whole.device_ns > 0, "a profile without time")
            counter.check(client.ledger, "launches under a trace")
            with gpu.persistent_memory():
                kept = gpu.full((client.rng.randrange(1, 300), 77), 3, np.int16)
            image = gpu.empty_pitched((client.rng.randrange(1, 200), 639), np.float32)
            image.fill(1)
            parts = gpu.empty_many([((17,), np.int32), ((9, 9), np.float16)])
            parts[0].fill(7)
            good = (kept.get() == 3).all() and image.get().sum() == image.size and (parts[0].get() == 7).all()
            client.ledger.check(bool(good), "memory of another layout")
            gpu.memory_cleanup()
            yield


def short_sessions(client: Client) -> Rounds:
    """Short sessions: closed, dropped, or left until their lease ends."""
    left: list[hearth.Node] = []
    for number in itertools.count():
        node = client.connect(name="soak short")
        gpu = client.device(node)
        counter = Counter(gpu)
        counter.launch(3)
        counter.check(client.ledger, "launches of a short session")
        keep = gpu.full(100_000, 1, np.uint8)
        if number % 3 == 0:
            node.close()
        elif number % 3 == 1:
            del counter, keep, gpu, node
        else:
            left.append(node)
            if len(left) > 3:
                left.pop(0).close()
        yield


def errors(client: Client) -> Rounds:
    """Refused launches, modules that do not compile, handles that no longer exist; each error is reported once."""
    with client.connect(name="soak errors") as node:
        gpu = client.device(node)
        counter = Counter(gpu)
        for number in itertools.count():
            counter.launch(2)
            wrong = client.rng.randrange(1, 5)
            with gpu.stream() as side:
                # each on a separate array, because a launch that depends on a failed one would be skipped
                for _ in range(wrong):
                    counter.add_one((1,), (4096,), (gpu.zeros(4, np.int32), np.int32(4)))
            try:
                side.synchronize()
                client.ledger.wrong("a refused launch was not reported", "lost")
            except hearth.LaunchError as error:
                client.ledger.counted(len(error.failures), wrong, "failures reported")
            if number % 20 == 0:
                try:
                    gpu.RawModule(code="this is no CUDA C++").compile()
                    client.ledger.wrong("rubbish compiled")
                except hearth.CompileError:
                    client.ledger.count("checks")
            counter.check(client.ledger, "launches among refused ones")
            yield


def modules(client: Client) -> Rounds:
    """Compiles a few new modules; then repeatedly loads them from the cache and unloads them."""
    with client.connect(name="soak modules") as node:
        gpu = client.device(node)
        fresh = 0.0
        known: list[int] = []
        while True:
            if time.monotonic() - fresh > 60.0 or not known:
                fresh = time.monotonic()
                known.append(client.rng.randrange(2**31))
                del known[:-8]
                client.ledger.count("compiles")
            constant = client.rng.choice(known)
            code = f'extern "C" __global__ void set(int* x) {{ x[threadIdx.x] = {constant} + (int)threadIdx.x; }}'
            kernel = gpu.RawModule(code=code).get_function("set")
            x = gpu.zeros(32, np.int32)
            kernel((1,), (32,), (x,))
            good = (x.get() == constant + np.arange(32)).all()
            client.ledger.check(bool(good), "a module's kernel")
            del kernel
            yield


def collectives(client: Client) -> Rounds:
    """All-reduces over all devices."""
    with client.connect(name="soak collectives") as node:
        group = hearth.Group(node.devices)
        while True:
            n = client.rng.choice([1, 1000, 300_000])
            parts = [device.full(n, device.ordinal + 1, np.float32) for device in node.devices]
            for _ in range(3):
                group.all_reduce(parts, op="mean")
            mean = sum(device.ordinal + 1 for device in node.devices) / len(node.devices)
            good = all(bool((part.get() == np.float32(mean)).all()) for part in parts)
            client.ledger.check(good, "an all-reduce")
            yield
