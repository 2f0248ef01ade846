"""Abort of a communicator: work under way is stopped at once, and its memory is freed while the device is idle.

To free memory, CUDA waits for every kernel that runs, and lets no other call through meanwhile. Beside a kernel that
waits for a peer, or for what its host is about to send, this process would stand still. So the two steps are apart
where the backend has both: what is stopped ends by itself, and the rest has time.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from hearthd.device.backend.communicator import RankCommunicator
from hearthd.device.context import DeviceContext
from hearthd.device.streams.stream_pool import PooledStream

ABORT_S = 30.0
"""Time limit of an abort, in seconds: a longer one will not end, and costs the device process.

Aborts took more than 5 s where the processes of six daemons shared each of four GPUs: CUDA frees memory and unmaps that
of peers under locks that all processes of a GPU share. A process that answers nothing meanwhile is found much earlier,
by `devices.ping_timeout`.
"""

RETIRED = 4
"""Communicators that wait to be freed for as long as the device is busy; NCCL's have some hundred MiB each."""

Done = Callable[[], None]


class AbortedCommunicator:
    """A communicator that is being aborted."""

    __slots__ = ("comm", "communicator", "deadline", "own", "stopping", "track")

    def __init__(self, comm: str, communicator: RankCommunicator, track: PooledStream | None, own: bool) -> None:
        self.comm = comm
        self.communicator = communicator
        self.track = track
        """The track of its operations; None: it never had any."""
        self.own = own
        """True if the track is released with it."""
        self.stopping = False
        """True while it is being stopped, which takes as long as the work before it on the device."""
        self.deadline = math.inf
        """Time by which the helper thread has to be done with it."""


class CommunicatorAborts:
    """Aborts under way. Device-handle thread, except for the work of helper threads."""

    def __init__(
        self,
        device: DeviceContext,
        post: Callable[[Callable[[], None]], None],
        send: Callable[[dict[str, Any]], None],
        limit_s: float = ABORT_S,
    ) -> None:
        self.limit_s = limit_s
        """Time limit of an abort, in seconds."""
        self._device = device
        self._post = post
        self._send = send
        self._helped: dict[AbortedCommunicator, None] = {}
        """Communicators that helper threads work on."""
        self._retired = 0
        """Number of communicators that wait for the device to become idle."""

    def end(self, given_up: AbortedCommunicator, *, under_way: bool) -> None:
        """Gives one up. `under_way`: it has operations that may never end by themselves."""
        if not under_way:
            self._retire(given_up)
        elif given_up.communicator.stops:
            self._stop(given_up)
        else:
            self._device.idle_work.meanwhile(partial(self._abort, given_up))

    @property
    def watching(self) -> bool:
        """True if the work of a helper thread may become overdue."""
        return any(each.deadline < math.inf for each in self._helped)

    def check(self, now: float) -> None:
        """Tells the front what does not come to an end."""
        for each in list(self._helped):
            if each.deadline >= now:
                continue
            each.deadline = math.inf
            tracks = self._device.tracks
            before = [track for track in tracks.undone(tracks.all) if track is not each.track]
            if each.stopping and before:  # it may stand behind one of these
                tracks.after_all(before, partial(self._expect, each))
            else:
                self._send({"op": "wedged", "comm": each.comm})

    def _expect(self, given_up: AbortedCommunicator) -> None:
        given_up.deadline = time.monotonic() + self.limit_s

    # ---- steps ----

    def _stop(self, given_up: AbortedCommunicator) -> None:
        given_up.stopping = True

        def stop() -> Callable[[], None]:
            try:
                given_up.communicator.stop()
            except Exception as error:
                traceback.print_exception(error, file=sys.stderr)
                self._free(given_up)
                return lambda: self._gone(given_up)
            return lambda: self._stopped(given_up)

        self._help(given_up, stop)

    def _stopped(self, given_up: AbortedCommunicator) -> None:
        del self._helped[given_up]
        given_up.stopping = False
        self._retire(given_up)

    def _retire(self, given_up: AbortedCommunicator) -> None:
        """Frees one that has nothing under way, while the device rests."""
        self._retired += 1

        def start(done: Done) -> None:
            self._retired -= 1
            self._abort(given_up, done)

        self._device.idle_work.beside(start, urgent=self._retired > RETIRED)

    def _abort(self, given_up: AbortedCommunicator, done: Done) -> None:
        def abort() -> Callable[[], None]:
            self._free(given_up)
            return lambda: self._gone(given_up, done)

        self._help(given_up, abort)

    @staticmethod
    def _free(given_up: AbortedCommunicator) -> None:
        try:
            given_up.communicator.abort()
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)

    def _gone(self, given_up: AbortedCommunicator, done: Done = lambda: None) -> None:
        del self._helped[given_up]
        done()
        track, tracks = given_up.track, self._device.tracks
        if track is not None and given_up.own:
            tracks.after_all([track], partial(tracks.release, track))

    def _help(self, given_up: AbortedCommunicator, work: Callable[[], Callable[[], None]]) -> None:
        """Runs `work` on a separate thread, and the function that it returns on this one."""
        self._helped[given_up] = None
        self._expect(given_up)
        threading.Thread(target=lambda: self._post(work()), name="communicator", daemon=True).start()
