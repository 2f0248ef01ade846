"""Compile service: compiles on separate threads, each source only once for all requests (single flight)."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from hearth_proto.reasons import Refusal
from hearthd.device.backend.compiler import Image, Job
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.image_store import ImageStore
from hearthd.device.compiler.images import ImageSource
from hearthd.device.compiler.limits import internal_failure
from hearthd.device.compiler.queue import CompileQueue

IDLE_S = 30.0
"""Seconds without a job after which a compile thread ends spare workers."""


@dataclass(frozen=True)
class Compiled:
    """Result of a compile: image or refusal, True if a cache had the image, compile time in nanoseconds."""

    image: Image | None
    error: Refusal | None
    cached: bool
    elapsed_ns: int


Callback = Callable[[Compiled], None]


class _Flight:
    """A queued or running job, and the callbacks of the requests for it."""

    __slots__ = ("callbacks", "job", "token")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.callbacks: list[Callback] = []
        self.token = CancelToken()


class CompileService:
    """Compile service of a device process.

    `submit`, `abandon`, `close` and the callbacks run on the device-handle thread; the work is done on compile threads,
    which are started on demand.
    """

    def __init__(self, images: ImageSource, workers: int, post: Callable[[Callable[[], None]], None]) -> None:
        self._source = images
        self._post = post
        self._images = ImageStore()
        self._flights: dict[Job, _Flight] = {}
        self._queue: CompileQueue[_Flight] = CompileQueue(workers)
        self._changed = threading.Condition()
        self._threads = 0
        self._idle_threads = 0
        self._closed = False

    def warm(self) -> None:
        """Makes the source prepare for the first job, on a compile thread."""
        with self._changed:
            self._start_thread()

    def submit(self, job: Job, callback: Callback, owner: Hashable = 0) -> None:
        """Compiles a job and calls `callback` on the device-handle thread; immediately if the image is in memory.

        `owner` identifies the session for which the job is queued; owners take turns.
        """
        image = self._images.get(job)
        if image is not None:
            callback(Compiled(image, None, True, 0))
            return
        flight = self._flights.get(job)
        if flight is not None:
            flight.callbacks.append(callback)
            return
        flight = self._flights[job] = _Flight(job)
        flight.callbacks.append(callback)
        with self._changed:
            self._queue.put(owner, flight)
            # An idle thread that was notified for an earlier job may not have taken it yet.
            if self._idle_threads < len(self._queue) and self._threads < self._queue.max_running:
                self._start_thread()
            self._changed.notify()

    def abandon(self, job: Job, callback: Callback) -> None:
        """Removes a callback; dequeues or stops a job that has no callbacks left."""
        flight = self._flights.get(job)
        if flight is None or callback not in flight.callbacks:
            return
        flight.callbacks.remove(callback)
        if flight.callbacks:
            return
        del self._flights[job]
        with self._changed:
            was_queued = self._queue.drop(flight)
        if not was_queued:
            flight.token.cancel()

    def pin(self, tenant: str) -> None:
        """Attributes all compiles of this process to the tenant. Only the first call has an effect."""
        self._source.pin(tenant)

    def close(self) -> None:
        """Stops queued and running compiles. Compile threads end by themselves, or with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._source.close()

    # ---- compile threads ----

    def _start_thread(self) -> None:
        self._threads += 1
        # Daemon threads: they may be blocked in the compiler, or on another process's lock, when the process ends.
        threading.Thread(target=self._serve, name=f"compile-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(Exception):  # a job encounters the same errors and reports them
            self._source.ready()
        while True:
            entry = self._wait_next()
            if entry is None:
                return
            owner, flight = entry
            outcome = self._compile(flight)
            with self._changed:
                self._queue.done(owner)
                self._changed.notify_all()  # compiles that were held back may run now
            self._post(partial(self._complete, flight, outcome))
            del entry, flight, outcome  # so that the waiting sessions are not referenced until the next job

    def _wait_next(self) -> tuple[Hashable, _Flight] | None:
        """Returns the next job and its owner; blocks until there is one. None after `close`."""
        with self._changed:
            while not self._closed:
                entry = self._queue.next_item()
                if entry is not None:
                    return entry
                self._idle_threads += 1
                timed_out = not self._changed.wait(IDLE_S)
                self._idle_threads -= 1
                if timed_out:
                    self._changed.release()
                    with contextlib.suppress(Exception):  # as above
                        self._source.release_idle()
                    self._changed.acquire()
            return None

    def _compile(self, flight: _Flight) -> Compiled:
        started = time.perf_counter_ns()
        cached = False
        image: Image | None = None
        error: Refusal | None = None
        try:
            image, cached = self._source.image(flight.job, flight.token)
        except Refusal as refusal:
            error = refusal
        except Exception as unexpected:  # an internal failure of a compiler fails the module, never the device
            error = internal_failure(unexpected)
        elapsed = 0 if cached else time.perf_counter_ns() - started
        return Compiled(image, error, cached, elapsed)

    # ---- on the device-handle thread ----

    def _complete(self, flight: _Flight, outcome: Compiled) -> None:
        """Stores the image and calls the callbacks of the job's requests."""
        if outcome.image is not None:
            self._images.put(flight.job, outcome.image)
        if self._flights.get(flight.job) is flight:
            del self._flights[flight.job]
        joined = dataclasses.replace(outcome, cached=outcome.image is not None, elapsed_ns=0)
        for index, callback in enumerate(flight.callbacks):
            # the first request caused the compile; for the others the image was cached
            callback(joined if index else outcome)
