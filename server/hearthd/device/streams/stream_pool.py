"""Pool of CUDA streams (tracks) of a device process: assignment to logical streams, order of work, and completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import Event
from hearthd.device.backend.server import ComputeServer, KeepsCrashRecord
from hearthd.device.platform.event_loop import countdown
from hearthd.device.platform.spin_policy import SpinPolicy
from hearthd.device.streams import track_choice
from hearthd.device.streams.completion_forecast import CompletionForecast
from hearthd.device.streams.ordering import Ordering, Usage
from hearthd.device.streams.pending_outcomes import Callback, PendingOutcomes
from hearthd.device.streams.track import (
    IDLE_PERIODS,
    NEVER,
    TIME_NEXT,
    TIMED,
    WINDOW,
    WINDOWS,
    LaunchProbe,
    PooledStream,
)
from hearthd.device.streams.watched_events import WatchedEvents

__all__ = ["NEVER", "WINDOW", "WINDOWS", "PooledStream", "StreamPool", "listed", "no_op"]

NAMED = 8
"""Most kernels that a refusal names."""

WATCH_S = 1e-3
"""Sleep, in seconds, between two polls of events with a deadline. Used if the backend notifies of completions."""


class StreamPool:
    """All pooled streams of one device process. Device-handle thread only."""

    def __init__(self, server: ComputeServer, max_streams: int, wake: Callable[[], None]) -> None:
        self._max = max_streams
        self.held = False
        self._server = server
        self.notified = server.on_progress(wake)
        """True if the backend notifies the loop of completions; otherwise completions are polled."""
        self._watched = WatchedEvents(server)
        self.spin_policy = SpinPolicy()
        self.forecast = CompletionForecast()
        """Forecasts of copies whose completion a session waits for."""
        self.completions = 0
        """Number of completions so far. Code that waits for room or for a completion tries again after the number has
        grown."""
        self._polled_completions = 0
        """Value of `completions` at the last `poll`. A reap of a single track may find completions in between; `poll`
        reports those as well."""
        self._completions_at_track_poll = 0
        """Value of `completions` when `poll_track` last noticed a completion."""
        self.on_launch_timed: Callable[[int], None] = lambda nanoseconds: None
        """Called with the time of each timed launch from submission to completion, in nanoseconds."""
        self.ordering = Ordering()
        self.all: list[PooledStream] = []
        self.live: dict[PooledStream, None] = {}
        """Tracks that are not `idle`. Usually few of many; they are polled in each loop iteration."""
        self.pending_outcomes = PendingOutcomes()
        self._awaited: PooledStream | None = None

    def acquire(self, priority: int = 0, *, bounded: bool = False) -> PooledStream:
        """Returns a track for a logical stream: a free one, a new one within the limit, or the one with fewest users.

        Tracks that are withheld from reuse are not assigned. If all tracks are withheld, returns a new one beyond the
        limit. With `bounded`, raises Refusal(QUEUE_FULL) if there are already twice as many tracks as the limit.
        """
        track = track_choice.free_track(self.all, priority)
        if track is None:
            self._reap_withheld()
            track = track_choice.free_track(self.all, priority)
        if track is None and track_choice.may_create(self.all, self._max, time.monotonic()):
            track = self._add(priority)
        track = track or track_choice.shared_track(self.all, priority)
        if track is None:
            if bounded and len(self.all) >= track_choice.MAX_FACTOR * self._max:
                raise self._all_withheld()
            track = self._add(priority)
        if not track.users:
            track.timing = track.timing or TIME_NEXT
            track.first_submitted = track.submitted
            self.set_barred(track, False)
        track.users += 1
        return track

    def acquire_exclusive(self) -> PooledStream:
        """Returns a track that is not shared until it is released, even beyond the limit.

        Work on it waits for peers, and must neither delay other work nor wait for it.
        """
        track = track_choice.free_track(self.all, 0) or self._add(0)
        track.exclusive = True
        track.first_submitted = track.submitted
        self.set_barred(track, False)
        track.users = 1
        return track

    def _add(self, priority: int) -> PooledStream:
        track = PooledStream(self.ordering.add_track(), self._server.create_stream(priority), priority)
        track.held = self.held
        if isinstance(self._server, KeepsCrashRecord):
            self._server.note_launches(track.stream, track.launched)
        self.all.append(track)
        return track

    def release(self, track: PooledStream) -> None:
        """Removes one user of the track. The track is not assigned to a new user before all its work is done."""
        track.users -= 1
        track.exclusive = False
        if not self.done(track):
            self.on_complete(track, self.withhold((track,)))

    # ---- withheld tracks ----

    def withhold(self, tracks: Collection[PooledStream]) -> Callback:
        """Withholds the tracks from new users, because work on them may never end.

        The caller ends this by one call of the returned function.
        """
        now = time.monotonic()
        for track in tracks:
            if not track.hold_count:
                track.withheld_since = now
            track.hold_count += 1

        def end_withholding() -> None:
            for track in tracks:
                track.hold_count -= 1

        return end_withholding

    @property
    def withheld(self) -> list[PooledStream]:
        """Tracks withheld from reuse for long: work of a destroyed stream or closed session still runs."""
        return track_choice.long_withheld(self.all, time.monotonic())

    def _reap_withheld(self) -> None:
        """Reaps the withheld tracks, whose work may be done by now."""
        for track in self.all:
            if track.hold_count and track.pending:
                self.reap(track)

    def _all_withheld(self) -> Refusal:
        kernels = list(dict.fromkeys(self.in_flight()))
        names = listed(kernels)
        return Refusal(
            Reason.QUEUE_FULL,
            f"all {len(self.all)} streams of the device process are withheld from reuse: work of streams that were "
            f"destroyed, or whose session has ended, is still running on them"
            + (f" (kernels: {names})" if kernels else ""),
            fix="give such launches a timeout, let them end before their stream is destroyed, use a dedicated session "
            '(isolation="dedicated"), or raise devices.max_streams',
            details={"streams": len(self.all), "max_streams": self._max, "kernels": names},
            retry_after_s=track_choice.WITHHELD_GRACE_S,
        )

    # ---- launches that must wait ----

    def set_held(self, held: bool) -> None:
        """Prevents launches on every track (`held` True), or allows them again."""
        self.held = held
        for track in self.all:
            track.held = held or track.barred

    def set_barred(self, track: PooledStream, barred: bool, max_commands: int = NEVER) -> None:
        """Prevents launches on one track (`barred` True), or allows them again.

        `max_commands` limits the commands of any kind that may be submitted to the track until the next call.
        """
        track.barred = barred
        track.held = barred or self.held
        track.slice_limit = track.submitted + max_commands if max_commands != NEVER else NEVER
        track.requested = 0

    # ---- order of work ----

    def done(self, track: PooledStream) -> bool:
        """True if all work of the track is known to be done."""
        return track.done_position >= self.ordering.positions[track.index]

    def idle(self, track: PooledStream) -> bool:
        """True if all work of the track is known to be done and no callback is pending."""
        return not track.pending and self.done(track)

    @property
    def all_done(self) -> bool:
        """True if all work of all tracks is known to be done."""
        positions = self.ordering.positions
        return all(track.done_position >= positions[track.index] for track in self.live)

    def unfinished(self, tracks: Container[PooledStream]) -> list[PooledStream]:
        """Returns those of the tracks that have work not known to be done."""
        positions = self.ordering.positions
        return [track for track in self.live if track.done_position < positions[track.index] and track in tracks]

    def busy(self, tracks: Container[PooledStream]) -> list[PooledStream]:
        """Returns those of the tracks that are not `idle`."""
        return [track for track in self.live if track in tracks]

    def claim_position(
        self, track: PooledStream, writes: Collection[Usage], reads: Collection[Usage] = (), is_launch: bool = False
    ) -> int:
        """Takes a position for a command, orders it after earlier users of its buffers, and returns the position.

        The track waits for those users on the device. The launch is timed if it is one of the sampled launches.
        """
        if self.pending_outcomes.open:
            self.pending_outcomes.propagate(writes, reads)
        track.budget -= 1
        self.live[track] = None
        if track.timing == TIMED or not track.budget % WINDOW:
            self._between(track)  # done before the position is taken, because the command itself has not been submitted
        ordering, index = self.ordering, track.index
        for origin in ordering.plan(index, writes, reads):
            self.wait(track, origin)
        position = ordering.positions[index]
        if is_launch and track.timing == TIME_NEXT and track.probe is None:
            track.probe = LaunchProbe(position, time.perf_counter_ns())
            track.timing = TIMED
        return position

    def step(self, track: PooledStream) -> int:
        """Takes a position for a command that is not a launch and waits for no other track. Returns the position."""
        track.budget -= 1
        self.live[track] = None
        if track.timing == TIMED or not track.budget % WINDOW:
            self._between(track)
        return self.ordering.step(track.index)

    def _between(self, track: PooledStream) -> None:
        """Marks, between two commands, the end of a window, and that of a timed launch."""
        window = not track.budget % WINDOW
        if window:
            self.mark(track)
        if track.timing == TIMED:
            track.timing = 0
            if not window:
                self.on_complete(track, no_op)
        elif track.probe is None:
            track.timing = TIME_NEXT

    def charge(self, track: PooledStream, more: int) -> None:
        """Counts the work under the track's last position as `more` additional commands."""
        windows = -(-track.budget // WINDOW)
        track.budget -= more
        track.finished += more
        for _ in range(windows + (-track.budget // WINDOW)):
            self.mark(track)

    def mark(self, track: PooledStream) -> None:
        """Returns a window of commands to the track's budget when the work submitted so far is done."""

        def restore() -> None:
            track.budget += WINDOW
            track.returned += WINDOW

        self.on_complete(track, restore)

    def fence(self, track: PooledStream, origin: PooledStream) -> None:
        """Makes `track` wait, on the device, for all work submitted to `origin` so far."""
        if self.ordering.fence(track.index, origin.index, self.ordering.positions[origin.index]):
            self.wait(track, origin.index)

    def follow(self, track: PooledStream, event: Event) -> None:
        """Makes `track` wait for the event. Tracks that wait for `track` later wait for it as well."""
        self.claim_position(track, ())
        self._server.wait(track.stream, event)

    def settle(self, track: PooledStream, usage: Usage) -> None:
        """Makes `track` wait for all uses, on other tracks, of a buffer that is about to be freed."""
        for index, position in usage.tracks().items():
            if self.ordering.fence(track.index, index, position):
                self.wait(track, index)

    def wait(self, track: PooledStream, origin: int) -> None:
        """Makes `track` wait, on the device, for all work submitted to track number `origin` so far."""
        event = self._server.record(self.all[origin].stream)
        self._server.wait(track.stream, event)
        self._server.release_event(event)

    # ---- completion ----

    def on_complete(self, track: PooledStream, callback: Callback, *, unsubmitted: int = 0) -> None:
        """Calls `callback` when all work submitted to the track so far is done.

        `unsubmitted` is the number of positions that were taken for commands not submitted yet.
        """
        event = self._server.record(track.stream)
        self.live[track] = None
        track.pending.append((self.ordering.positions[track.index] - unsubmitted, event, callback))
        self.spin_policy.begin(time.perf_counter())

    def after_commands(self, track: PooledStream, callback: Callback) -> None:
        """Calls `callback` when the commands that have taken a position on the track so far are done.

        Unlike `on_complete`, records no event if the commands are known to be done, or if an event is pending after
        the last one.
        """
        position, pending = self.ordering.positions[track.index], track.pending
        if track.done_position >= position:
            callback()
        elif pending and pending[-1][0] == position:
            _, event, first = pending[-1]

            def complete_both() -> None:
                first()
                callback()

            pending[-1] = position, event, complete_both
        else:
            self.on_complete(track, callback)

    def answer_when_done(self, track: PooledStream, answer: Callback) -> None:
        """Calls `answer`, for which a client waits, when all work submitted to the track so far is done."""
        self._awaited = track
        if track.pending or track.done_position < self.ordering.positions[track.index]:
            self.on_complete(track, answer)
        else:
            answer()

    def take_awaited(self) -> PooledStream | None:
        """Returns the track of the latest answer that was promised since the last call; None if there was none."""
        track, self._awaited = self._awaited, None
        return track

    def after_all(self, tracks: Collection[PooledStream], callback: Callback) -> None:
        """Calls `callback` once, when all work submitted to these tracks is done; immediately without tracks."""
        complete_one = countdown(len(tracks) + 1, callback)
        for track in tracks:
            self.on_complete(track, complete_one)
        complete_one()

    def watch(
        self, event: Event, callback: Callback, timeout: float | None = None, on_timeout: Callback | None = None
    ) -> None:
        """Calls `callback` when the event is done, whatever has been submitted to its track since.

        The caller keeps the event, and may `retire` it meanwhile.

        If the event is not done after `timeout` seconds, `on_timeout` is called instead.
        """
        self._watched.add(event, callback, timeout, on_timeout)
        self.spin_policy.begin(time.perf_counter())

    def watch_both(self, first: Event, second: Event, callback: Callback) -> None:
        """Calls `callback` when both events are done. Neither event is released before `callback` has returned."""
        for event in (first, second):
            self._watched.hold(event)

        def both_done() -> None:
            callback()
            for event in (first, second):
                self._watched.drop(event)

        self.watch(first, lambda: self.watch(second, both_done))

    def retire(self, event: Event) -> None:
        """Releases an event as soon as it is no longer watched."""
        self._watched.retire(event)

    # ---- polling ----

    def poll(self) -> bool:
        """Runs the callbacks of completed work. Returns True if any work has completed since the last poll."""
        for track in tuple(self.live):
            if track.pending:
                self.reap(track)
        self.poll_watched()
        if self.completions == self._polled_completions:
            return False
        self._polled_completions = self.completions
        if self.completions != self._completions_at_track_poll:
            self.spin_policy.wait_ended(time.perf_counter())
        return True

    def poll_watched(self) -> None:
        """Runs the callbacks of watched events that are done, in the order in which they are watched."""
        if self._watched.entries:
            done_events = self._watched.poll()  # the callbacks may reap tracks
            self.completions += done_events

    def poll_track(self, track: PooledStream, seconds: float) -> None:
        """Polls one track until its pending work is done, for at most `seconds` and while the spin policy allows it."""
        done, pending, spins = self._server.done, track.pending, self.spin_policy.spins
        deadline = time.perf_counter() + seconds
        while pending:
            if done(pending[0][1]):
                self._complete(track)
            elif (now := time.perf_counter()) > deadline or not spins(now):
                return
        self.spin_policy.wait_ended(time.perf_counter())
        self._completions_at_track_poll = self.completions

    @property
    def has_completions(self) -> bool:
        """True if a `poll` would find a completion. Cheap enough for a spin loop."""
        if self.completions != self._polled_completions:
            return True
        done = self._server.done
        for track in self.live:
            if track.pending and done(track.pending[0][1]):
                return True
        return self._watched.any_done

    @property
    def should_poll(self) -> bool:
        """True if work under way may complete within moments and the backend does not notify of completions."""
        if self.notified or not self._awaits_completion():
            return False
        now = time.perf_counter()
        return self.spin_policy.spins(now) or self.forecast.near_completion(now)

    def _awaits_completion(self) -> bool:
        """True if a callback is pending on any track, or an event is watched."""
        for track in self.live:  # a generator expression takes twice as long
            if track.pending:
                return True
        return bool(self._watched.entries)

    def max_sleep(self) -> float | None:
        """Returns the seconds to sleep until the next poll; None: until woken. Called at the end of a loop iteration.

        For less than a millisecond, it is better to poll `has_completions` while `should_poll` is true.
        """
        if self.completions != self._polled_completions:
            return 0.0
        if not self._awaits_completion():
            return None
        if self.notified:  # the backend does not notify of deadlines
            return WATCH_S if self._watched.any_deadline else None
        now = time.perf_counter()
        return min(self.spin_policy.sleep(now), self.forecast.seconds_until_next(now))

    def reap(self, track: PooledStream) -> bool:
        """Runs the callbacks of completed work on one track. Returns True if the track accepts more commands."""
        done, queue = self._server.done, track.pending
        while queue and done(queue[0][1]):
            self._complete(track)
        return track.budget > 0

    def _complete(self, track: PooledStream) -> None:
        """Completes the first pending entry."""
        position, event, callback = track.pending.popleft()
        self._server.release_event(event)
        track.finished += position - track.done_position
        track.done_position = self.ordering.done[track.index] = position
        self.completions += 1
        probe = track.probe
        if probe is not None and position >= probe.position:
            track.probe = None
            if track.timing == TIMED:
                track.timing = 0
            self.on_launch_timed(time.perf_counter_ns() - probe.start_ns)
        callback()
        if not track.pending:
            track.idle_count += 1
            if not track.idle_count % IDLE_PERIODS and not track.timing:
                track.timing = TIME_NEXT
            if track.done_position >= self.ordering.positions[track.index]:
                self.live.pop(track, None)

    # ---- running kernels ----

    def in_flight(self, session: str | None = None) -> list[str]:
        """Returns the names of launched kernels that are not known to be done, oldest first on each track.

        With `session`, only the kernels of that session (its id).
        """
        return [
            name
            for track in self.all
            for position, name, session_id in track.launched
            if position > track.done_position and session in (None, session_id)
        ]

    def running_sessions(self) -> list[str]:
        """Returns the sessions that launched the running kernels, each once."""
        sessions = {
            session_id: None
            for track in self.all
            for position, _, session_id in track.launched
            if position > track.done_position
        }
        return list(sessions)


def listed(names: Sequence[str]) -> str:
    """Returns kernel names as text for a refusal."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def no_op() -> None:
    """Completion callback without effect, for an event that only needs to be polled."""
