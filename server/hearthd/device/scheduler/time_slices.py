"""Time slices of several sessions on one device. Each slice is measured; deficit round robin determines their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from hearthd.device.context import DeviceContext
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.scheduler.backlog import COPY, NOTHING, Backlog, Slice
from hearthd.device.scheduler.device_time import DeviceTimeMeter
from hearthd.device.scheduler.pace import BESIDE_S, LATE_S, MAX_SLICES_ON_DEVICE, QUANTUM_S, SLICE_S
from hearthd.device.streams.stream_pool import NEVER, PooledStream
from hearthd.shared.deficit_round_robin import HierarchicalRoundRobin

STRETCH_S = 2e-4
"""Time, in seconds, for which one session may occupy this thread while other sessions have work."""

SHORT_STRETCH_S = 5e-5
"""Replaces `STRETCH_S`, in seconds, while another session waits for short work that it submitted without a turn."""

COMMANDS_PER_CHECK = 64
"""Number of commands between two readings of the clock."""

MAX_BESIDE_TURN = 2
"""Largest number of sessions with slices outside of their turn for which `SHORT_STRETCH_S` applies."""

NEAR_S = 1.5e-4
"""Time, in seconds, around the expected end of a slice during which the loop polls instead of sleeping, because sleeps
take longer than requested."""


class TimeSlices:
    """Time slices of the sessions. Device-handle thread only.

    `advance` executes up to a given number of commands and returns True if more are waiting. `on_idle` is called for a
    session that becomes idle.
    """

    def __init__(
        self, device: DeviceContext, advance: Callable[[Backlog, int], bool], on_idle: Callable[[Backlog], None]
    ) -> None:
        self._device = device
        self._tracks = device.tracks
        self._advance = advance
        self._on_idle = on_idle
        self.meter = DeviceTimeMeter(device.outbox.put, device.telemetry, self._charge)
        self._fair: HierarchicalRoundRobin[Backlog] = HierarchicalRoundRobin(QUANTUM_S)
        self._holder: Backlog | None = None
        """The session that last had a turn and may still have slices of that turn on the device."""
        self.active: dict[Backlog, None] = {}
        """Sessions with waiting commands or with work on the device."""
        self._changed: dict[Backlog, None] = {}
        self._wanting: dict[Backlog, None] = {}
        self._opened: dict[Backlog, None] = {}
        self._beside_turn: set[Backlog] = set()
        """Sessions with slices on the device during the turn of another session."""
        self._check_at = 0.0
        self.on = self.more = False
        """`on`: sessions submit work in slices. `more`: another `run` would make progress immediately."""

    def begin(self, backlog: Backlog, was_alone: bool) -> None:
        """Adds a session.

        Work that the session had alone on the device becomes a slice that costs no credit; the session gets no turn
        until that slice is done.
        """
        backlog.forbid_submission(self._tracks)
        backlog.sparse = not was_alone
        unfinished = backlog.unfinished(self._tracks) if was_alone else []
        if unfinished:
            backlog.exempt = True
            self._slice_existing_work(backlog, unfinished, turn=True)

    def end(self, backlog: Backlog) -> None:
        """Ends slicing for a session, which may submit without limit from now on."""
        self.leave(backlog)
        backlog.allow_submission(self._tracks)
        backlog.sparse = True
        backlog.exempt = False

    def leave(self, backlog: Backlog) -> None:
        """Removes a session."""
        if backlog.open is not None:
            self.close(backlog)
        self._fair.forget(backlog)
        self._set_wanting(backlog, False)
        self._changed.pop(backlog, None)
        self._release(backlog)

    def _release(self, backlog: Backlog) -> None:
        """Ends the turn of the session if its slices are done, so that the next session need not wait."""
        if self._holder is backlog and not backlog.slices:
            self._holder = None

    def mark_changed(self, backlog: Backlog) -> None:
        """Marks a session for examination, because its frames or its work have changed."""
        self._changed[backlog] = None

    def run(self, free: bool) -> None:
        """Submits work that may go to the device now, for a bounded short time; none unless the device is `free`."""
        now = self.meter.advance()
        if now >= self._check_at:
            self._check_at = now + SLICE_S
            self._check(now)
        if not free:
            self.close_all()
        for backlog in tuple(self._changed):
            if backlog.open is None:
                self._examine(backlog)
        if free:
            self._open_slices()

    def _check(self, now: float) -> None:
        """Marks late slices, and makes their sessions pay for the time until the slices are done."""
        for backlog in self.active:
            if backlog.slices or backlog.open is not None:
                if now > backlog.since + BESIDE_S:
                    backlog.debt = math.inf
                if now > backlog.late_at:
                    for time_slice in backlog.slices:
                        time_slice.late = True

    def close_all(self) -> None:
        """Closes all open slices before the loop sleeps, so that their markers are recorded."""
        for backlog in tuple(self._opened):
            self.close(backlog)
            self.mark_changed(backlog)

    def max_sleep(self, timeout: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds: at most `timeout`, and at most until a slice becomes late.

        If completions must be polled, returns 0 near the expected end of a turn, because the next session waits for
        it.
        """
        now = self.meter.clock()
        for backlog in self.active:
            if backlog.slices and not backlog.slices[-1].late:
                remaining = max(backlog.late_at - now, 0.0)
                timeout = at_most(remaining, timeout)
            if backlog.wanting and backlog.late:
                timeout = at_most(max(backlog.extra_slices.at - now, 0.0), timeout)
        holder = self._holder
        if not self._tracks.notified and holder is not None and holder.slices and holder.pace.seconds:
            remaining = holder.since + holder.slices[0].count * holder.pace.seconds - now
            if abs(remaining) < NEAR_S:
                return 0.0
        return timeout

    def _examine(self, backlog: Backlog) -> None:
        """Runs the session's commands without device work, and queues the session for a turn if it has device work."""
        self._changed.pop(backlog, None)
        if backlog.waiting and (backlog.closing or not backlog.need):
            backlog.room = 0
            if self._advance(backlog, COMMANDS_PER_CHECK) and not backlog.need:
                self.more = True
                self.mark_changed(backlog)
        if not backlog.active:
            return
        need = backlog.waiting_work
        if need and backlog not in self._fair and not backlog.exempt:
            session = backlog.session
            self._fair.enter(backlog, session.tenant, session.weight, session.priority)
        if backlog in self._fair and (not need or (need == COPY and self._fair.credit(backlog) > 0)):
            self._fair.leave(backlog)  # copies need no turn, only credit
        backlog.copies = need == COPY
        self._set_wanting(backlog, bool(need))
        if not (need or backlog.waiting or backlog.slices):
            collectives = backlog.collectives(self._tracks)
            if collectives:
                self._slice_existing_work(backlog, collectives, turn=False)
            else:
                self._on_idle(backlog)

    def _set_wanting(self, backlog: Backlog, wanting: bool) -> None:
        backlog.wanting = wanting
        if wanting:
            self._wanting[backlog] = None
        else:
            self._wanting.pop(backlog, None)

    def _open_slices(self) -> None:
        holder = self._fair.turn()
        for backlog in tuple(self._wanting):  # sessions with few commands are served first
            if backlog is holder:
                continue
            if backlog.open is None and (backlog.sparse or backlog.copies):
                self._open_without_turn(backlog)
            if backlog.open is None and backlog.late:
                self._open_extra_slice(backlog)
        for backlog in tuple(self._opened):
            if backlog.open is None:
                continue
            if backlog.open.in_turn and backlog is not holder:
                self.close(backlog)
                self._examine(backlog)
            else:
                self._fill(backlog)
        if holder is not None and holder.open is None and holder.wanting:
            self._open_turn(holder)

    def _open_turn(self, backlog: Backlog) -> None:
        copies = backlog.copies
        previous = self._holder
        if not copies and previous is not None and previous is not backlog and previous.in_turn:
            self._open_without_turn(backlog)
            return
        limit = min(MAX_SLICES_ON_DEVICE * SLICE_S, self._fair.credit(backlog))
        max_commands = min(backlog.pace.slice_size(backlog.on_device, limit), backlog.pace.slice_size(0))
        if max_commands > 0:
            self._open(backlog, max_commands, launches=not copies, turn=not copies)

    def _open_without_turn(self, backlog: Backlog) -> None:
        """Opens a slice without a turn, if the session has credit left and no work under way, or has only copies."""
        launches = backlog.sparse
        if not (launches or backlog.copies):
            return
        if self._fair.credit(backlog) <= 0:
            if backlog not in self._fair:
                self.mark_changed(backlog)  # the session must join the queue for turns
            return
        max_commands = backlog.pace.slice_size(backlog.on_device)
        if max_commands > 0:
            self._open(backlog, max_commands, launches=launches, turn=False)

    def _open_extra_slice(self, backlog: Backlog) -> None:
        """Opens an extra slice at intervals for a session with a late kernel, whatever its debt; see `extra_slices`."""
        if backlog.extra_slices.claim(self.meter.clock()):
            self._open(backlog, max(backlog.pace.slice_size(0), 1), launches=True, turn=False)

    # ---- slices ----

    def _open(self, backlog: Backlog, max_commands: int, *, launches: bool, turn: bool) -> None:
        self.meter.begin(backlog)
        now = self.meter.clock()
        if not backlog.slices:
            backlog.used_at_since, backlog.since = backlog.used, now
            backlog.debt = math.inf if turn else 0.0
        base = {track: track.submitted for track in backlog.busy_tracks()}
        backlog.open = Slice(now, max_commands, turn, base)
        self._opened[backlog] = None
        if not turn:
            self._beside_turn.add(backlog)
        has_requests = any(track.requested for track in backlog.tracks())
        backlog.allow_submission(self._tracks, max_commands, launches)
        backlog.need = NOTHING
        if has_requests:
            backlog.session.deferred.pump()
        self._fill(backlog)

    def _fill(self, backlog: Backlog) -> None:
        """Fills the open slice, for a bounded short time.

        Closes the slice if it is full, or if no more commands are waiting.

        A slice during another session's turn stays open for a while to collect more commands, because many small slices
        would cost more than their work.
        """
        time_slice = backlog.open
        assert time_slice is not None
        start = self.meter.clock()
        if not backlog.waiting and not time_slice.in_turn and start < backlog.since + SLICE_S:
            return
        is_urgent = 0 < len(self._beside_turn - {backlog}) <= MAX_BESIDE_TURN
        deadline = start + (SHORT_STRETCH_S if is_urgent else STRETCH_S)
        self.more = True
        counted = time_slice.submitted(backlog.busy_tracks())
        while True:
            submitted = time_slice.submitted(backlog.busy_tracks())
            backlog.room = time_slice.limit - submitted
            if not time_slice.in_turn and submitted != counted:
                backlog.debt += backlog.pace.expected_time(submitted - counted)
                counted = submitted
            if backlog.room <= 0 or backlog.need or not backlog.waiting:
                break
            if self.meter.clock() > deadline:
                return
            self._advance(backlog, COMMANDS_PER_CHECK // 4 if is_urgent else COMMANDS_PER_CHECK)
        if backlog.open is time_slice and (
            time_slice.in_turn or backlog.waiting or self.meter.clock() >= backlog.since + SLICE_S
        ):
            self.close(backlog)
            self._examine(backlog)
            backlog.sparse = backlog.sparse and not backlog.wanting

    def close(self, backlog: Backlog) -> None:
        """Closes the open slice, and submits a marker that completes after it."""
        time_slice, backlog.open = backlog.open, None
        assert time_slice is not None
        del self._opened[backlog]
        backlog.forbid_submission(self._tracks)
        self._submit_marker(
            backlog, time_slice, [track for track in backlog.busy_tracks() if time_slice.submitted((track,))]
        )
        self.meter.end(backlog)
        if not backlog.slices:
            self._beside_turn.discard(backlog)

    def _slice_existing_work(self, backlog: Backlog, tracks: list[PooledStream], turn: bool) -> None:
        """Creates a slice for work that is on the device without one."""
        base = {track: track.finished for track in tracks}
        self._submit_marker(backlog, Slice(backlog.since, NEVER, turn, base), tracks)

    def _submit_marker(self, backlog: Backlog, time_slice: Slice, tracks: list[PooledStream]) -> None:
        if not tracks:
            return
        time_slice.count = time_slice.submitted(tracks)
        self._device.telemetry.slices += 1
        self.meter.begin(backlog)
        if time_slice.in_turn:
            self._holder = backlog
        if not backlog.on_device:
            backlog.late_at = self.meter.clock() + LATE_S
        backlog.slices.append(time_slice)
        self._tracks.after_all(tracks, partial(self._complete, backlog, time_slice))

    def _complete(self, backlog: Backlog, time_slice: Slice) -> None:
        self.meter.end(backlog)
        now = self.meter.clock()
        backlog.slices.remove(time_slice)
        backlog.exempt = False
        backlog.extra_slices.reset()
        backlog.update_pace(time_slice.count, time_slice.start, now)
        backlog.late_at = now + LATE_S
        if not backlog.slices and backlog.open is None:
            backlog.debt = math.inf
            self._beside_turn.discard(backlog)
        if backlog.ended:
            self._release(backlog)
        else:
            self.mark_changed(backlog)

    def _charge(self, backlog: Backlog, seconds: float) -> None:
        if self.on:  # sessions outside the queue are not charged
            self._fair.charge(backlog, seconds)
