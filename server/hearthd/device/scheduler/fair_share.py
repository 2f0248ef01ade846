"""Sessions of one device process take turns on the device.

While one session alone has work, it goes to the device as it arrives. As soon as a second one has, each gives the
device only slices of about a millisecond (`time_slices`, `pace`), with a mark behind each that tells what it took:

- whose turn it is says deficit round robin over what the slices took (`hearthd.shared.deficit_round_robin`). The slices
  of a turn keep those of other turns waiting, so that they can be told apart, and no work queues behind a flood;
- a session that had nothing under way and has credit left goes at once, beside whoever has the turn: who launches and
  waits is not held up by the turns of others. So do copies, for which the device has engines of their own;
- a slice that takes too long keeps nobody waiting any more: it may hang, or wait for its own host.

Commands that give the device nothing run as they come, and collectives when the front says so, whoever has the turn:
their peers count on it. What one session sends stays in order; what waits is not acknowledged, so that its client stops
sending.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.platform.spin_policy import sooner
from hearthd.device.scheduler.arrivals import Arrivals
from hearthd.device.scheduler.backlog import Backlog
from hearthd.device.scheduler.process_turns import ProcessTurns
from hearthd.device.scheduler.time_slices import TimeSlices
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import NEVER

BATCH, CLOSE = Kind.BATCH, Kind.CLOSE  # looked up once: each time costs 0.3 us (Python 3.11)

LINGER_S = 0.25
"""How long a session that is alone again still goes in slices: the other one may come back."""

STRETCH_S = 5e-4
"""How long a session that is alone may keep this thread before it looks for others."""

PIECE = 512
"""Commands of it before the clock is looked at."""


class FairShare:
    """Shares the device among sessions. Device-handle thread only. `perform` runs frames that are no commands."""

    def __init__(
        self, device: DeviceContext, arrivals: Arrivals, perform: Callable[[DeviceSession, Frame], None]
    ) -> None:
        self._device = device
        self._tracks = device.tracks
        self._arrivals = arrivals
        self._perform = perform
        self.backlogs: dict[int, Backlog] = {}
        self.slicing = TimeSlices(device, self._advance, self._rest)
        self._active = self.slicing.active
        self.meter = self.slicing.meter
        self._shared_at = 0.0
        """When more than one had work last."""
        self.turns = ProcessTurns(device.outbox, self.meter.clock)
        self._more = False

    # ---- sessions and frames ----

    def open(self, session: DeviceSession) -> None:
        """A session begins."""
        self.backlogs[session.channel] = Backlog(session)

    def take(self, session: DeviceSession, frame: Frame) -> None:
        """A frame has arrived; it is looked at when all before it have been."""
        backlog = self.backlogs[session.channel]
        if frame.kind == CLOSE:
            backlog.closing = True
        elif self.slicing.on and frame.kind == BATCH:
            self._arrivals.look_ahead(backlog, frame)
        backlog.frames.append(frame)
        self.slicing.stir(backlog)
        if not backlog.active:
            self._wake(backlog)

    def alone(self, session: DeviceSession) -> Backlog | None:
        """The session's, where nobody else has work, all that it has sent has been looked at, and no more than that
        decides what it may give the device."""
        active = self._active
        if self.slicing.on or self.turns.on or len(active) > 1:
            return None
        backlog = self.backlogs[session.channel]
        if (active and not backlog.active) or backlog.ended or backlog.waiting:
            return None
        return backlog

    def went(self, backlog: Backlog, since: float | None = None) -> None:
        """One that is `alone` has given the device what it had; `since`: that has been at it since then."""
        if not backlog.active:
            backlog.active = True
            self._active[backlog] = None
        self._alone(backlog, since)

    def came_and_went(self, backlog: Backlog, since: float, commands: int) -> None:
        """Nobody was `active`, and one that is `alone` has given the device so many commands since then, which
        are done."""
        backlog.sparse = True
        if commands:
            backlog.paid = backlog.used
            now = self.meter.spent(backlog, since)
            backlog.learn(commands, since, now)

    def last_batch(self, session: DeviceSession) -> int:
        """The number of the last batch that has been looked at, or waits and came with its number."""
        frames = self.backlogs[session.channel].frames
        return max(session.last_seq, *(frame.id for frame in frames if frame.kind == BATCH), 0)

    def behind(self, session: DeviceSession, frame: Frame) -> bool:
        """Whether a message of an upload had to be put behind commands that wait."""
        behind = self.backlogs[session.channel].behind(frame)
        if behind:
            self.take(session, frame)
        return behind

    def cancel(self, session: DeviceSession, call: int) -> bool:
        """Forgets a single call that nobody has looked at; whether there was one."""
        backlog = self.backlogs[session.channel]
        self.slicing.stir(backlog)
        return backlog.withdraw(call)

    def gone(self, session: DeviceSession) -> None:
        """All that a session which was closed had on the device is done."""
        self.meter.forget(self.backlogs.pop(session.channel))

    def pumped(self, session: DeviceSession) -> None:
        """Commands of it that had been put off were tried."""
        backlog = self.backlogs[session.channel]
        if backlog.active:
            if self.slicing.on and not backlog.wanting and backlog.asks:
                self.slicing.stir(backlog)
                self._more = True
        elif backlog.asks or (
            backlog.collectives(self._tracks) if self.slicing.on else backlog.under_way(self._tracks)
        ):
            self._wake(backlog)
            self.slicing.stir(backlog)
            self._more = True

    def _wake(self, backlog: Backlog) -> None:
        if backlog.active or backlog.ended:
            return
        backlog.active = True
        self._active[backlog] = None
        if self.slicing.on:
            backlog.bar(self._tracks)
        elif len(self._active) > 1:
            for other in tuple(self._active):  # it may have come to its end since anybody looked
                for track in other.busy_tracks():
                    self._tracks.reap(track)
            self.settle(False)
            if len(self._active) > 1:
                self._share()

    def _rest(self, backlog: Backlog) -> None:
        """It has nothing waiting and nothing on the device."""
        if backlog.metered:
            self._unmeter(backlog)
        backlog.active = False
        backlog.sparse = True
        del self._active[backlog]

    # ---- the loop ----

    @property
    def active(self) -> bool:
        """Whether anybody has something waiting, or work on the device, as far as it is known."""
        return bool(self._active) or self.meter.busy

    @property
    def several(self) -> bool:
        """Whether work goes in slices."""
        return self.slicing.on

    @property
    def more(self) -> bool:
        """Whether something could be done at once."""
        return self._more or self.slicing.more

    def pump(self) -> None:
        """Runs what may run now, for a short while."""
        self._more = self.slicing.more = False
        if self.slicing.on and not self._go_on_sharing():
            self._share_no_more()
        if self.slicing.on:
            self.slicing.run(self.turns.allowed and not self._tracks.held)
        elif self._active:
            self._alone(next(iter(self._active)))
        self.turns.tell(self._active)

    def settle(self, idle: bool) -> None:
        """Work may be done. `idle`: the loop is about to sleep, and has to be told when it is."""
        if self.slicing.on:
            if idle and not (self._more or self.slicing.more):
                self.slicing.close_all()
            return
        for backlog in tuple(self._active):
            if backlog.waiting:
                continue
            undone = backlog.undone(self._tracks)
            if not undone:
                self._rest(backlog)
            elif idle and not any(track.pending for track in undone):
                for track in undone:
                    self._tracks.on_complete(track, _noticed)

    def sleep(self, asleep: float | None) -> float | None:
        """How long the loop may sleep, where it would otherwise so long."""
        if self._more or self.slicing.more:
            return 0.0
        if self.slicing.on:
            asleep = self.slicing.sleep(asleep)
        else:
            for backlog in self._active:
                if backlog.standstill.stream is not None:
                    asleep = sooner(backlog.standstill.left(time.perf_counter()), asleep)
        return self.meter.poll(self.turns.sleep(asleep))

    def _advance(self, backlog: Backlog, commands: int) -> bool:
        """Works off up to so many commands; whether there are more."""
        backlog.left = commands
        while backlog.left > 0:
            if backlog.work is None:
                if not backlog.frames:
                    return False
                frame = backlog.frame = backlog.frames.popleft()
                handler = self._arrivals.handlers.get(frame.kind)
                if handler is None:
                    backlog.left -= 1
                    if frame.kind == CLOSE:
                        self._leave(backlog)
                    self._perform(backlog.session, frame)
                    continue
                backlog.work = handler(backlog, frame)
            if next(backlog.work, _END) is _END:
                backlog.work = None
            elif (backlog.need or backlog.standstill.stream) and backlog.closing:
                self._abandon(backlog)
            else:
                return True
        return backlog.waiting

    def _leave(self, backlog: Backlog) -> None:
        self.slicing.leave(backlog)
        backlog.ended = True
        backlog.active = False
        self._active.pop(backlog, None)

    def _abandon(self, backlog: Backlog) -> None:
        """The session ends, and what would have to wait for a turn before that does not run."""
        refusal = Refusal(Reason.SESSION_EXPIRED, "the session was closed before the command ran")
        error = commands_pb2.Result(error=refusal.to_status()).SerializeToString()
        for frame in backlog.drop():
            if frame.kind == Kind.CALL:
                self._device.outbox.put(Kind.RESULT, error, channel=backlog.session.channel, id=frame.id)
            elif frame.kind != BATCH:  # somebody may wait for its answer; what comes of it ends with the session
                self._perform(backlog.session, frame)

    # ---- one session alone ----

    def _alone(self, backlog: Backlog, since: float | None = None) -> None:
        if backlog.waiting and not backlog.stands_still(self._tracks):
            backlog.room, backlog.launches = NEVER, True
            if self._advance(backlog, PIECE):
                until = self.meter.clock() + STRETCH_S
                while backlog.standstill.stream is None and self._advance(backlog, PIECE):
                    if self.meter.clock() > until:
                        self._more = True
                        break
        if backlog.active and not backlog.metered:
            if backlog.under_way(self._tracks):
                backlog.metered = True
                backlog.since = self.meter.begin(backlog, since)
                backlog.paid = backlog.used
                backlog.counted = backlog.done()
            elif not backlog.waiting:
                self._rest(backlog)

    def _unmeter(self, backlog: Backlog) -> None:
        """It has come to its end, or goes on in slices."""
        backlog.metered = False
        self.meter.end(backlog)
        backlog.learn(backlog.done() - backlog.counted, backlog.since, self.meter.clock())

    # ---- several ----

    def _share(self) -> None:
        """From now on in slices."""
        self.slicing.on = True
        self._shared_at = self.meter.advance()
        for backlog in self.backlogs.values():
            alone = backlog.metered
            if alone:
                self._unmeter(backlog)
            self.slicing.begin(backlog, had_it_alone=alone)

    def _go_on_sharing(self) -> bool:
        now = self.meter.clock()
        if len(self._active) > 1 or self.turns.bounded:
            self._shared_at = now
        return now - self._shared_at <= LINGER_S

    def _share_no_more(self) -> None:
        """The one that is left goes on alone."""
        for backlog in self.backlogs.values():
            self.slicing.end(backlog)
        self.slicing.on = False
        self._device.kick(None)
        self.settle(False)

    def turn(self, frame: Frame) -> None:
        """The front says whether this process may give the device work; see `process_turns`."""
        self.turns.heard(frame)
        if self.turns.bounded and not self.slicing.on:
            self._share()


_END = object()


def _noticed() -> None:
    """For a mark that has only to be noticed."""
