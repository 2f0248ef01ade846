"""Pinned and ordinary arrays, and the memory that a client currently shares with a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

import hearth
from hearth.transfer import ring_buffer, shared_memory
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import wait_until

INLINE = 1 << 20
"""Size in bytes up to which data travels inside a batch (the daemon's default)."""
KIB64 = 64 << 10


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Fails if the arrays differ; NumPy's own function takes seconds for large arrays."""
    assert got.shape == expected.shape and got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    assert np.array_equal(got, expected), f"first at {np.argwhere(got != expected)[:3].tolist()}"


def pinned(values: np.ndarray, order: Any = "C") -> np.ndarray:
    """Returns a copy in pinned memory."""
    array = hearth.empty_pinned(values.shape, values.dtype, order)
    array[...] = values
    return array


def shared(gpu: hearth.Device) -> shared_memory.Shared | None:
    """Returns the memory that is currently shared with the device."""
    return connection_of(gpu).part(shared_memory.SharedMemory).shared


def ring_of(gpu: hearth.Device) -> ring_buffer.Ring:
    live = shared(gpu)
    assert live is not None
    return live.ring


def wait_ring_idle(gpu: hearth.Device) -> None:
    """Waits until every slot of the ring is free."""
    wait_until(lambda: ring_of(gpu).idle == ring_of(gpu).slot_count > 0, "an idle ring")


def wait_request_pending(gpu: hearth.Device, moving: Future[Any]) -> None:
    """Waits until a request to the daemon is pending, or the copy is done."""
    session = connection_of(gpu).attachment().session
    wait_until(lambda: session.outstanding or moving.done(), "a request")


@contextlib.contextmanager
def moved(gpu: hearth.Device, name: str) -> Iterator[list[int]]:
    """Yields a list that receives, at the end of the block, the bytes of each command of that name in the block."""
    sizes: list[int] = []
    with gpu.trace() as trace:
        yield sizes
    sizes += [event.bytes for event in trace.events if event.name == name]


def raise_failures(gpu: hearth.Device) -> None:
    """Raises every failure so far: the second synchronize also reports a failure whose message followed the answer to
    the first."""
    for _ in range(2):
        gpu.synchronize()
