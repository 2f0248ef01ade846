"""Compile service: its threads, and compiles for which no request waits."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto.reasons import Refusal
from hearthd.device.backend.compiler import Image, Source
from hearthd.device.compiler.service import Compiled, CompileService


class Images:
    """Source of images. All compiles but the first end when the test permits it, and notice cancellations then."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running: list[Any] = []
        self.cancelled: list[Any] = []
        self.changed = threading.Condition()

    def image(self, job: Any, token: Any) -> tuple[Any, bool]:
        with self.changed:
            self.running.append(job)
            self.changed.notify_all()
        if job != "first":
            self.gate.wait(20)
        try:
            token.check()
        except Refusal:
            self.cancelled.append(job)
            raise
        return Image(b""), False

    def ready(self) -> None: ...
    def release_idle(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def no_switch() -> Iterator[None]:
    """Keeps each thread running until it blocks, so that others wake slowly, as on a busy machine."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(20)
    yield
    sys.setswitchinterval(interval)


def test_jobs_of_two_owners_start_although_the_idle_thread_is_slow_to_wake(no_switch: None) -> None:
    images, ended = Images(), threading.Event()
    service = CompileService(images, 1, lambda _call: ended.set())  # type: ignore[arg-type]
    service.submit("first", lambda _compiled: None, owner="a")  # type: ignore[arg-type]
    assert ended.wait(20)  # its thread is idle
    service.submit("endless", lambda _compiled: None, owner="a")  # type: ignore[arg-type]
    service.submit("another", lambda _compiled: None, owner="b")  # type: ignore[arg-type]
    with images.changed:
        all_run = images.changed.wait_for(lambda: len(images.running) == 3, 20)
    images.gate.set()
    service.close()
    assert all_run, f"only {images.running} run: the last job waits for one that may never end"


def test_compile_that_no_request_needs_is_cancelled_before_it_reaches_a_worker() -> None:
    images, posted = Images(), queue.SimpleQueue[Callable[[], None]]()
    service = CompileService(images, 2, posted.put)  # type: ignore[arg-type]
    abandoned, shared = Source("abandoned"), Source("shared")
    left, stayed = list[Compiled](), list[Compiled]()
    for job in (abandoned, shared):
        service.submit(job, left.append)
    service.submit(shared, stayed.append)
    with images.changed:
        assert images.changed.wait_for(lambda: len(images.running) == 2, 20)
    for job in (abandoned, shared):
        service.abandon(job, left.append)
    images.gate.set()
    for _ in range(2):
        posted.get(timeout=20)()
    service.close()
    assert images.cancelled == [abandoned]
    assert not left and [outcome.error for outcome in stayed] == [None]
