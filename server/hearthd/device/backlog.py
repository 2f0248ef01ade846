"""What a session has sent that has not been looked at yet, and what of its work is on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from hearth_proto.frames import Frame, Kind
from hearthd.device.policy.slices import Pace
from hearthd.device.tables import Session
from hearthd.device.tracks import NEVER, Track, Tracks

NOTHING, COPY, LAUNCH = range(3)
"""What a command gives the device. Copies go beside the kernels of others; launches are what turns are about."""

NEEDS = {
    "launches": LAUNCH,
    "launch": LAUNCH,
    "launch_graph": LAUNCH,
    "launch_prepared": LAUNCH,
    "dispatch": LAUNCH,
    "write": COPY,
    "read": COPY,
    "copy": COPY,
    "fill": COPY,
    "checkpoint": COPY,
}


class Slice:
    """Some commands that a session gave the device in one go; `count` of them when it is closed."""

    __slots__ = ("base", "count", "late", "most", "turn")

    def __init__(self, most: int, turn: bool, base: dict[Track, int]) -> None:
        self.most = most
        self.turn = turn
        """Whether it keeps the turns of others waiting; else it goes beside theirs."""
        self.base = base
        """What each track had been given before."""
        self.count = 0
        self.late = False
        """Whether it has taken so long that nobody waits for it any more."""

    def given(self, tracks: Iterable[Track]) -> int:
        """How many commands so far, of those that these tracks were given."""
        base = self.base
        return sum(track.given - base.get(track, track.since) for track in tracks)


class Backlog:
    """One session's. Belongs to the device-handle thread."""

    __slots__ = (
        "active", "closing", "counted", "ended", "frame", "frames", "late_at", "launches", "left", "metered", "need",
        "open", "pace", "paid", "room", "session", "slices", "sparse", "stirred", "transfers", "used",
        "wanting", "work",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session = session
        self.frames: deque[Frame] = deque()
        self.frame: Frame | None = None
        """The one that is being worked off."""
        self.work: Iterator[None] | None = None
        """What is left of it."""
        self.need = NOTHING
        """What its next command gives the device, where it had to stop before it."""
        self.left = 0
        """Commands of any kind that it may run before others are looked after."""
        self.room = 0
        """Those among them that give the device work."""
        self.launches = False
        """Whether these may be launches."""
        self.transfers: set[int] = set()
        """Uploads with messages among the frames."""
        self.closing = False
        """Whether the end of the session is among the frames."""
        self.ended = False
        self.active = False
        """Whether it has something waiting, or work on the device."""
        self.wanting = False
        """Whether it stands in the order of turns."""
        self.stirred = False
        """Whether something has come or gone since it was looked at."""
        self.sparse = True
        """Whether all that it had went at once, when it last had something."""
        self.metered = False
        """Whether its time is counted though it is in no slice."""
        self.open: Slice | None = None
        self.slices: deque[Slice] = deque()
        """Those that are on the device, oldest first."""
        self.late_at = 0.0
        """When the oldest slice has taken too long."""
        self.pace = Pace()
        self.used = 0.0
        """Seconds of device time."""
        self.paid = 0.0
        """What it had used when its last slice was done, or the first of a row begun."""
        self.counted = 0
        """Commands that were done then, where it is in no slice."""

    @property
    def session_id(self) -> str:
        return self.session.id

    def tracks(self) -> list[Track]:
        """Those of its streams, each once."""
        streams = self.session.streams.items.values()
        return list({stream.track: None for stream in streams})

    def busy_tracks(self) -> list[Track]:
        """Those that may have work of it, also its part in collectives."""
        streams = self.session.streams.items.values()
        used = {stream.track: None for stream in streams}
        used.update({stream.collectives: None for stream in streams if stream.collectives is not None})
        return list(used)

    @property
    def waiting(self) -> bool:
        """Whether there are commands that have not run."""
        return self.work is not None or bool(self.frames)

    @property
    def asks(self) -> int:
        """What the next of its waiting commands need: of those that are in order, and those that were put off."""
        need = self.need if self.work is not None else NOTHING
        for track in self.tracks():
            if track.asked > need:
                need = LAUNCH if track.asked > 1 else COPY
        return need

    @property
    def in_turn(self) -> bool:
        """Whether the turns of others wait for it."""
        return (self.open is not None and self.open.turn) or any(each.turn and not each.late for each in self.slices)

    @property
    def on_device(self) -> int:
        """Commands in slices that are not done and not late."""
        return sum(each.count for each in self.slices if not each.late)

    def may(self, need: int) -> bool:
        """Whether the next command may give the device such work now; else it stops before it."""
        if need == NOTHING or (self.room > 0 and (self.launches or need != LAUNCH)):
            self.need = NOTHING
            return True
        self.need = need
        return False

    def bar(self, tracks: Tracks) -> None:
        """Nothing goes to the device from now on."""
        self.room = 0
        for track in self.tracks():
            asked = track.asked
            tracks.bar(track, True, 0)
            track.asked = asked

    def let(self, tracks: Tracks, most: int = NEVER, launches: bool = True) -> None:
        """So many commands may go from now on."""
        self.room = most
        self.launches = launches
        for track in self.tracks():
            tracks.bar(track, not launches, most)

    def done(self, tracks: Tracks) -> int:
        """How many commands of it are known to be done."""
        position = tracks.ordering.position
        return sum(
            track.given - track.since - (position(track.index) - track.done_position) for track in self.busy_tracks()
        )

    def undone(self, tracks: Tracks) -> list[Track]:
        """Tracks with work that is not known to be done."""
        return [track for track in self.busy_tracks() if not tracks.done(track)]

    def under_way(self, tracks: Tracks) -> bool:
        """Whether the device has work of it that is not known to be done."""
        return not all(tracks.done(track) for track in self.busy_tracks())

    # ---- frames that will not be looked at ----

    def behind(self, frame: Frame) -> bool:
        """Whether a message of an upload has to stay behind commands that wait: its Write may be among them."""
        if not self.waiting:
            self.transfers.clear()
            return False
        session = self.session
        if frame.id not in self.transfers and (frame.id in session.uploads or frame.id in session.over):
            return False
        self.transfers.add(frame.id)
        return True

    def withdraw(self, call: int) -> bool:
        """Forgets a single call that waits here; whether one did."""
        if self.work is not None and _is_call(self.frame, call):
            self.work = None
            self.need = NOTHING
            return True
        for frame in self.frames:
            if _is_call(frame, call):
                self.frames.remove(frame)
                return True
        return False

    def drop(self) -> list[Frame]:
        """Forgets the frame that it stands before, and all up to the end of the session."""
        dropped = [self.frame] if self.frame is not None else []
        self.work = None
        self.need = NOTHING
        while self.frames and self.frames[0].kind != Kind.CLOSE:
            dropped.append(self.frames.popleft())
        return dropped


def _is_call(frame: Frame | None, call: int) -> bool:
    return frame is not None and frame.kind == Kind.CALL and frame.id == call
