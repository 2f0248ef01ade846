"""Sharing of one device among the sessions of a device process.

While only one session has work, its commands are submitted to the device as they arrive. As soon as a second session
has work, each session submits only slices of about a millisecond (`time_slices`, `pace`), each followed by a marker
that measures it:

- Deficit round robin over the device time of the slices selects the next session
  (`hearthd.shared.deficit_round_robin`). The slices of one turn hold up those of other turns, so that they can be
  distinguished, and no work waits for a long queue of another session.
- A session that had no work under way and has credit left submits immediately, during the turn of another session, so
  that turns of other sessions do not delay a client that launches and waits. Copies do the same, because the device
  has separate engines for them.
- A late slice no longer holds up other sessions: its kernel may hang, or wait for its host.

Commands without device work run as they arrive, and collectives run when the front allows them, whichever session has
the turn, because their peers depend on them. The commands of one session stay in order. Waiting commands are not
acknowledged, so that the client stops sending.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.scheduler.arrivals import Arrivals
from hearthd.device.scheduler.backlog import NOTHING, Backlog
from hearthd.device.scheduler.process_turns import ProcessTurns
from hearthd.device.scheduler.standstill import TIMEOUT_S as STANDSTILL_S
from hearthd.device.scheduler.time_slices import TimeSlices
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import NEVER, no_op

# Plain local names, because each lookup of an enum member costs 0.3 us (Python 3.11).
BATCH, CLOSE = Kind.BATCH, Kind.CLOSE

LINGER_S = 0.25
"""Time, in seconds, for which a session that is alone again continues in slices: the other session may return."""

POLL_S = 2e-5
"""Seconds for which completion is polled without checking the sockets; no longer than one loop iteration takes."""

STRETCH_S = 5e-4
"""Time, in seconds, for which a session that is alone may occupy this thread before other sessions are checked."""

COMMANDS_PER_CHECK = 512
"""Number of commands between two readings of the clock."""


class FairShare:
    """Shares the device among sessions.

    Device-handle thread only. `perform` executes the frames that are not commands.
    """

    def __init__(
        self, device: DeviceContext, arrivals: Arrivals, perform: Callable[[DeviceSession, Frame], None]
    ) -> None:
        self._device = device
        self._tracks = device.tracks
        self._arrivals = arrivals
        self._perform = perform
        self.backlogs: dict[int, Backlog] = {}
        self.standstill_s = STANDSTILL_S
        """Value of `Standstill.timeout`, in seconds, for sessions that open from now on."""
        self.slicing = TimeSlices(device, self._advance, self._mark_idle)
        self._active = self.slicing.active
        self.meter = self.slicing.meter
        self._shared_at = 0.0
        """Last time at which more than one session had work, in seconds."""
        self.turns = ProcessTurns(device.outbox, self.meter.clock)
        self._more = False
        self.poll_s = POLL_S
        """Seconds for which the completion that a client waits for is polled without a check of the sockets."""
        self.answered = False
        """True if a command was answered in the loop iteration in which it arrived, since the caller last reset the
        attribute."""

    # ---- sessions and frames ----

    def open(self, session: DeviceSession) -> None:
        """Adds a session with an empty backlog."""
        self.backlogs[session.channel] = Backlog(session, self.standstill_s)

    def enqueue(self, session: DeviceSession, frame: Frame) -> None:
        """Queues a frame that has arrived; it is executed after all frames before it."""
        backlog = self.backlogs[session.channel]
        if frame.kind == CLOSE:
            backlog.closing = True
        elif self.slicing.on and frame.kind == BATCH:
            self._arrivals.look_ahead(backlog, frame)
        backlog.frames.append(frame)
        self.slicing.mark_changed(backlog)
        if not backlog.active:
            self._wake(backlog)

    def run_on_arrival(self, session: DeviceSession) -> None:
        """Runs the commands of a session that is alone, in the loop iteration in which they have arrived.

        A client that launches and waits in a loop pays for every step in between. Its answer is sent before the
        accounting, if the work that it waits for completes within moments.
        """
        backlog = self.backlogs[session.channel]
        if self.slicing.on or self.turns.on or len(self._active) != 1 or not backlog.waiting:
            return
        tracks, began = self._tracks, self.meter.clock()
        tracks.take_awaited()
        self._execute(backlog)
        track = tracks.take_awaited()
        if track is not None:
            if len(track.pending) == 1 and not tracks.notified:  # more work takes longer than the accounting
                tracks.poll_track(track, self.poll_s)
            self.answered = not track.pending
            self._device.outbox.answer()
        if not backlog.active:
            return  # the session has ended
        if backlog.metered or backlog.waiting or tracks.live:
            self._account(backlog, began)
        else:
            self._mark_idle(backlog)
            self._charge(backlog, began, NEVER - backlog.room)

    def backlog_if_alone(self, session: DeviceSession) -> Backlog | None:
        """Returns the session's backlog if a batch may bypass it; otherwise None.

        It may do so if no other session has work, all frames of the session have been executed, and nothing else limits
        its submissions.
        """
        active = self._active
        if self.slicing.on or self.turns.on or len(active) > 1:
            return None
        backlog = self.backlogs[session.channel]
        if (active and not backlog.active) or backlog.ended or backlog.waiting:
            return None
        return backlog

    def ran_at_once(self, backlog: Backlog, began: float, commands: int, answered: bool) -> None:
        """Accounts for `commands` that bypassed the backlog of a session that is alone, from the time `began` on.

        `answered` is True if the client has been answered.
        """
        if answered:
            self.answered = True
        if not backlog.active:
            if not self._tracks.live:
                backlog.sparse = True
                self._charge(backlog, began, commands)
                return
            backlog.active = True
            self._active[backlog] = None
        self._account(backlog, began)

    def _charge(self, backlog: Backlog, began: float, commands: int) -> None:
        """Charges a session that was alone for commands that were submitted from `began` on, and are done."""
        if commands:
            now = self.meter.charge_interval(backlog, began)
            backlog.pace.update(commands, now - began, now - began)
            backlog.used_at_since, backlog.since = backlog.used, now

    def last_batch(self, session: DeviceSession) -> int:
        """Returns the number of the last batch that was executed or is queued with its number."""
        frames = self.backlogs[session.channel].frames
        return max(session.last_seq, *(frame.id for frame in frames if frame.kind == BATCH), 0)

    def enqueue_behind(self, session: DeviceSession, frame: Frame) -> bool:
        """Queues a message of an upload if it must stay after waiting commands; returns True in that case."""
        must_wait = self.backlogs[session.channel].must_enqueue(frame)
        if must_wait:
            self.enqueue(session, frame)
        return must_wait

    def cancel(self, session: DeviceSession, call: int) -> bool:
        """Removes a single call that has not been decoded; True if it was found."""
        backlog = self.backlogs[session.channel]
        self.slicing.mark_changed(backlog)
        return backlog.withdraw(call)

    def commands_cancelled(self, session: DeviceSession) -> None:
        """Continues a session whose next commands may have been cancelled: they need neither room nor a time slice."""
        backlog = self.backlogs[session.channel]
        if backlog.waiting:
            backlog.standstill.stream = None
            backlog.need = NOTHING
            self.slicing.mark_changed(backlog)
            self._more = True

    def remove(self, session: DeviceSession) -> None:
        """Removes a closed session whose work on the device is done."""
        self.meter.forget(self.backlogs.pop(session.channel))

    def deferred_retried(self, session: DeviceSession) -> None:
        """Updates the session's state after its deferred commands have been tried again."""
        backlog = self.backlogs[session.channel]
        if backlog.active:
            if self.slicing.on and not backlog.wanting and backlog.waiting_work:
                self.slicing.mark_changed(backlog)
                self._more = True
        elif backlog.waiting_work or (
            backlog.collectives(self._tracks) if self.slicing.on else backlog.unfinished(self._tracks)
        ):
            self._wake(backlog)
            self.slicing.mark_changed(backlog)
            self._more = True

    def _wake(self, backlog: Backlog) -> None:
        if backlog.active or backlog.ended:
            return
        backlog.active = True
        self._active[backlog] = None
        if self.slicing.on:
            backlog.forbid_submission(self._tracks)
        elif len(self._active) > 1:
            for active_backlog in tuple(self._active):  # their work may have ended since the last poll
                for track in active_backlog.busy_tracks():
                    self._tracks.reap(track)
            self.settle(False)
            if len(self._active) > 1:
                self._start_slicing()

    def _mark_idle(self, backlog: Backlog) -> None:
        """Marks a session as idle: it has no waiting commands and no work on the device."""
        if backlog.metered:
            self._unmeter(backlog)
        backlog.active = False
        backlog.sparse = True
        del self._active[backlog]

    # ---- the loop ----

    @property
    def active(self) -> bool:
        """True if any session has waiting commands, or work on the device that is not known to be done."""
        return bool(self._active) or self.meter.busy

    @property
    def is_slicing(self) -> bool:
        """True if sessions submit work in time slices."""
        return self.slicing.on

    @property
    def more(self) -> bool:
        """True if another `pump` would make progress immediately."""
        return self._more or self.slicing.more

    def pump(self) -> None:
        """Runs the commands that may run now, for a bounded short time."""
        self._more = self.slicing.more = False
        if self.slicing.on and not self._must_keep_slicing():
            self._stop_slicing()
        if self.slicing.on:
            self.slicing.run(self.turns.allowed and not self._tracks.held)
        elif self._active:
            backlog = next(iter(self._active))
            self._execute(backlog)
            self._account(backlog)
        if self.turns.on:
            self.turns.report(self._active)

    def settle(self, idle: bool) -> None:
        """Marks sessions as idle whose work is done.

        If `idle`, the loop is about to sleep: requests a wake-up for the completion of the remaining work.
        """
        if self.slicing.on:
            if idle and not (self._more or self.slicing.more):
                self.slicing.close_all()
            return
        for backlog in tuple(self._active):
            if backlog.waiting:
                continue
            unfinished = backlog.unfinished(self._tracks)
            if not unfinished:
                self._mark_idle(backlog)
            elif idle and not any(track.pending for track in unfinished):
                for track in unfinished:
                    self._tracks.on_complete(track, no_op)

    def max_sleep(self, timeout: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds; at most `timeout`, where None means no limit."""
        if self._more or self.slicing.more:
            return 0.0
        if self.slicing.on:
            timeout = self.slicing.max_sleep(timeout)
        else:
            for backlog in self._active:
                if backlog.standstill.stream is not None:
                    timeout = at_most(backlog.standstill.seconds_left(time.perf_counter()), timeout)
        return self.meter.poll(self.turns.max_sleep(timeout))

    def _advance(self, backlog: Backlog, commands: int) -> bool:
        """Executes up to `commands` commands of the session; returns True if more are waiting."""
        backlog.quota = commands
        while backlog.quota > 0:
            if backlog.work is None:
                if not backlog.frames:
                    return False
                frame = backlog.frame = backlog.frames.popleft()
                handler = self._arrivals.handlers.get(frame.kind)
                if handler is None:
                    backlog.quota -= 1
                    if frame.kind == CLOSE:
                        self._end_session(backlog)
                        self._perform(backlog.session, frame)
                        backlog.frame = None
                        self._abandon(backlog)  # frames that were sent before the front knew of the end
                        return False
                    self._perform(backlog.session, frame)
                    continue
                work = handler(backlog, frame)
                if work is None:
                    continue
                backlog.work = work
            else:
                work = backlog.work
            if work.run():
                backlog.work = None
            elif (backlog.need or backlog.standstill.stream) and backlog.closing:
                self._abandon(backlog)
            else:
                return True
        return backlog.waiting

    def _end_session(self, backlog: Backlog) -> None:
        self.slicing.leave(backlog)
        backlog.ended = True
        backlog.active = False
        self._active.pop(backlog, None)

    def _abandon(self, backlog: Backlog) -> None:
        """Drops the commands of a closing session that would have to wait for a time slice, or that follow its end.

        Single calls among them are answered with SESSION_EXPIRED.
        """
        refusal = Refusal(Reason.SESSION_EXPIRED, "the session was closed before the command ran")
        error = commands_pb2.Result(error=refusal.to_status()).SerializeToString()
        for frame in backlog.drop():
            if frame.kind == Kind.CALL:
                self._device.outbox.put(Kind.RESULT, error, channel=backlog.session.channel, id=frame.id)
            elif frame.kind != BATCH:  # the client may wait for the answer
                self._perform(backlog.session, frame)

    # ---- one session alone ----

    def _execute(self, backlog: Backlog) -> None:
        """Runs commands of a session that is alone, for a bounded short time."""
        backlog.room, backlog.launches = NEVER, True
        if not backlog.waiting or backlog.stands_still(self._tracks):
            return
        if self._advance(backlog, COMMANDS_PER_CHECK):
            deadline = self.meter.clock() + STRETCH_S
            while backlog.standstill.stream is None and self._advance(backlog, COMMANDS_PER_CHECK):
                if self.meter.clock() > deadline:
                    self._more = True
                    break

    def _account(self, backlog: Backlog, since: float | None = None) -> None:
        """Starts to count the device time of a session that is alone, or marks the session as idle."""
        if backlog.active and not backlog.metered:
            if backlog.unfinished(self._tracks):
                backlog.metered = True
                backlog.since = self.meter.begin(backlog, since)
                backlog.used_at_since = backlog.used
                backlog.done_at_since = backlog.done()
            elif not backlog.waiting:
                self._mark_idle(backlog)

    def _unmeter(self, backlog: Backlog) -> None:
        """Ends the metering of a session that was alone, because it is idle or continues in slices."""
        backlog.metered = False
        self.meter.end(backlog)
        backlog.update_pace(backlog.done() - backlog.done_at_since, backlog.since, self.meter.clock())

    # ---- several sessions ----

    def _start_slicing(self) -> None:
        """Switches to time slices."""
        self.slicing.on = True
        self._shared_at = self.meter.advance()
        for backlog in self.backlogs.values():
            was_alone = backlog.metered
            if was_alone:
                self._unmeter(backlog)
            self.slicing.begin(backlog, was_alone=was_alone)

    def _must_keep_slicing(self) -> bool:
        now = self.meter.clock()
        if len(self._active) > 1 or self.turns.bounded:
            self._shared_at = now
        return now - self._shared_at <= LINGER_S

    def _stop_slicing(self) -> None:
        """Ends time slices, because at most one session has work."""
        for backlog in self.backlogs.values():
            self.slicing.end(backlog)
        self.slicing.on = False
        self._device.kick(None)
        self.settle(False)

    def on_turn(self, frame: Frame) -> None:
        """Handles a TURN message of the front, which allows or forbids this process to submit work.

        See `process_turns`.
        """
        self.turns.on_turn(frame)
        if self.turns.bounded and not self.slicing.on:
            self._start_slicing()
