"""Connections that are cut at any byte: every command has run exactly once, and nobody notices but by the clock."""

from __future__ import annotations

import random
import statistics
import time

import numpy as np
import pytest

import hearth

from .conftest import StartDaemon
from .cutter import Cutter, random_cuts

KERNELS = """
extern "C" __global__ void step(unsigned int* x, int n, unsigned int k, unsigned int* launches) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1664525u + k;  // in another order, or twice, it is another result
    if (i == 0) atomicAdd(launches, 1u);
}
"""
SMALL = {"max_inline_bytes": "32KiB", "max_chunk_bytes": "16KiB"}
"""So that transfers have many chunks without many bytes."""
ELEMENTS = 20_000
BUFFERS = 6


class Program:
    """A random program, the same for the same seed: launches, fills, copies, writes and reads, inline and in chunks."""

    def __init__(self, seed: int, commands: int) -> None:
        self.commands = commands
        self._seed = seed

    def run(self, gpu: hearth.Device) -> tuple[list[np.ndarray], list[np.ndarray], int, int]:
        """What was read on the way, what the buffers hold at the end, launches that were submitted and that ran."""
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
            x, stream = arrays[at], streams[at % len(streams)]  # each array has its stream: the results are determined
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
                part = noise.integers(0, 1 << 32, chosen.randrange(1, 4000), np.uint32)
                x[: len(part)].set(part, stream)
            elif kind < 0.99:
                x.set(noise.integers(0, 1 << 32, ELEMENTS, np.uint32), stream)
            elif kind < 0.995:
                read.append(x[: chosen.randrange(1, 4000)].get(stream=stream))
            else:
                read.append(x.get(stream=stream))
        gpu.synchronize()
        return read, [x.get() for x in arrays], launched, int(launches.get()[0])


def outages(gpu: hearth.Device) -> list[float]:
    """Milliseconds of each outage of the device's Execute stream."""
    execute = gpu._connection.attachment().execute
    assert execute is not None
    return [1e3 * seconds for seconds in execute.outages]


@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_commands_over_connections_that_are_cut(
    start_daemon: StartDaemon, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = start_daemon(limits=SMALL)
    program = Program(seed, 10_000)
    with daemon.connect() as node:
        expected = program.run(node.device(0))
    assert expected[2] == expected[3]
    with Cutter(daemon.unix, random_cuts(seed, 25_000)) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        began = time.monotonic()
        read, final, launched, ran = program.run(gpu)
        seconds = time.monotonic() - began
        took = sorted(outages(gpu))
    assert launched == ran == expected[2], "each launch ran exactly once"
    assert len(read) == len(expected[0])
    assert all((mine == theirs).all() for mine, theirs in zip(read, expected[0], strict=True))
    assert all((mine == theirs).all() for mine, theirs in zip(final, expected[1], strict=True))
    assert cutter.cuts > 30 and len(took) > 10
    median, p99 = statistics.median(took), took[min(len(took) - 1, round(0.99 * len(took)))]
    with capsys.disabled():
        print(
            f"\nresume: {program.commands} commands, {cutter.cuts} connections cut, {len(took)} resumes of Execute: "
            f"median {median:.1f} ms, p99 {p99:.1f} ms; {seconds:.1f} s, {cutter.up + cutter.down >> 20} MiB"
        )
    assert median < 100
