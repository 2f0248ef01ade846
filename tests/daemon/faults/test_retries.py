"""Calls that wait for a daemon that is starting, that is restarted, or that has no room."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.tenants import tenants
from tests.support.timing import LATE

ROOM = 6
"""Maximum number of sessions of the daemon: the tenant's share of them is more than the three sessions of the first
test."""


class Restarted:
    """A daemon that is restarted repeatedly on the same ports and socket."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._config, self.tokens = tenants("lab", sessions={"max": ROOM})
        self._started: list[DaemonProcess] = []

    def start(self) -> DaemonProcess:
        after = self._started[-1] if self._started else None
        self._started.append(DaemonProcess(self._cache, self._config, cpu_count=1, after=after))
        return self._started[-1]

    @property
    def running(self) -> DaemonProcess:
        """Returns the daemon that runs; starts one if none does."""
        if self._started and self._started[-1].process.poll() is None:
            return self._started[-1]
        return self.start()

    def end(self) -> list[str]:
        """Ends the daemons; returns the resources that they have not released."""
        for process in self._started:
            process.stop()
        left = [what for process in self._started for what in process.left_behind()]
        self._started[-1].remove()
        return left


@pytest.fixture(scope="module")
def restarted(cache: Path) -> Iterator[Restarted]:
    daemons = Restarted(cache)
    yield daemons
    assert not daemons.end()


def test_connect_retries_until_the_daemon_starts(restarted: Restarted) -> None:
    first, connect = restarted.running, partial(hearth.connect, token=restarted.tokens["lab"])
    targets = (first.unix, first.grpc)
    node = connect(first.unix)
    gpu = node.device(0)
    assert first.stop() == 0
    for target in targets:
        began = time.monotonic()
        with pytest.raises(hearth.ConnectError) as caught:
            connect(target)
        assert time.monotonic() - began < LATE and caught.value.retryable, "without wait_for_ready it does not wait"
        with pytest.raises(hearth.ConnectError):
            connect(target, timeout=0.3, wait_for_ready=True)
    with ThreadPoolExecutor(3) as waiting:
        fresh = [waiting.submit(connect, target, timeout=60, wait_for_ready=True) for target in targets]
        told = threading.Event()

        @hearth.retrying(timeout=60, idempotent=True, on_retry=lambda error, pause: told.set())
        def work() -> Any:
            """Creates all objects that it needs, the first time on a node that is no longer reachable."""
            nonlocal gpu
            if told.is_set():
                gpu = connect(first.unix).device(0)
            return gpu.asarray(np.arange(4)).get().tolist()

        worked = waiting.submit(work)
        assert told.wait(20)
        restarted.start()
        for each in fresh:
            with each.result() as opened:
                assert opened.device(0).ones(3).get().tolist() == [1, 1, 1]
        assert worked.result() == [0, 1, 2, 3]
    gpu.node.close()
    node.close()


def test_full_daemon_is_retried_and_refusal_is_raised(restarted: Restarted) -> None:
    daemon = restarted.running
    connect = partial(daemon.connect, token=restarted.tokens["lab"])
    opened: list[hearth.Node] = []
    with pytest.raises(hearth.QuotaExceededError) as caught:  # the tenant's share of `ROOM`
        while len(opened) <= ROOM:
            opened.append(connect())
    first, *others = opened
    assert caught.value.retryable and caught.value.retry_after == 1.0
    with ThreadPoolExecutor(1) as waiting:
        told: list[float] = []
        again = hearth.retrying(timeout=30, on_retry=lambda error, pause: told.append(pause))(connect)
        second = waiting.submit(again)
        wait_until(lambda: told, "the refusal")
        first.close()
        with second.result() as node:
            assert node.device(0).ones(2).get().sum() == 2
    for other in others:
        other.close()
    assert all(1.0 <= pause <= 1.2 for pause in told)

    began = time.monotonic()
    with pytest.raises(hearth.AuthenticationError) as refused:
        daemon.connect(token="wrong", timeout=2 * LATE, wait_for_ready=True)
    assert time.monotonic() - began < LATE and not refused.value.retryable, "no retry for this error"
    with pytest.raises(hearth.ArgumentError):
        daemon.connect(timeout=0, wait_for_ready=True)
