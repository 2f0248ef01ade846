"""Clients that transfer over stripes, and the daemon's state after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer import stripe_pool
from hearth.transfer.stripe_pool import Stripes
from tests.support.client.internals import connection_of, session_of
from tests.support.daemon.harness import DaemonProcess, wait_until

MIB = 1 << 20
STRIPES = 4


def values(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """Returns `size` random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def stripes_of(gpu: hearth.Device) -> Stripes:
    """Returns the pool of stripes of the device's connection."""
    assert Stripes in connection_of(gpu).parts, "no transfer requested stripes"
    return connection_of(gpu).part(Stripes)


def live(gpu: hearth.Device) -> int:
    """Returns the number of open stripes of the device's connection."""
    return stripes_of(gpu).inspect().live


def prepare(gpu: hearth.Device, **more: Any) -> None:
    """Gives the device's connection, before its first large transfer, a pool of stripes with other times."""
    connection = connection_of(gpu)
    assert Stripes not in connection.parts
    connection.parts[Stripes] = Stripes(connection, **more)


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes clients wait until all requested stripes are open, however late."""
    monkeypatch.setattr(stripe_pool, "OPEN_S", 60.0)
    monkeypatch.setattr(stripe_pool, "_GATHER_S", 60.0)


def retrying(gpu: hearth.Device) -> None:
    """Makes the device's connection request stripes at each large transfer, even if few could be opened the last
    time."""
    prepare(gpu, retry_s=0.0)


def connect(target: str, count: int | None = STRIPES, **options: Any) -> hearth.Node:
    """Connects a client that uses `count` stripes, independent of the number of cores."""
    node = hearth.connect(target, **options)
    session_of(node).transport.stripes = count
    return node


def there_and_back(gpu: hearth.Device, size: int, seed: int = 1) -> None:
    """Uploads and downloads `size` bytes, and compares them."""
    host = values(size, seed)
    x = gpu.asarray(host)
    out = np.zeros_like(host)
    x.get(out=out)
    assert (out == host).all()


def settled(daemon: DaemonProcess, stripes: int = 0) -> None:
    """Waits until all staging memory is returned, and only `stripes` stripes are open."""
    wait_until(lambda: daemon.gauge("stripes") == stripes, f"{stripes} stripes in the device process")
    wait_until(lambda: daemon.gauge("staging_bytes") == 0, "the release of all staging memory")


def threads_of(pid: int) -> list[str]:
    """Returns the names of the threads of a process."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue
    return names


MIX = r"""
extern "C" __global__ void mix(const unsigned char* a, const unsigned char* b, unsigned char* sum, unsigned char* both,
                               int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sum[i] = a[i] + b[i]; both[i] = a[i] ^ b[i]; }
}
"""


def dispatched(gpu: hearth.Device, size: int, seed: int = 1) -> None:
    """Runs a dispatch with two large inputs and outputs."""
    mix = gpu.RawKernel(MIX, "mix")
    a, b = values(size, seed), values(size, seed + 1)
    outs = [((size,), np.uint8)] * 2
    total, both = gpu.dispatch(mix, -(-size // 256), 256, ins=[a, b], outs=outs, scalars=[np.int32(size)])
    assert (total == a + b).all() and (both == a ^ b).all()
