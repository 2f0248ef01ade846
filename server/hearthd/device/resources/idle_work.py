"""Idle work: jobs that the driver can do only while no kernel runs.

Such jobs load and unload code, and abort communicators.

CUDA waits for every kernel of the context before it loads or unloads a module, on whatever thread, and blocks all other
calls meanwhile (measured with CUDA 13 on an H200: as long as the kernel runs; CUDA_MODULE_LOADING and the library API
only move the wait). The device-handle thread must not block, so the job is queued until the device is idle.

A kernel that never ends would delay a load forever. A late load is logged, and later refused with the names of the
kernels. A session that waits only for its own kernels waits without limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hearth_proto.reasons import Refusal
from hearthd.device.backend.server import ComputeServer
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.resources.idle_queue import IdleQueue, IdleWaiter, holding
from hearthd.device.resources.running import RETRY_S, device_busy, running
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import NAMED, StreamPool

Job = Callable[[], None]

MAX_HOLD_S = 2.0
"""Longest time, in seconds, for which launches are held back for work on another thread."""


class PendingLoad(NamedTuple):
    """A load that a client waits for: its session, its description, and the callback that refuses it."""

    session: DeviceSession
    description: str
    refuse: Callable[[Refusal], None]


class IdleTask(NamedTuple):
    """A job, and the load that it belongs to."""

    run: Job
    load: PendingLoad | None = None
    """The load; None if no client waits for the job."""


Waiting = IdleWaiter[IdleTask]
"""A waiting job."""


class IdleWork:
    """Runs jobs while the device is idle. Device-handle thread only.

    `kick` is called when launches are let through again. `limit` is the time, in seconds, that a load may wait; 0: no
    limit.
    """

    def __init__(
        self,
        server: ComputeServer,
        tracks: StreamPool,
        kick: Callable[[], None],
        journal: ProcessLog,
        limit: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._tracks = tracks
        self._kick = kick
        self._journal = journal
        self.limit = limit
        self._clock = clock
        self.max_hold_s = MAX_HOLD_S
        """Longest time for which launches are held back for work of another thread, in seconds."""
        self.retry_s = RETRY_S
        """Seconds after which another try of a refused command may succeed, though the device is still busy."""
        self.tenant_of: Callable[[str], str | None] = lambda _session: None
        """Returns the tenant of a session by its id; None if unknown."""
        self._queue: IdleQueue[IdleTask] = IdleQueue()
        self._callback_registered = False
        self._ends = 0
        """Number of times that all earlier work of the device has completed while a job was waiting for that."""
        self._thread_work: dict[object, float] = {}
        """Work on other threads that needs an idle device, with the time until which launches are held back for it;
        -inf: launches are no longer held back for it."""

    @property
    def occupied(self) -> bool:
        """True while another thread does work that must not run while a kernel runs.

        In particular it must not run during a collective, which may wait for a peer.
        """
        return bool(self._thread_work)

    @property
    def _is_held_for_threads(self) -> bool:
        return any(until > -math.inf for until in self._thread_work.values())

    def gauges(self) -> dict[str, int]:
        """Returns the number of loads that wait for an idle device, and the age of the oldest in nanoseconds."""
        longest = self._queue.longest(self._clock()) if self._queue.limited else 0.0
        return {"loads_waiting": self._queue.limited, "load_wait_longest_ns": int(longest * 1e9)}

    def run(self, job: Job, *, urgent: bool = True) -> None:
        """Runs `job` when no kernel runs: immediately if the device is idle, or if the backend needs no idle device.

        Jobs run in order. For urgent jobs, launches are held back at intervals.
        """
        self._add(IdleTask(job), urgent)

    def load(
        self, session: DeviceSession, description: str, job: Job, refuse: Callable[[Refusal], None]
    ) -> Waiting | None:
        """Runs `job` as an urgent job, or calls `refuse(refusal)` after it has waited for the time limit.

        Returns None if the job has run; otherwise the queued job, which may be passed to `drop`. `description` names
        the load in the refusal.
        """
        return self._add(IdleTask(job, PendingLoad(session, description, refuse)), urgent=True)

    def retry_condition(self) -> Callable[[], bool]:
        """Returns a function for a refused command.

        The function returns True once another attempt may succeed: the work that kept the device busy has ended, or
        `RETRY_S` seconds have passed.
        """
        ends, until = self._ends, self._clock() + self.retry_s
        return lambda: self._ends != ends or self._clock() >= until

    def drop(self, waiting: Waiting) -> None:
        """Removes a queued job, and lets launches through if they were held back for it.

        No effect if the job is not queued.
        """
        if self._queue.drop(waiting):
            self._release_launches()

    def _add(self, task: IdleTask, urgent: bool) -> Waiting | None:
        if not self._server.loading_waits or (not self._queue and self._tracks.all_done):
            task.run()
            return None
        waiting = self._queue.add(task, self._clock(), urgent=urgent, limited=task.load is not None)
        self._register_callback()
        return waiting

    def run_on_thread(self, job: Callable[[Job], None], *, urgent: bool = False) -> None:
        """Runs `job(done)` as `run` does, for work on another thread.

        Launches are held back until `done` is called on the device-handle thread, for at most `MAX_HOLD_S` seconds.
        """
        if self._server.loading_waits:
            self.run(lambda: self._occupy(job), urgent=urgent)
        else:
            job(lambda: None)

    def run_now(self, job: Callable[[Job], None]) -> None:
        """Runs `job(done)` now, even if the device is not idle, and holds launches back as `run_on_thread` does."""
        if self._server.loading_waits:
            self._occupy(job)
        else:
            job(lambda: None)

    def _occupy(self, job: Callable[[Job], None]) -> None:
        token = object()
        self._thread_work[token] = self._clock() + self.max_hold_s
        self._tracks.set_held(True)

        def done() -> None:
            del self._thread_work[token]
            if not self._is_held_for_threads:
                self._tracks.set_held(False)
            self._kick()  # collectives wait until the work is done, without a time limit

        job(done)

    def _release_launches(self) -> None:
        """Lets launches through if nothing needs them held back any more."""
        if self._tracks.held and self._queue.urgent_since is None and not self._is_held_for_threads:
            self._tracks.set_held(False)
            self._kick()

    def poll(self) -> float | None:
        """Holds launches back or lets them through, and logs or refuses late loads.

        Returns the seconds until the next change; None if no change is scheduled.
        """
        if not self._thread_work and self._queue.urgent_since is None:
            return None
        expiry_delay = self._expire_loads() if self._queue.limited else None
        hold_delay = self._hold()
        return expiry_delay if hold_delay is None else at_most(hold_delay, expiry_delay)

    def _hold(self) -> float | None:
        if self._thread_work:
            now = self._clock()
            for token, until in self._thread_work.items():
                if -math.inf < until <= now:
                    self._thread_work[token] = -math.inf
            if self._is_held_for_threads:
                return min(until for until in self._thread_work.values() if until > now) - now
            self._release_launches()
        if self._queue.urgent_since is None:
            return None
        is_held, remaining = holding(self._clock() - self._queue.urgent_since)
        if is_held is not self._tracks.held:
            self._tracks.set_held(is_held)
            if not is_held:
                self._kick()
        return remaining

    # ---- late loads ----

    def _expire_loads(self) -> float | None:
        now = self._clock()
        unlogged = self._queue.unlogged(now)
        if unlogged:
            self._log_late(unlogged, now)
        for waiting in self._queue.expired(now, self.limit):
            load = waiting.job.load
            if load is None:
                continue
            kernels = running(self._tracks, load.session, self.tenant_of)
            if kernels.of_session and not (kernels.of_tenant or kernels.has_foreign):
                waiting.not_before = now + self.retry_s
            elif self._queue.drop(waiting):  # dropping an earlier load may have removed this one
                load.refuse(device_busy(load.description, now - waiting.queued_at, self.limit, kernels))
        self._release_launches()
        return self._queue.wake(now, self.limit)

    def _log_late(self, unlogged: Iterable[Waiting], now: float) -> None:
        """Logs all loads that have become late, usually at the same time, in one line."""
        loads = [(waiting.queued_at, waiting.job.load) for waiting in unlogged if waiting.job.load is not None]
        kernels = list(dict.fromkeys(self._tracks.in_flight()))
        self._journal.warning(
            "loads_wait",
            loads=len(loads),
            waited_s=round(now - min(queued_at for queued_at, _ in loads), 3),
            sessions=list(dict.fromkeys(load.session.id for _, load in loads))[:NAMED],
            kernels=kernels[:NAMED],
            sessions_of_kernels=self._tracks.running_sessions()[:NAMED],
            load_timeout_s=self.limit,
            why="no code is loaded while a kernel runs, and these have not ended",
        )

    # ---- detection of an idle device ----

    def _register_callback(self) -> None:
        """Registers a callback for the completion of all work submitted to the device so far."""
        if not self._callback_registered:
            self._callback_registered = True
            self._tracks.after_all(self._tracks.unfinished(self._tracks.all), self._on_idle)

    def _on_idle(self) -> None:
        self._callback_registered = False
        self._ends += 1
        while (waiting := self._queue.first) is not None:
            if not self._tracks.all_done:  # a job may have been a launch
                self._register_callback()
                break
            self._queue.drop(waiting)
            waiting.job.run()
        self._release_launches()
        self._kick()
