"""Ctrl-C during copies of large arrays, whose bytes are transferred apart from the command."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto import reasons
from hearth_proto.v1 import device_pb2
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.interrupts import interrupting

BYTES = 3 << 20


class AbortingDaemon(FakeDaemon):
    """A daemon whose commands wait for their transfers until the client aborts these."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted: set[int] = set()
        self.fetched: dict[int, threading.Event] = {}

    def TransferStatus(self, request: Any, context: Any) -> device_pb2.TransferStatusResponse:
        assert request.give_up
        self.aborted.add(request.transfer)
        self.upload_of(request.transfer)[0].set()
        self.fetched_of(request.transfer).set()
        return device_pb2.TransferStatusResponse()

    def do_write(self, command: Any, message: Any, result: Any) -> None:
        if message.transfer:
            done, arrived = self.upload_of(message.transfer)
            assert done.wait(60)
            if len(arrived) != message.size:
                raise reasons.Refusal(reasons.Reason.TRANSFER_ABORTED, "the client aborted the transfer.")
        super().do_write(command, message, result)

    def fetched_of(self, transfer: int) -> threading.Event:
        with self.lock:
            return self.fetched.setdefault(transfer, threading.Event())

    def do_read(self, command: Any, message: Any, result: Any) -> None:
        super().do_read(command, message, result)
        assert not message.transfer or self.fetched_of(message.transfer).wait(60)

    def Download(self, request: Any, context: Any) -> Iterator[device_pb2.DownloadResponse]:
        yield from super().Download(request, context)
        self.fetched_of(request.transfer).set()


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    daemon = AbortingDaemon()
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("copy", [lambda x, host: x.set(host), lambda x, host: x.get(host)], ids=["set", "get"])
def test_ctrl_c_during_a_large_copy_leaves_the_device_usable(
    gpu: hearth.Device, daemon: AbortingDaemon, copy: Callable[[Any, Any], Any]
) -> None:
    """Later work does not wait for the bytes, wherever the Ctrl-C occurred."""
    x, host = gpu.zeros(BYTES, np.uint8), np.ones(BYTES, np.uint8)
    gpu.synchronize()
    gc.collect()  # segments of earlier tests: an interrupt in their `__del__` would be lost, and end the loop too early
    step, is_interrupted = 0, True
    while is_interrupted:
        step += 1
        if not step % 50:
            gc.collect()  # the frames of the exceptions hold the arrays
        is_interrupted = interrupting(lambda: copy(x, host), step)
        gpu.synchronize(timeout=20)
    assert step > 100 and len(daemon.aborted) > 20
