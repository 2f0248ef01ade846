"""Names of published arrays: replaced by another array, named in refusals, and waited for."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
import hearth.aio
from tests.support.daemon.harness import DaemonProcess, environment, wait_until

WEIGHTS = np.arange(5000, dtype=np.float32).reshape(100, 50)


@pytest.fixture(params=["shared", "dedicated"])
def other(request: pytest.FixtureRequest, daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """The same device in another session, which has the same or a separate process."""
    with daemon.connect(isolation=request.param) as node:
        yield node.device(0)


def published(gpu: hearth.Device, name: str = "weights") -> hearth.DeviceArray:
    array = gpu.asarray(WEIGHTS)
    array.publish(name)
    return array


def same(array: hearth.DeviceArray, host: np.ndarray[Any, Any] = WEIGHTS) -> None:
    np.testing.assert_array_equal(array.get(), host)


def test_a_name_is_replaced_atomically(gpu: hearth.Device, other: hearth.Device) -> None:
    first = published(gpu)
    old = other.attach("weights")
    second = other.asarray(WEIGHTS + 1)
    second.publish("weights", replace=True)  # by another session of the tenant
    new = gpu.attach("weights")
    same(old)
    same(new, WEIGHTS + 1)
    first.fill(0)  # its name has ended, but a session has attached it
    with pytest.raises(hearth.HearthError, match="still attached by other sessions"):
        gpu.synchronize()
    gpu.publish("weights", gpu.asarray(WEIGHTS + 2), replace=True)
    gpu.publish("fresh", gpu.asarray(WEIGHTS + 3), replace=True)
    same(other.attach("weights"), WEIGHTS + 2)
    same(other.attach("fresh"), WEIGHTS + 3)
    assert [each.name for each in other.published()] == ["fresh", "weights"]


def test_a_refusal_names_the_holder_of_the_name(
    daemon: DaemonProcess, gpu: hearth.Device, other: hearth.Device
) -> None:
    x = published(other)
    with pytest.raises(hearth.InvalidHandleError) as caught:
        gpu.publish("weights", gpu.zeros(4))
    holder = other.node.session_id
    assert f"by session {holder} of the client" in str(caught.value) and "which is connected" in str(caught.value)
    assert f":{os.getpid()}" in str(caught.value) and "replace=True" in caught.value.fix
    assert caught.value.details["session"] == holder and "lease_left_s" not in caught.value.details
    del x


def test_a_refusal_states_when_the_name_of_a_disconnected_client_ends(
    daemon: DaemonProcess, gpu: hearth.Device
) -> None:
    code = (
        "import os, signal, hearth\n"
        f"gpu = hearth.connect({daemon.grpc!r}, name='the owner').device(0)\n"
        "gpu.zeros(4).publish('gone')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False)

    def refusal() -> hearth.HearthError:
        with pytest.raises(hearth.InvalidHandleError) as caught:
            gpu.publish("gone", gpu.zeros(4))
        return caught.value

    wait_until(lambda: "lease_left_s" in refusal().details, "the end of the connection")
    error = refusal()
    assert "of the client 'the owner' in process" in str(error)
    assert re.search(r"not connected: the name ends with its session in \d+ s", str(error))
    gpu.publish("gone", gpu.zeros(4), replace=True)
    gpu.unpublish("gone")


def test_attach_waits_until_the_name_is_published(gpu: hearth.Device, other: hearth.Device) -> None:
    with pytest.raises(hearth.InvalidHandleError, match="late"):
        other.attach("late", wait=0.1)
    for wait in (-1, float("inf"), float("nan")):
        with pytest.raises(hearth.ArgumentError, match="wait is"):
            other.attach("late", wait=wait)
    x = gpu.asarray(WEIGHTS)
    timer = threading.Timer(0.3, x.publish, ("late",))
    started = time.monotonic()
    timer.start()
    same(other.attach("late", wait=60))
    assert 0.2 < time.monotonic() - started < 50
    timer.join()


def test_attach_waits_with_asyncio(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    async def main() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            waiting = asyncio.create_task(node.gpu.attach("late", wait=60))
            await asyncio.sleep(0.1)
            x = node.gpu.asarray(WEIGHTS)
            await x.publish("late", replace=True)
            np.testing.assert_array_equal(await (await waiting).get(), WEIGHTS)
            with pytest.raises(hearth.InvalidHandleError):
                await node.gpu.attach("nothing", wait=0.05)

    asyncio.run(main())
