"""Work that the driver does only while no kernel runs: loading code and unloading it, and giving up what a
communicator has.

CUDA waits for every kernel of the context before it loads or unloads a module, whatever thread asks, and lets no other
call through meanwhile (measured with CUDA 13 on an H200: as long as the kernel runs; CUDA_MODULE_LOADING and the
library API only move the wait). The device-handle thread must not wait, so the work does, until the device rests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hearthd.device.policy.quiet import holding
from hearthd.device.server import ComputeServer
from hearthd.device.tracks import Tracks

Job = Callable[[], None]

PATIENT_MOST = 64
"""Jobs that nobody waits for, above which they are as urgent as any."""

BESIDE_S = 2.0
"""How long launches are held back, at most, for what another thread does while the device rests."""


class Quiet:
    """Belongs to the device-handle thread. `kick`: launches are let through again."""

    def __init__(
        self,
        server: ComputeServer,
        tracks: Tracks,
        kick: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._tracks = tracks
        self._kick = kick
        self._clock = clock
        self._jobs: list[Job] = []
        self._since: float | None = None
        """Since when somebody has been waiting for a job."""
        self._asked = False
        self._beside: dict[object, float] = {}
        """What other threads do while the device rests, and until when launches are held back for it; -inf: they are
        not any more."""

    @property
    def occupied(self) -> bool:
        """Whether another thread does something that no kernel is to run beside, least of all one that may wait for a
        peer."""
        return bool(self._beside)

    @property
    def _held_beside(self) -> bool:
        return any(until > -math.inf for until in self._beside.values())

    @property
    def waiting(self) -> int:
        """How many jobs wait for the device to rest."""
        return len(self._jobs)

    def run(self, job: Job, *, urgent: bool = True) -> None:
        """`job` when no kernel runs: at once where that is so, or where the backend does not mind. In order.

        Launches are held back in turns for what is urgent.
        """
        if not self._server.loading_waits or (not self._jobs and self._idle()):
            job()
            return
        self._jobs.append(job)
        if self._since is None and (urgent or len(self._jobs) > PATIENT_MOST):
            self._since = self._clock()
        self._ask()

    def beside(self, job: Callable[[Job], None], *, urgent: bool = False) -> None:
        """`job(done)` as `run` has it, for what it has another thread do: launches are held back until `done` is
        called, on this thread, though not for long."""
        if self._server.loading_waits:
            self.run(lambda: self._occupy(job), urgent=urgent)
        else:
            job(lambda: None)

    def meanwhile(self, job: Callable[[Job], None]) -> None:
        """The same, and at once, whatever runs."""
        if self._server.loading_waits:
            self._occupy(job)
        else:
            job(lambda: None)

    def _occupy(self, job: Callable[[Job], None]) -> None:
        token = object()
        self._beside[token] = self._clock() + BESIDE_S
        self._tracks.hold(True)

        def done() -> None:
            del self._beside[token]
            if not self._held_beside:
                self._tracks.hold(False)
            self._kick()  # collectives wait as long as it takes

        job(done)

    def _let_through(self) -> None:
        if self._tracks.held and not self._held_beside:
            self._tracks.hold(False)
            self._kick()

    def poll(self) -> float | None:
        """Holds launches back or lets them through, as it is time; seconds until that changes, None: it does not."""
        if self._beside:
            now = self._clock()
            for token, until in self._beside.items():
                if -math.inf < until <= now:
                    self._beside[token] = -math.inf
            if self._held_beside:
                return min(until for until in self._beside.values() if until > now) - now
            self._let_through()
        if self._since is None:
            return None
        held, left = holding(self._clock() - self._since)
        if held is not self._tracks.held:
            self._tracks.hold(held)
            if not held:
                self._kick()
        return left

    def _idle(self) -> bool:
        position = self._tracks.ordering.position
        return all(track.done_position >= position(track.index) for track in self._tracks.all)

    def _ask(self) -> None:
        """Looks again when all that the device has been given so far is done."""
        if not self._asked:
            self._asked = True
            position = self._tracks.ordering.position
            busy = [track for track in self._tracks.all if track.done_position < position(track.index)]
            self._tracks.after_all(busy, self._rested)

    def _rested(self) -> None:
        self._asked = False
        if not self._idle():
            self._ask()
            return
        jobs, self._jobs = self._jobs, []
        self._since = None
        for job in jobs:
            job()
        if self._tracks.held and not self._held_beside:
            self._tracks.hold(False)
        self._kick()
