"""Random programs whose results differ if a command is lost or runs twice."""

from __future__ import annotations

import random

import numpy as np

import hearth
from tests.support.client.internals import connection_of
from tests.support.daemon.kernels import common

KERNELS = """
extern "C" __global__ void step(unsigned int* x, int n, unsigned int k, unsigned int* launches) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1664525u + k;  // in another order, or twice, it is another result
    if (i == 0) atomicAdd(launches, 1u);
}
"""
ELEMENTS = 20_000
BUFFERS = 6


class Program:
    """A random program, determined by its seed: launches, fills, copies, writes and reads, inline and in chunks."""

    def __init__(self, seed: int, commands: int) -> None:
        self.commands = commands
        self._seed = seed

    def run(self, gpu: hearth.Device) -> tuple[list[np.ndarray], list[np.ndarray], int, int]:
        """Returns the arrays that the program reads, the final contents of its buffers, and the numbers of launches
        submitted and run."""
        chosen = random.Random(self._seed)
        noise = np.random.default_rng(self._seed)
        step = gpu.RawModule(code=KERNELS).get_function("step")
        launches = gpu.zeros(1, np.uint32)
        arrays = [gpu.zeros(ELEMENTS, np.uint32) for _ in range(BUFFERS)]
        streams = [gpu.default_stream, gpu.stream(), gpu.stream()]
        read: list[np.ndarray] = []
        launched = 0
        for _ in range(self.commands):
            kind = chosen.random()
            at = chosen.randrange(BUFFERS)
            # each array has its own stream, so that the results are deterministic
            x, stream = arrays[at], streams[at % len(streams)]
            if kind < 0.965:
                n = chosen.choice((64, 200, 512))
                step(((n + 63) // 64,), (64,), (x, np.int32(n), np.uint32(chosen.randrange(1 << 32)), launches),
                     stream=stream)  # fmt: skip
                launched += 1
            elif kind < 0.975:
                x[: chosen.randrange(1, ELEMENTS)].fill(chosen.randrange(1 << 32), stream)
            elif kind < 0.98:
                half = ELEMENTS // 2
                x[:half].copy_from(x[half:], stream)
            elif kind < 0.985:
                data = noise.integers(0, 1 << 32, chosen.randrange(1, 4000), np.uint32)
                x[: len(data)].set(data, stream)
            elif kind < 0.99:
                x.set(noise.integers(0, 1 << 32, ELEMENTS, np.uint32), stream)
            elif kind < 0.995:
                read.append(x[: chosen.randrange(1, 4000)].get(stream=stream))
            else:
                read.append(x.get(stream=stream))
        gpu.synchronize()
        return read, [x.get() for x in arrays], launched, int(launches.get()[0])


def outages(gpu: hearth.Device) -> list[float]:
    """Returns the duration in ms of each outage of the device's Execute stream."""
    execute = connection_of(gpu).attachment().execute
    assert execute is not None
    return [1e3 * seconds for seconds in execute.outages]


class Counter:
    """A counter on the device that every launch increments, to check that each launch runs exactly once."""

    def __init__(self, gpu: hearth.Device) -> None:
        self.gpu = gpu
        self.x = gpu.zeros(1, np.int32)
        self._add = common(gpu, "add_one")
        self._launched = 0
        self.check()

    def launch(self, times: int = 1) -> None:
        for _ in range(times):
            self._add((1,), (1,), (self.x, np.int32(1)))
        self._launched += times

    def check(self) -> None:
        self.launch(3)
        assert self.x.get().tolist() == [self._launched]
