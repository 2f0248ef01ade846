"""Calls that wait for a daemon: one that starts, one that is restarted, one that has no room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth

from .conftest import StartDaemon
from .harness import DaemonProcess, wait_until
from .tenants import tenants


@pytest.fixture
def restarted(cache: Path) -> Iterator[Callable[[], DaemonProcess]]:
    """The same daemon, again and again: on its ports, and on its socket."""
    started: list[DaemonProcess] = []

    def start() -> DaemonProcess:
        started.append(DaemonProcess(cache, cpu_count=1, after=started[-1] if started else None))
        return started[-1]

    yield start
    for process in started:
        process.stop()
    left = [pid for process in started for pid in process.left_behind()]
    started[-1].remove()
    assert not left


def test_a_daemon_that_is_started_meanwhile(restarted: Callable[[], DaemonProcess]) -> None:
    first = restarted()
    targets = (first.unix, first.grpc)
    node = hearth.connect(first.unix)
    gpu = node.device(0)
    assert first.stop() == 0
    for target in targets:
        began = time.monotonic()
        with pytest.raises(hearth.ConnectError) as caught:
            hearth.connect(target)
        assert time.monotonic() - began < 5 and caught.value.retryable, "without being told to it does not wait"
        with pytest.raises(hearth.ConnectError):
            hearth.connect(target, timeout=0.3, wait_for_ready=True)
    with ThreadPoolExecutor(3) as waiting:
        fresh = [waiting.submit(hearth.connect, target, timeout=60, wait_for_ready=True) for target in targets]
        told = threading.Event()

        @hearth.retrying(timeout=60, idempotent=True, on_retry=lambda error, pause: told.set())
        def work() -> Any:
            """Makes all that it needs; the first time, of a node that is gone."""
            nonlocal gpu
            if told.is_set():
                gpu = hearth.connect(first.unix).device(0)
            return gpu.asarray(np.arange(4)).get().tolist()

        worked = waiting.submit(work)
        assert told.wait(20)
        restarted()
        for each in fresh:
            with each.result() as opened:
                assert opened.device(0).ones(3).get().tolist() == [1, 1, 1]
        assert worked.result() == [0, 1, 2, 3]
    gpu.node.close()
    node.close()


def test_a_daemon_without_room_and_one_that_says_no(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("lab", sessions={"max": 1})
    daemon = start_daemon(**config)

    def connect() -> hearth.Node:
        return daemon.connect(token=tokens["lab"])

    first = connect()
    with pytest.raises(hearth.QuotaExceededError) as caught:
        connect()
    assert caught.value.retryable and caught.value.retry_after == 1.0
    with ThreadPoolExecutor(1) as waiting:
        told: list[float] = []
        again = hearth.retrying(timeout=30, on_retry=lambda error, pause: told.append(pause))(connect)
        second = waiting.submit(again)
        wait_until(lambda: told, "the refusal")
        first.close()
        with second.result() as node:
            assert node.device(0).ones(2).get().sum() == 2
    assert all(1.0 <= pause <= 1.2 for pause in told)

    began = time.monotonic()
    with pytest.raises(hearth.AuthenticationError) as refused:
        daemon.connect(token="wrong", timeout=30, wait_for_ready=True)
    assert time.monotonic() - began < 5 and not refused.value.retryable, "what cannot help is not waited for"
    with pytest.raises(hearth.ArgumentError):
        daemon.connect(timeout=0, wait_for_ready=True)
