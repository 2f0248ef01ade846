"""Abort of a communicator: running operations are stopped immediately, memory is freed while the device is idle.

To free memory, CUDA waits for every running kernel, and blocks all other calls in the meantime. If one of those kernels
waits for a peer, or for data that its host is about to send, freeing immediately would block this process indefinitely.
So the two steps are separate if the backend supports both: stopped operations end by themselves, and the memory can be
freed later.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hearthd.device.backend.communicator import RankCommunicator
from hearthd.device.collectives.outgoing import Send
from hearthd.device.context import DeviceContext
from hearthd.device.streams.stream_pool import PooledStream

ABORT_S = 30.0
"""Time limit of an abort, in seconds. An abort that takes longer is assumed never to end, and costs the device process.

Aborts took more than 5 s when the processes of six daemons shared each of four GPUs: CUDA frees memory and unmaps that
of peers under locks that all processes of a GPU share. A process that is unresponsive during an abort is detected much
earlier, by `devices.ping_timeout`.
"""

RETIRED = 4
"""Number of stopped communicators that may stay unfreed for as long as the device is busy; each of NCCL's holds some
hundred MiB."""

Done = Callable[[], None]


Post = Callable[[Callable[[], None]], None]
"""Runs a function on the device-handle thread; called on any thread."""


@dataclass(eq=False, slots=True)
class AbortedCommunicator:
    """A communicator that is being aborted."""

    comm: str
    communicator: RankCommunicator
    track: PooledStream | None
    """Track of the communicator's operations; None: the communicator never had a track."""
    owns_track: bool
    """True if the track is released together with the communicator."""
    stopping: bool = False
    """True while the communicator is being stopped, which takes until the work before its operations on the device is
    done."""
    deadline: float = math.inf
    """Monotonic time by which the helper thread must have finished with the communicator."""


class CommunicatorAborts:
    """Running aborts. Device-handle thread, except for the work of helper threads."""

    def __init__(self, device: DeviceContext, post: Post, send: Send) -> None:
        self.limit_s = ABORT_S
        """Time limit of an abort, in seconds."""
        self._device = device
        self._post = post
        self._send = send
        self._helped: dict[AbortedCommunicator, None] = {}
        """Communicators that helper threads are working on."""
        self._retired = 0
        """Number of communicators that wait for the device to become idle."""

    def end(self, aborted: AbortedCommunicator, *, has_operations: bool) -> None:
        """Stops and frees a communicator.

        `has_operations`: the communicator has operations in flight, which may never end by themselves.
        """
        if not has_operations:
            self._retire(aborted)
        elif aborted.communicator.can_stop:
            self._stop(aborted)
        else:
            self._device.idle_work.run_now(partial(self._abort, aborted))

    @property
    def watching(self) -> bool:
        """True if the work of a helper thread may become overdue."""
        return bool(self._helped) and any(aborted.deadline < math.inf for aborted in self._helped)

    def check(self, now: float) -> None:
        """Reports overdue aborts to the front."""
        for aborted in list(self._helped):
            if aborted.deadline >= now:
                continue
            aborted.deadline = math.inf
            tracks = self._device.tracks
            earlier_tracks = [track for track in tracks.unfinished(tracks.all) if track is not aborted.track]
            if (
                aborted.stopping and earlier_tracks
            ):  # its operations may be queued on the device after those of these tracks
                tracks.after_all(earlier_tracks, partial(self._set_deadline, aborted))
            else:
                self._send({"op": "wedged", "comm": aborted.comm})

    def _set_deadline(self, aborted: AbortedCommunicator) -> None:
        aborted.deadline = time.monotonic() + self.limit_s

    # ---- steps ----

    def _stop(self, aborted: AbortedCommunicator) -> None:
        aborted.stopping = True

        def stop() -> Callable[[], None]:
            try:
                aborted.communicator.stop()
            except Exception as error:
                traceback.print_exception(error, file=sys.stderr)
                self._free(aborted)
                return lambda: self._freed(aborted)
            return lambda: self._stopped(aborted)

        self._run_on_helper(aborted, stop)

    def _stopped(self, aborted: AbortedCommunicator) -> None:
        del self._helped[aborted]
        aborted.stopping = False
        self._retire(aborted)

    def _retire(self, aborted: AbortedCommunicator) -> None:
        """Frees a communicator that has no running operations, while the device is idle."""
        self._retired += 1

        def start(done: Done) -> None:
            self._retired -= 1
            self._abort(aborted, done)

        self._device.idle_work.run_on_thread(start, urgent=self._retired > RETIRED)

    def _abort(self, aborted: AbortedCommunicator, done: Done) -> None:
        def abort() -> Callable[[], None]:
            self._free(aborted)
            return lambda: self._freed(aborted, done)

        self._run_on_helper(aborted, abort)

    @staticmethod
    def _free(aborted: AbortedCommunicator) -> None:
        try:
            aborted.communicator.abort()
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)

    def _freed(self, aborted: AbortedCommunicator, done: Done = lambda: None) -> None:
        del self._helped[aborted]
        done()
        track, tracks = aborted.track, self._device.tracks
        if track is not None and aborted.owns_track:
            tracks.after_all([track], partial(tracks.release, track))

    def _run_on_helper(self, aborted: AbortedCommunicator, work: Callable[[], Callable[[], None]]) -> None:
        self._helped[aborted] = None
        self._set_deadline(aborted)
        run_on_helper(self._post, work)


def run_on_helper(post: Post, work: Callable[[], Callable[[], None]]) -> None:
    """Runs `work` on a separate thread, then the function that `work` returns on the device-handle thread."""
    threading.Thread(target=lambda: post(work()), name="communicator", daemon=True).start()
