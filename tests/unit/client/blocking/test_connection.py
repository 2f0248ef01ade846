"""The first use of a device, which attaches to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import hearth
from hearth_proto import reasons
from tests.support.client.fake_daemon import FakeDaemon, Response, _abort
from tests.support.client.internals import connection_of
from tests.support.client.interrupts import interrupting


class OneStreamDaemon(FakeDaemon):
    """A daemon that refuses a second Execute stream while the first is open."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = threading.BoundedSemaphore()

    def Execute(self, requests: Iterator[Any], context: Any) -> Iterator[Response]:
        if not self.streams.acquire(blocking=False):
            _abort(context, reasons.Refusal(reasons.Reason.HANDLE_IN_USE, "there is an Execute stream already."))
        if not context.add_callback(self.streams.release):  # the client has ended the stream already
            self.streams.release()
        yield from super().Execute(requests, context)


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    daemon = OneStreamDaemon()
    yield daemon
    daemon.stop()


def test_ctrl_c_during_the_first_use_leaves_the_device_usable(daemon: FakeDaemon) -> None:
    """The next use attaches, wherever the Ctrl-C occurred."""
    step, is_interrupted = 0, True
    while is_interrupted:
        step += 1
        with hearth.connect(daemon.target, timeout=5.0) as node:
            gpu = node.device(0)
            is_interrupted = interrupting(connection_of(gpu).attachment, step)
            gpu.synchronize()
    assert step > 50
