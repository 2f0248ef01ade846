"""Programs that work step by step (short write, launch, short read): alone, on several streams, concurrently with other
sessions, and with a step that fails."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common

SIZES = (1, 7, 256, 1024, 4095, 4096, 16 << 10, (16 << 10) + 1)
"""Numbers of elements of 4 bytes."""


def test_steps_in_sequence(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    add, host, out = common(gpu, "add_one"), np.arange(1024, dtype=np.int32), np.empty(1024, np.int32)
    x, before = gpu.asarray(host), daemon.counter("kernel_launches")
    for number in range(200):
        host += number
        x.set(host)
        add((4,), (256,), (x, np.int32(1024)))
        np.testing.assert_array_equal(x.get(out=out), host + 1)
    assert daemon.counter("kernel_launches") - before == 200


@pytest.mark.parametrize("streams", [1, 3])
def test_random_steps_give_right_results(gpu: hearth.Device, streams: int) -> None:
    rng = random.Random(streams)
    add, mine = common(gpu, "add_one"), [gpu.stream() for _ in range(streams - 1)]
    arrays = [(gpu.zeros(size, np.int32), np.zeros(size, np.int32)) for size in SIZES]
    for _ in range(400):
        x, expected = rng.choice(arrays)
        stream = rng.choice([None, *mine])
        for _ in range(rng.randrange(4)):
            match rng.randrange(4):
                case 0:
                    expected[:] = rng.randrange(1 << 20)
                    x.set(expected, stream=stream)
                case 1:
                    expected[:] = rng.randrange(100)
                    x.fill(expected[0], stream=stream)
                case 2:
                    add((x.size // 256 + 1,), (256,), (x, np.int32(x.size)), stream=stream)
                    expected += 1
                case _:
                    y = gpu.asarray(expected, stream=stream)
                    add((y.size // 256 + 1,), (256,), (y, np.int32(y.size)), stream=stream)
                    np.testing.assert_array_equal(y.get(stream=stream), expected + 1)
        np.testing.assert_array_equal(x.get(stream=rng.choice([None, *mine])), expected)


def test_steps_with_concurrent_clients(daemon: DaemonProcess) -> None:
    """The clients run alone at some times and concurrently with other clients at others."""
    failures: list[BaseException] = []

    def client(seed: int) -> None:
        try:
            with daemon.connect() as node:
                gpu, rng = node.device(0), random.Random(seed)
                add, host = common(gpu, "add_one"), np.full(512, seed, np.int32)
                x = gpu.asarray(host)
                for _ in range(150):
                    x.set(host)
                    for _ in range(rng.randrange(3)):
                        add((2,), (256,), (x, np.int32(512)))
                        host += 1
                    np.testing.assert_array_equal(x.get(), host)
                    host[0] = rng.randrange(1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def test_a_step_that_fails(gpu: hearth.Device) -> None:
    """The read raises the error, and the next step works."""
    add, host = common(gpu, "add_one"), np.arange(256, dtype=np.int32)
    x = gpu.asarray(host)
    for number in range(20):
        x.set(host)
        with pytest.raises(hearth.HearthError):
            add((1,), (4096,), (x, np.int32(256)))  # no device allows that number of threads in a block
            x.get()
        x.set(host)
        add((1,), (256,), (x, np.int32(256)))
        np.testing.assert_array_equal(x.get(), host + 1)
        host += number
