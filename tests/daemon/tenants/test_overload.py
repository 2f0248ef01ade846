"""A daemon that runs out of descriptors: clients wait until the overload ends, and lose nothing."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.client.short_connects import refusal_of_connect
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common

ELEVATED, CRITICAL = 300, 400
"""Numbers of descriptors; an idle daemon has fewer than a hundred."""


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shares = {"descriptors": ELEVATED / limit, "descriptors_critical": CRITICAL / limit}
    return start_daemon(overload=shares)


@pytest.fixture
def crowd(daemon: DaemonProcess) -> Iterator[Callable[[int], None]]:
    """A function that opens or closes idle connections until it holds the given number, and waits until the daemon has
    noticed."""
    host, _, port = daemon.grpc.rpartition(":")
    held: list[socket.socket] = []

    def hold(count: int) -> None:
        while len(held) > count:
            held.pop().close()
        while len(held) < count:
            held.append(socket.create_connection((host, int(port))))
        over = count >= ELEVATED
        wait_until(lambda: bool(readiness(daemon)["overloaded"]) == over, f"its word on {count} connections", 60)

    yield hold
    for each in held:
        each.close()


def readiness(daemon: DaemonProcess) -> Any:
    return json.loads(daemon.get("/readyz").body)


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Starts `work` in a thread; returns a function that waits for its end."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def join() -> Any:
        thread.join(60)
        assert results, "the work failed, or did not end"
        return results[0]

    return join


def refusals(daemon: DaemonProcess, kind: str) -> float:
    wanted = f'hearth_overload_refusals_total{{kind="{kind}"}} '
    return next(
        float(line.removeprefix(wanted)) for line in daemon.get("/metrics").body.splitlines() if line.startswith(wanted)
    )


def test_refused_clients_succeed_after_the_overload(daemon: DaemonProcess, crowd: Callable[[int], None]) -> None:
    """A new session and a large upload wait; small commands of an open session continue."""
    data = np.arange(8 << 20, dtype=np.uint8)
    with daemon.connect(lanes=False) as node, daemon.connect(lanes=False) as other:
        gpu = node.device(0)
        small, add = other.device(0).zeros(4, np.int32), common(other.device(0), "add_one")
        assert readiness(daemon) == {**readiness(daemon), "ready": True, "overloaded": ""}
        crowd(ELEVATED + 20)
        assert not readiness(daemon)["ready"] and "files" in readiness(daemon)["overloaded"]
        connecting = beside(lambda: daemon.connect(timeout=60))
        uploading = beside(lambda: gpu.asarray(data))
        wait_until(lambda: refusals(daemon, "session") and refusals(daemon, "large"), "both refusals")
        add((1,), (4,), (small, np.int32(4)))
        np.testing.assert_array_equal(small.get(), np.ones(4))
        crowd(0)
        connecting().close()
        np.testing.assert_array_equal(uploading().get(), data)
    assert '"overload_refused"' in daemon.log() and '"load": "elevated"' in daemon.log()


def test_attached_session_continues_during_severe_overload(daemon: DaemonProcess, crowd: Callable[[int], None]) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        x, add = gpu.zeros(4, np.int32), common(gpu, "add_one")
        gpu.synchronize()
        crowd(CRITICAL + 20)
        for _ in range(3):
            add((1,), (4,), (x, np.int32(4)))
        np.testing.assert_array_equal(x.get(), 3 * np.ones(4))
        error = refusal_of_connect(lambda timeout: daemon.connect(timeout=timeout))
        assert isinstance(error, hearth.UnavailableError)
        assert error.reason == "OVERLOADED" and error.retry_after
        crowd(0)
    daemon.connect(timeout=60).close()
