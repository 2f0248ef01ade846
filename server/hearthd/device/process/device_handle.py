"""DeviceHandle: the one way to a device. One thread owns the service behind it; every call is serialized through it.

Two implementations pass the same tests: `ThreadHandle`, in a thread of this process, and
`hearthd.device.process.child_handle.ProcessHandle`, in a child process.

The contract:

- `submit` is one way, `call` waits for the result and re-raises the task's own exception;
- tasks of one producer run in the order in which it submitted them; a lone task runs at once;
- a task's exception never ends the thread and is never lost: `call` raises it, `flush` raises what `submit` met;
- the queue is bounded: a producer that is ahead waits, and gets `HandleFull` where it says how long it would wait;
- on the device thread itself every call runs inline, so a task may use the handle;
- `shutdown` runs what is queued, closes the service and joins; afterwards every call raises `HandleClosed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from hearthd.device.platform.event_loop import Loop

S = TypeVar("S")
R = TypeVar("R")

CAPACITY = 1024
"""Tasks that may wait in a handle's queue."""


class HandleClosed(RuntimeError):
    """The handle has been shut down, or its process ended."""


class HandleFull(RuntimeError):
    """The queue had no room within the time given."""


class TaskErrors(ExceptionGroup[Exception]):
    """What one-way tasks raised since the last flush, oldest first."""


class DeviceHandle(Protocol[S]):
    """See the module's contract. `S` is the service that the device thread owns; tasks get it as their argument."""

    def submit(self, task: Callable[[S], object], timeout: float | None = None) -> None:
        """One way. Waits up to `timeout` seconds (None: for ever) for room; raises HandleFull, HandleClosed."""
        ...

    def call(self, task: Callable[[S], R]) -> R:
        """The task's result; raises what it raised, or HandleClosed."""
        ...

    def exclusive(self, task: Callable[[DeviceHandle[S]], R]) -> R:
        """Runs `task` on the device thread with a handle whose calls run inline: nothing interleaves."""
        ...

    def flush(self) -> None:
        """Returns when all that was submitted before has run; raises `TaskErrors` with what one-way tasks raised."""
        ...

    def shutdown(self, timeout: float = 30.0) -> bool:
        """Drains and ends; False when the thread did not end in time. Safe to call twice."""
        ...


class ServiceThread(Generic[S]):
    """The service and the errors of its one-way tasks; lives on the device thread."""

    def __init__(self, loop: Loop, factory: Callable[[], S]) -> None:
        self.loop = loop
        self.service = factory()
        self._errors: list[Exception] = []

    def run_one_way(self, task: Callable[[S], object]) -> None:
        try:
            task(self.service)
        except BaseException as error:
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """For the next flush. What would end a thread (SystemExit, ...) ends the task, and is told like the rest."""
        if not isinstance(error, Exception):
            kept = RuntimeError(f"a task raised {type(error).__name__}: {error}")
            kept.__cause__ = error
            error = kept
        self._errors.append(error)

    def take_errors(self) -> list[Exception]:
        errors, self._errors = self._errors, []
        return errors

    def close(self) -> None:
        close = getattr(self.service, "close", None)
        if close is not None:
            close()


class InlineHandle(Generic[S]):
    """The handle as tasks on the device thread see it: everything runs at once."""

    def __init__(self, thread: ServiceThread[S]) -> None:
        self._thread = thread

    def submit(self, task: Callable[[S], object], timeout: float | None = None) -> None:
        self._thread.run_one_way(task)

    def call(self, task: Callable[[S], R]) -> R:
        return task(self._thread.service)

    def exclusive(self, task: Callable[[DeviceHandle[S]], R]) -> R:
        return task(self)

    def flush(self) -> None:
        raise_errors(self._thread.take_errors())

    def shutdown(self, timeout: float = 30.0) -> bool:
        raise RuntimeError("a device handle cannot be shut down from its own thread: it would wait for itself")


def raise_errors(errors: list[Exception]) -> None:
    if errors:
        raise TaskErrors("one-way tasks failed", errors)


class ThreadHandle(Generic[S]):
    """A DeviceHandle in a thread of this process. `factory` makes the service on the device thread."""

    def __init__(self, factory: Callable[[], S], *, name: str = "device", capacity: int = CAPACITY) -> None:
        self._loop = Loop()
        self._room = threading.BoundedSemaphore(capacity)
        self._lock = threading.Lock()
        self._closed = False
        started: Future[InlineHandle[S]] = Future()
        self._thread = threading.Thread(target=self._main, args=(factory, started), name=name, daemon=True)
        self._thread.start()
        self._inline = started.result()

    def submit(self, task: Callable[[S], object], timeout: float | None = None) -> None:
        if self._loop.inside:
            self._inline.submit(task)
            return
        self._enqueue(lambda: self._service.run_one_way(task), timeout)

    def call(self, task: Callable[[S], R]) -> R:
        if self._loop.inside:
            return self._inline.call(task)
        return self._await(lambda: task(self._service.service))

    def exclusive(self, task: Callable[[DeviceHandle[S]], R]) -> R:
        if self._loop.inside:
            return task(self._inline)
        return self._await(lambda: task(self._inline))

    def flush(self) -> None:
        if self._loop.inside:
            self._inline.flush()
            return
        raise_errors(self._await(self._service.take_errors))

    def shutdown(self, timeout: float = 30.0) -> bool:
        if self._loop.inside:
            self._inline.shutdown()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _await(self, work: Callable[[], R]) -> R:
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._enqueue(run, None)
        return future.result()

    def _enqueue(self, work: Callable[[], object], timeout: float | None) -> None:
        if not self._room.acquire(timeout=timeout):
            raise HandleFull(f"the device's queue had no room for {timeout} s; submit less at once, or wait longer")

        def run() -> None:
            self._room.release()
            work()

        with self._lock:  # so that nothing is queued behind the stop, where it would wait for ever
            if self._closed:
                self._room.release()
                raise HandleClosed("the device handle has been shut down")
            self._loop.post(run)

    def _main(self, factory: Callable[[], S], started: Future[InlineHandle[S]]) -> None:
        try:
            self._service: ServiceThread[Any] = ServiceThread(self._loop, factory)
        except BaseException as error:
            self._closed = True
            self._loop.close()
            started.set_exception(error)
            return
        started.set_result(InlineHandle(self._service))
        try:
            self._loop.run()
        finally:
            try:
                self._service.close()
            finally:
                self._loop.close()
