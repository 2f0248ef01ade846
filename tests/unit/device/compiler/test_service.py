"""Compile service: its threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearthd.device.compiler.service import CompileService


class Images:
    """Source of images. All compiles but the first end when the test permits it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running: list[str] = []
        self.changed = threading.Condition()

    def image(self, job: Any) -> tuple[Any, bool]:
        with self.changed:
            self.running.append(job)
            self.changed.notify_all()
        if job != "first":
            self.gate.wait(20)
        return object(), False

    def ready(self) -> None: ...
    def release_idle(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def no_switch() -> Iterator[None]:
    """Lets a thread run until it blocks, so that others are slow to wake, as on a busy machine."""
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
        all_run = images.changed.wait_for(lambda: len(images.running) == 3, 5)
    images.gate.set()
    service.close()
    assert all_run, f"only {images.running} run: the last job waits for one that may never end"
