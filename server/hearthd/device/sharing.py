"""Sessions of one device process take turns on the device.

While one session alone has work, it goes to the device as it arrives. As soon as a second one has, each gives the
device only slices of about a millisecond (`policy.slices`), with a mark behind each that tells what it took:

- whose turn it is says deficit round robin over what the slices took (`hearthd.fair`). The slices of a turn keep those
  of other turns waiting, so that they can be told apart, and nobody's work queues behind a flood;
- a session that had nothing under way and has credit left goes at once, beside whoever has the turn: who launches and
  waits is not held up by the turns of others. So do copies, for which the device has engines of their own;
- a slice that takes too long keeps nobody waiting any more: it may hang, or wait for its own host.

Commands that give the device nothing run as they come, and collectives when the front says so, whoever has the turn:
their peers count on it. What one session sends stays in order; what waits is not acknowledged, so that its client stops
sending.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.arrivals import Arrivals
from hearthd.device.backlog import COPY, Backlog, Slice
from hearthd.device.context import Device
from hearthd.device.meter import Meter
from hearthd.device.policy.slices import AHEAD, SLICE_S
from hearthd.device.tables import Session
from hearthd.device.tracks import NEVER, Track
from hearthd.fair import Fair

QUANTUM_S = 3e-3
"""Device time that a session of average weight gets each round."""

PATIENCE_S = 0.1
"""How long a slice may take before others are let go beside it."""

LINGER_S = 0.25
"""How long a session that is alone again still goes in slices: the other one may come back."""

STRETCH_S = 2e-4
"""How long one session may keep this thread while others have work."""

SHORT_STRETCH_S = 5e-5
"""The same while somebody waits for the end of something short."""

ALONE_STRETCH_S = 5e-4

IDLE_S = 2e-3
"""How long a process has nothing to do before the front is told, unless another waits for it."""

PIECE = 64
"""Commands before the clock is looked at; for one session alone:"""

ALONE_PIECE = 512


class Sharing:
    """Belongs to the device-handle thread. `perform` runs frames that are no commands."""

    def __init__(self, device: Device, arrivals: Arrivals, perform: Callable[[Session, Frame], None]) -> None:
        self._device = device
        self._tracks = device.tracks
        self._arrivals = arrivals
        self._perform = perform
        self.meter: Meter[Backlog] = Meter(device.outbox, device.telemetry, self._charge)
        self._fair: Fair[Backlog] = Fair(QUANTUM_S)
        self._backlogs: dict[int, Backlog] = {}
        self._active: dict[Backlog, None] = {}
        self._shared = False
        self._shared_at = 0.0
        """When more than one had work last."""
        self._holder: Backlog | None = None
        """The last that was given a turn."""
        self._turns = False
        """Whether the front says when this process may give the device work; see `hearthd.front.credits`."""
        self._allowed = True
        self._awaited = False
        """Whether another process waits for this one."""
        self._told: int | None = None
        self._idle_since: float | None = None
        self.more = False
        """Whether there is something that could be done at once."""

    # ---- sessions and frames ----

    def open(self, session: Session) -> None:
        """A session begins."""
        self._backlogs[session.channel] = Backlog(session)

    def take(self, session: Session, frame: Frame) -> None:
        """A frame has arrived; it is looked at when all before it have been."""
        backlog = self._backlogs[session.channel]
        if frame.kind == Kind.CLOSE:
            backlog.closing = True
        backlog.frames.append(frame)
        backlog.stirred = True
        self._wake(backlog)

    def behind(self, session: Session, frame: Frame) -> bool:
        """Whether a message of an upload had to be put behind commands that wait."""
        behind = self._backlogs[session.channel].behind(frame)
        if behind:
            self.take(session, frame)
        return behind

    def cancel(self, session: Session, call: int) -> bool:
        """Forgets a single call that nobody has looked at; whether there was one."""
        backlog = self._backlogs[session.channel]
        backlog.stirred = True
        return backlog.withdraw(call)

    def gone(self, session: Session) -> None:
        """All that a session which was closed had on the device is done."""
        self.meter.forget(self._backlogs.pop(session.channel))

    def pumped(self, session: Session) -> None:
        """Commands of it that had been put off were tried."""
        backlog = self._backlogs[session.channel]
        backlog.stirred = True
        if backlog.active:
            self.more |= self._shared and not backlog.wanting and bool(backlog.asks)
        elif backlog.asks or backlog.under_way(self._tracks):
            self._wake(backlog)
            self.more = True

    def _wake(self, backlog: Backlog) -> None:
        if backlog.active or backlog.ended:
            return
        backlog.active = True
        self._active[backlog] = None
        if self._shared:
            backlog.bar(self._tracks)
        elif len(self._active) > 1:
            for other in tuple(self._active):  # it may have come to its end since anybody looked
                for track in other.busy_tracks():
                    self._tracks.reap(track)
            self.settle(False)
            if len(self._active) > 1:
                self._begin()

    def _rest(self, backlog: Backlog) -> None:
        """It has nothing waiting and nothing on the device."""
        if backlog.metered:
            self._unmeter(backlog)
        backlog.active = False
        backlog.sparse = True
        del self._active[backlog]

    # ---- the loop ----

    def pump(self) -> None:
        """Runs what may run now, for a short while."""
        self.more = False
        if self._shared:
            self._share()
        elif self._active:
            self._alone(next(iter(self._active)))
        if self._turns:
            self._tell()

    def settle(self, idle: bool) -> None:
        """Work may be done. `idle`: the loop is about to sleep, and has to be told when it is."""
        if self._shared:
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
        if self.more:
            return 0.0
        if self._shared:
            now = self.meter.advance()
            for backlog in self._active:
                if backlog.slices and not backlog.slices[-1].late:
                    left = max(backlog.late_at - now, 0.0)
                    asleep = left if asleep is None else min(asleep, left)
        if self._idle_since is not None:
            left = max(self._idle_since + IDLE_S - self.meter.clock(), 0.0)
            asleep = left if asleep is None else min(asleep, left)
        return self.meter.poll(asleep)

    def turn(self, frame: Frame) -> None:
        """The front says whether this process may give the device work (1), that it is alone on its device again (2),
        or that others wait for it (4)."""
        self._allowed = bool(frame.flags & 1)
        self._turns = not frame.flags & 2
        self._awaited = bool(frame.flags & 4)
        self._told = self._idle_since = None
        if self._bounded and not self._shared:
            self._begin()

    @property
    def _bounded(self) -> bool:
        """Whether only so much may be on the device as can be waited for."""
        return self._turns and (self._awaited or not self._allowed)

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
                    self._other(backlog, frame)
                    continue
                backlog.work = handler(backlog, frame)
            if next(backlog.work, _END) is _END:
                backlog.work = None
            elif backlog.need and backlog.closing:
                self._abandon(backlog)
            else:
                return True
        return backlog.waiting

    def _other(self, backlog: Backlog, frame: Frame) -> None:
        if frame.kind == Kind.CLOSE:
            if backlog.open is not None:
                self._close(backlog)
            backlog.ended = True
            backlog.active = False
            self._active.pop(backlog, None)
            self._fair.forget(backlog)
        self._perform(backlog.session, frame)

    def _abandon(self, backlog: Backlog) -> None:
        """The session ends, and what would have to wait for a turn before that does not run."""
        refusal = Refusal(Reason.SESSION_EXPIRED, "the session was closed before the command ran")
        error = commands_pb2.Result(error=refusal.to_status()).SerializeToString()
        for frame in backlog.drop():
            if frame.kind == Kind.CALL:
                self._device.outbox.put(Kind.RESULT, error, channel=backlog.session.channel, id=frame.id)

    # ---- one session alone ----

    def _alone(self, backlog: Backlog) -> None:
        if backlog.waiting:
            backlog.room, backlog.launches = NEVER, True
            until = self.meter.clock() + ALONE_STRETCH_S
            while self._advance(backlog, ALONE_PIECE):
                if self.meter.clock() > until:
                    self.more = True
                    break
        if backlog.active and not backlog.metered:
            if backlog.under_way(self._tracks):
                backlog.metered = True
                self.meter.begin(backlog)
                backlog.paid, backlog.counted = backlog.used, backlog.done(self._tracks)
            elif not backlog.waiting:
                self._rest(backlog)

    def _unmeter(self, backlog: Backlog) -> None:
        """It has come to its end, or goes on in slices."""
        backlog.metered = False
        self.meter.end(backlog)
        backlog.pace.learn(backlog.done(self._tracks) - backlog.counted, backlog.used - backlog.paid)

    # ---- several ----

    def _begin(self) -> None:
        """From now on in slices; what is on the device counts as one."""
        self._shared = True
        self._shared_at = self.meter.advance()
        for backlog in self._backlogs.values():
            backlog.bar(self._tracks)
            backlog.sparse = not backlog.metered
            if backlog.metered:
                self._unmeter(backlog)
                self._found(backlog, turn=True)

    def _end(self) -> None:
        """The one that is left goes on alone."""
        self._shared = False
        self._fair = Fair(QUANTUM_S)
        for backlog in self._backlogs.values():
            if backlog.open is not None:
                self._close(backlog)
            backlog.let(self._tracks)
            backlog.wanting = False
            backlog.sparse = True
        self._device.kick(None)
        self.settle(False)

    def _share(self) -> None:
        now = self.meter.advance()
        if len(self._active) > 1 or self._bounded:
            self._shared_at = now
        elif now - self._shared_at > LINGER_S:
            self._end()
            self.pump()
            return
        free = self._allowed and not self._tracks.held
        for backlog in tuple(self._active):
            if backlog.slices and now > backlog.late_at:
                for each in backlog.slices:
                    each.late = True
            if backlog.open is not None and not free:
                self._close(backlog)
            if backlog.stirred and backlog.open is None:
                self._look(backlog)
        if free:
            self._give_all()

    def _look(self, backlog: Backlog) -> None:
        """Runs what gives the device nothing, and lines up for the rest."""
        backlog.stirred = False
        if backlog.waiting and (backlog.closing or not backlog.need):
            backlog.room = 0
            if self._advance(backlog, PIECE) and not backlog.need:
                backlog.stirred = self.more = True
        if not backlog.active:
            return
        asks = backlog.asks
        if asks and backlog not in self._fair:
            session = backlog.session
            self._fair.enter(backlog, session.tenant, session.weight, session.priority)
        if backlog in self._fair and (not asks or (asks == COPY and self._fair.credit(backlog) > 0)):
            self._fair.leave(backlog)  # copies need no turn, but credit
        backlog.wanting = bool(asks)
        if not (asks or backlog.waiting or backlog.slices):
            if backlog.under_way(self._tracks):
                self._found(backlog, turn=False)
            else:
                self._rest(backlog)

    def _give_all(self) -> None:
        holder = self._fair.turn()
        for backlog in tuple(self._active):  # those first whose commands are few
            if backlog.wanting and backlog.open is None and backlog is not holder:
                self._give_beside(backlog)
        for backlog in tuple(self._active):
            if backlog.open is None:
                continue
            if backlog.open.turn and backlog is not holder:
                self._close(backlog)
                self._look(backlog)
            else:
                self._give(backlog)
        if holder is None or holder.open is not None or not holder.wanting:
            return
        copies = holder.asks == COPY
        if not copies and self._holder is not None and self._holder is not holder and self._holder.in_turn:
            self._give_beside(holder)
            return
        limit = min(AHEAD * SLICE_S, self._fair.credit(holder))
        most = min(holder.pace.most(holder.on_device, limit), holder.pace.most(0))
        if most > 0:
            self._open(holder, most, launches=not copies, turn=not copies)

    def _give_beside(self, backlog: Backlog) -> None:
        """Lets a session go without a turn, where it has credit left and nothing under way, or only wants to copy."""
        launches = backlog.sparse
        if not launches and backlog.asks != COPY:
            return
        if self._fair.credit(backlog) <= 0:
            backlog.stirred = backlog.stirred or backlog not in self._fair  # it has to line up
            return
        most = backlog.pace.most(backlog.on_device)
        if most > 0:
            self._open(backlog, most, launches=launches, turn=False)

    # ---- slices ----

    def _open(self, backlog: Backlog, most: int, *, launches: bool, turn: bool) -> None:
        """Begins a slice."""
        self.meter.begin(backlog)
        if not backlog.slices:
            backlog.paid = backlog.used
        base = {track: track.given for track in backlog.busy_tracks()}
        backlog.open = Slice(most, turn, base)
        asked = any(track.asked for track in backlog.tracks())
        backlog.let(self._tracks, most, launches)
        backlog.need = 0
        if asked:
            backlog.session.deferred.pump()
        self._give(backlog)

    def _give(self, backlog: Backlog) -> None:
        """Fills the open slice, for a short while; closes it where it is full, or there is nothing more for it."""
        made = backlog.open
        assert made is not None
        hurry = any(other.sparse and other.slices for other in self._active if other is not backlog)
        until = self.meter.clock() + (SHORT_STRETCH_S if hurry else STRETCH_S)
        self.more = True
        while True:
            backlog.room = made.most - made.given(backlog.busy_tracks())
            if backlog.room <= 0 or not self._advance(backlog, PIECE // 4 if hurry else PIECE) or backlog.need:
                break
            if self.meter.clock() > until:
                return
        if backlog.open is made:
            self._close(backlog)
            self._look(backlog)
            backlog.sparse = backlog.sparse and not backlog.wanting

    def _close(self, backlog: Backlog) -> None:
        """Ends the open slice, with a mark behind it."""
        made, backlog.open = backlog.open, None
        assert made is not None
        backlog.bar(self._tracks)
        self._mark(backlog, made, [track for track in backlog.busy_tracks() if made.given((track,))])
        self.meter.end(backlog)

    def _found(self, backlog: Backlog, turn: bool) -> None:
        """Work is on the device that was given without a slice; it becomes one."""
        tracks = backlog.undone(self._tracks)
        position = self._tracks.ordering.position
        base = {track: track.given - position(track.index) + track.done_position for track in tracks}
        made = Slice(NEVER, turn, base)
        self._mark(backlog, made, tracks)

    def _mark(self, backlog: Backlog, made: Slice, tracks: list[Track]) -> None:
        if not tracks:
            return
        made.count = made.given(tracks)
        self._device.telemetry.slices += 1
        self.meter.begin(backlog)
        if made.turn:
            self._holder = backlog
        if not backlog.on_device:
            backlog.late_at = self.meter.advance() + PATIENCE_S
        backlog.slices.append(made)
        self._tracks.after_all(tracks, partial(self._done, backlog, made))

    def _done(self, backlog: Backlog, made: Slice) -> None:
        self.meter.end(backlog)
        backlog.slices.remove(made)
        backlog.pace.learn(made.count, backlog.used - backlog.paid)
        backlog.paid = backlog.used
        backlog.late_at = self.meter.advance() + PATIENCE_S
        backlog.stirred = True

    def _charge(self, backlog: Backlog, seconds: float) -> None:
        if self._shared:
            self._fair.charge(backlog, seconds)

    def _tell(self) -> None:
        """Tells the front whether this process has work (1), and on the device (2)."""
        state = 3 if self._active and self._allowed else 0
        if not self._allowed:
            for backlog in self._active:
                state |= int(backlog.wanting) | (2 if backlog.slices else 0)
        if state == self._told:
            self._idle_since = None
            return
        if not state and self._told and not self._awaited:  # it may go on in a moment
            now = self.meter.clock()
            if self._idle_since is None:
                self._idle_since = now
            if now - self._idle_since < IDLE_S:
                return
        self._told, self._idle_since = state, None
        self._device.outbox.put(Kind.BUSY, flags=state)


_END = object()


def _noticed() -> None:
    """For a mark that has only to be noticed."""
