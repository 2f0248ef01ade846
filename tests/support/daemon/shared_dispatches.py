"""Dispatches whose inputs are transferred in different ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import In, Out
from hearth.transfer import registered
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of
from tests.support.daemon.dispatches import blocks
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.pinned_arrays import INLINE, pinned

MAKES = pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
Make = Callable[[np.ndarray], np.ndarray]
BYTES = r"""
extern "C" __global__ void invert(const unsigned char* in, unsigned char* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = ~in[i];
}
"""


def invert(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code=BYTES).get_function("invert")


def inverting(x: np.ndarray, size: int) -> tuple[Any, ...]:
    return blocks(size, 256), 256, [In(x), Out(size, np.uint8), size]


def ways(daemon: DaemonProcess) -> list[int]:
    """Returns the number of bytes uploaded and downloaded by shared memory, then by streams."""
    names = ("upload_shared_memory", "download_shared_memory", "upload_chunks", "download_chunks")
    return [int(daemon.counter(f"{name}_bytes", 0)) for name in names]


def went(daemon: DaemonProcess, before: list[int], *wanted: int) -> None:
    """Waits until the counters have changed by `wanted`; the device process reports them periodically."""
    wait_until(lambda: [a - b for a, b in zip(ways(daemon), before, strict=True)] == list(wanted), f"{wanted}")


def refused(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a daemon that does not share memory."""

    def open_bulk(request: object) -> None:
        raise hearth.UnsupportedError("no", reason="UNSUPPORTED")

    monkeypatch.setattr(connection_of(gpu).transport, "open_bulk", open_bulk)


def old(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates an old daemon that shares memory, but does not support transfers in it."""
    ask = connection_of(gpu).transport.open_bulk

    def open_bulk(request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        answer = ask(request)
        answer.transfers = False
        return answer

    monkeypatch.setattr(connection_of(gpu).transport, "open_bulk", open_bulk)


def little(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits registered memory so that large transfers do not use it."""
    monkeypatch.setattr(registered, "MAX_BYTES", INLINE)
