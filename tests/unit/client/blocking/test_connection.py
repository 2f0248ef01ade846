"""The first use of a device, which attaches to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import hearth
from hearth.errors import broken
from hearth_proto import reasons
from tests.support.client.fake_daemon import FakeDaemon, Response, _abort
from tests.support.client.internals import connection_of
from tests.support.client.interrupts import interrupting
from tests.support.client.waits import wait_for
from tests.support.timing import LATE


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


@pytest.fixture
def silent() -> Iterator[FakeDaemon]:
    """A daemon that does not answer an attach while its attribute `silent` is true."""
    daemon = FakeDaemon()
    yield daemon
    daemon.stop()


def late(call: Callable[[float], object]) -> None:
    """Checks that a call with a timeout ends with `TimeoutError` long before the timeout of the session."""
    began = time.monotonic()
    with pytest.raises(hearth.TimeoutError, match=r"within 0\.2 s"):
        call(0.2)
    assert 0.15 < time.monotonic() - began < LATE


def calls(node: hearth.Node) -> list[Callable[[float], object]]:
    """Returns the calls with a timeout of a device that was attached once."""
    gpu = node.device(0)
    x, event, stream = gpu.zeros(2), gpu.event(), gpu.stream()
    module = gpu.RawModule(code="")
    event.record(stream)
    gpu.synchronize()
    buffer = bytearray(x.nbytes)
    return [
        lambda timeout: gpu.synchronize(timeout=timeout),
        lambda timeout: node.synchronize(timeout=timeout),
        lambda timeout: gpu.flush(timeout=timeout),
        lambda timeout: gpu.get([x], timeout=timeout),
        lambda timeout: x.get(timeout=timeout),
        lambda timeout: x.readinto(buffer, timeout=timeout),
        lambda timeout: stream.synchronize(timeout=timeout),
        lambda timeout: event.synchronize(timeout=timeout),
        lambda timeout: module.compile(timeout=timeout),
    ]


def test_timeout_of_a_call_includes_the_attach(silent: FakeDaemon) -> None:
    with hearth.connect(silent.target, timeout=2 * LATE) as node:
        connection = connection_of(node.device(0))
        waiting = calls(node)
        silent.silent = True
        connection.attachment().end(broken("lost."))
        for call in waiting:
            late(call)
        silent.silent = False
        node.device(0).synchronize(timeout=LATE)


def test_timeout_of_a_call_includes_the_wait_for_the_attach_of_another_thread(silent: FakeDaemon) -> None:
    with hearth.connect(silent.target, timeout=2 * LATE) as node:
        gpu = node.device(0)
        silent.silent = True
        with ThreadPoolExecutor() as threads:
            attaching = threads.submit(gpu.zeros, 2)
            wait_for(lambda: silent.attaches)
            late(lambda timeout: gpu.synchronize(timeout=timeout))
            silent.stop()
            assert isinstance(attaching.exception(), hearth.ConnectError)


def test_timeout_of_a_call_includes_the_retries_of_the_attach(silent: FakeDaemon) -> None:
    """The error is that of the timeout, not the last refusal."""
    refusal = reasons.Refusal(reasons.Reason.DEVICE_LOST, "the device is restarting.")
    silent.refuse_attach = [refusal] * 1000
    with hearth.connect(silent.target, timeout=2 * LATE) as node:
        late(lambda timeout: node.device(0).synchronize(timeout=timeout))


def test_timeout_of_a_call_includes_the_wait_for_room_in_the_queue(silent: FakeDaemon) -> None:
    with hearth.connect(silent.target, timeout=2 * LATE) as node:
        gpu = node.device(0)
        queue = connection_of(gpu).attachment().queue
        queue.max_commands, limit = 0, queue.max_commands
        late(lambda timeout: gpu.synchronize(timeout=timeout))
        queue.max_commands = limit
        gpu.synchronize(timeout=LATE)
