"""Durable resources: what all snapshots and restores of one device process share.

These are the sessions' files, the thread that reads and writes them, the limit of staging memory, the tracks of copies,
and the requests to the front.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Refusal, from_text
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.durable.file_io import FileThread, SessionFiles
from hearthd.device.durable.snapshot_policy import StagingAllowance
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.memory.reservations import Reservations
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

MAX_EARLY_SNAPSHOTS = 4
"""Most snapshots whose copies are submitted before the stream has reached their position; each needs a separate
track."""

Answer = Callable[[dict[str, Any], Refusal | None], None]
"""Called with the front's answer, or with its refusal."""


class DurableResources:
    """Resources of all snapshots and restores. Device-handle thread only."""

    def __init__(
        self, device: DeviceContext, reservations: Reservations, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self.device = device
        self.reservations = reservations
        self.post = post
        """Calls a function in a later iteration of the loop."""
        self.files = FileThread(post)
        self.session_files = SessionFiles(self.files, lambda: device.kick(None))
        self.allowance = StagingAllowance(device.spec.staging_bytes)
        self._ids = itertools.count(1)
        self._answers: dict[DeviceSession, dict[int, Answer]] = {}
        """Callbacks for answers of the front, by request number."""
        self._shared: PooledStream | None = None
        self._spare: list[PooledStream] = []
        self._lent = 0

    def file(self, session: DeviceSession) -> int | None:
        """Returns the descriptor of the session's file; None if the front has not sent it yet."""
        return self.session_files.get(session.channel)

    def give_back(self, size: int, *, early: bool) -> None:
        """Ends the use of staging memory that `allowance` has granted."""
        if self.allowance.release(size, early):
            self.device.kick(None)

    def release(self, host: HostBuffer, size: int, *, early: bool) -> None:
        """Releases the memory of a chunk of `size` bytes, and gives its allowance back if it is page-locked."""
        if not isinstance(host, UnpinnedSlot):
            self.device.staging.release(host)
            self.give_back(size, early=early)

    def close(self, session: DeviceSession) -> None:
        """Closes the session's file after the writes under way, and forgets its requests."""
        self._answers.pop(session, None)  # frames for the session are no longer handled
        self.session_files.close(session.channel)

    # ---- tracks of copies ----

    def acquire_track(self) -> PooledStream | None:
        """Returns a track for copies that are submitted before the stream has reached the snapshot's position.

        At most `MAX_EARLY_SNAPSHOTS` tracks are kept for this. Returns None if all are lent, so that the copies must
        wait for that position.
        """
        if not self._spare and self._lent < MAX_EARLY_SNAPSHOTS:
            self._lent += 1
            return self.device.tracks.acquire()
        return self._spare.pop() if self._spare else None

    def return_track(self, track: PooledStream) -> None:
        """Keeps the track for the next `acquire_track`, once its work is done.

        The device may still let it wait for a kernel of the snapshot's session.
        """
        self.device.tracks.on_complete(track, partial(self._spare.append, track))

    def track(self) -> PooledStream:
        """Returns the track, shared by all snapshots and acquired at the first call, for copies that need not wait."""
        if self._shared is None:
            self._shared = self.device.tracks.acquire()
        return self._shared

    # ---- requests to the front ----

    def request(self, session: DeviceSession, body: dict[str, Any], answer: Answer) -> None:
        """Sends a request about the session's copies to the front; `answer` is called with the result."""
        ident = next(self._ids)
        self._answers.setdefault(session, {})[ident] = answer
        payload = json.dumps(body, separators=(",", ":")).encode()
        self.device.outbox.put(Kind.SNAPSHOT, payload, channel=session.channel, id=ident)

    def answered(self, session: DeviceSession, frame: Frame) -> None:
        """Handles the front's answer to the request with the frame's id."""
        waiting = self._answers.get(session, {})
        answer = waiting.pop(frame.id, None)
        if answer is None:
            return
        if not waiting:
            del self._answers[session]
        body = json.loads(frame.payload)
        error = body.get("error")
        answer(body, from_text(error) if error else None)
