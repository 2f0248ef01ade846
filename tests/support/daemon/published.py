"""Published arrays, and the reasons with which their uses are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess

WEIGHTS = np.arange(5000, dtype=np.float32).reshape(100, 50)
FIRST = WEIGHTS.reshape(-1)[:1000]


def published(gpu: hearth.Device, name: str = "weights", host: np.ndarray[Any, Any] = WEIGHTS) -> hearth.DeviceArray:
    """Uploads `host`, and publishes the array under the name."""
    array = gpu.asarray(host)
    array.publish(name)
    return array


def same(array: hearth.DeviceArray, host: np.ndarray[Any, Any] = WEIGHTS) -> None:
    """Checks that the array has the contents of `host`."""
    np.testing.assert_array_equal(array.get(), host)


def reason_of(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    """Checks that the call raises an error with a fix; returns the reason of the error."""
    with pytest.raises(hearth.HearthError) as refusal:
        call(*arguments, **keywords)
    assert refusal.value.fix, refusal.value
    return refusal.value.reason


def failure_of(gpu: hearth.Device, call: Callable[[], object]) -> str:
    """Returns the reason of the failure of a one-way command."""

    def all_of_it() -> None:
        call()
        gpu.synchronize()

    return reason_of(all_of_it)


def in_use(daemon: DaemonProcess) -> int:
    """Returns the bytes in use by all sessions in all processes of device 0."""
    total = 0
    for line in daemon.get("/metrics").body.splitlines():
        if line.startswith("hearth_memory_in_use_bytes") and 'device="0"' in line:
            total += int(float(line.rpartition(" ")[2]))
    return total
