"""Ordering of random programs over random tracks, checked against a brute-force happens-before model.

The model only sees the waits: each command knows, for every track, the position that the track must have reached before
the command can run. A program is in order if every pair of conflicting commands (RAW, WAR, WAW) is ordered by that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.device.streams.ordering import Ordering, Usage

TRACKS = 4
BUFFERS = 4

Step = tuple[int, set[int], set[int]]
"""(track, buffers that are written, buffers that are read)"""

steps = st.lists(
    st.tuples(
        st.integers(0, TRACKS - 1),
        st.sets(st.integers(0, BUFFERS - 1), max_size=2),
        st.sets(st.integers(0, BUFFERS - 1), max_size=2),
    ),
    max_size=40,
)


def conflict(one: Step, other: Step) -> bool:
    return bool(one[1] & (other[1] | other[2]) or other[1] & one[2])


class Planner:
    """Uses `Ordering` as the daemon does, for programs of numbers."""

    def __init__(self, tracks: int = TRACKS, buffers: int = BUFFERS) -> None:
        self.ordering = Ordering()
        for _ in range(tracks):
            self.ordering.add_track()
        self.usages = [Usage() for _ in range(buffers)]

    def plan(self, step: Step) -> list[int]:
        track, writes, reads = step
        return self.ordering.plan(track, [self.usages[b] for b in writes], [self.usages[b] for b in reads - writes])


class HappensBefore:
    """Vector clocks: `known[track][other]` is the position that `other` must have reached before the track's next
    command."""

    def __init__(self, tracks: int = TRACKS) -> None:
        self.at = [0] * tracks
        self.known = [[0] * tracks for _ in range(tracks)]
        self.history: list[list[list[int]]] = [[[0] * tracks] for _ in range(tracks)]

    def wait(self, track: int, origin: int) -> None:
        """Records an event on `origin` now, which covers all commands submitted to `origin`, and all that it waited
        for."""
        mine = self.known[track]
        mine[origin] = max(mine[origin], self.at[origin])
        for other, position in enumerate(self.known[origin]):
            mine[other] = max(mine[other], position)

    def command(self, track: int) -> int:
        """Adds a command to the track, and returns its position."""
        self.at[track] += 1
        return self.at[track]

    def before(self, earlier: tuple[int, int], track: int) -> bool:
        """Returns True if the command at (track, position) ends before the next command of `track` can run."""
        origin, position = earlier
        return origin == track or self.known[track][origin] >= position


@settings(max_examples=400)
@given(steps)
def test_every_conflict_is_ordered_and_no_pair_is_fenced_twice(program: list[Step]) -> None:
    planner, model = Planner(), HappensBefore()
    places: list[tuple[int, int]] = []
    fenced: dict[tuple[int, int], int] = {}
    for number, step in enumerate(program):
        track = step[0]
        earlier = [index for index in range(number) if conflict(program[index], step)]
        waits = planner.plan(step)
        assert len(waits) == len(set(waits)), "a pair is fenced once per command"
        assert track not in waits
        needed = {places[index][0] for index in earlier} - {track}
        assert set(waits) <= needed, "no wait for a track that did not use these buffers"
        for origin in waits:
            newest = max(places[index][1] for index in earlier if places[index][0] == origin)
            assert fenced.get((track, origin), 0) < newest, "an earlier wait covered it"
            fenced[track, origin] = model.at[origin]
            model.wait(track, origin)
        for index in earlier:
            assert model.before(places[index], track), (program[: number + 1], index)
        places.append((track, model.command(track)))


@settings(max_examples=400)
@given(st.lists(st.tuples(steps.map(lambda program: program[:6]), st.integers(0, TRACKS - 1)), max_size=8))
def test_work_that_is_known_to_be_done_needs_no_wait(parts: list[tuple[list[Step], int]]) -> None:
    """Between the parts of the program, the host is notified that all work of one track is done."""
    planner, model = Planner(), HappensBefore()
    program: list[Step] = []
    places: list[tuple[int, int]] = []
    done = [0] * TRACKS
    for part, complete in parts:
        for step in part:
            earlier = [places[index] for index, other in enumerate(program) if conflict(other, step)]
            for origin in planner.plan(step):
                assert any(place[0] == origin and place[1] > planner.ordering.done[origin] for place in earlier)
                model.wait(step[0], origin)
            assert all(model.before(place, step[0]) or place[1] <= done[place[0]] for place in earlier)
            program.append(step)
            places.append((step[0], model.command(step[0])))
        planner.ordering.done[complete] = model.at[complete]
        # The work that the track waited for is done as well, which the host does not know.
        known = [*model.known[complete]]
        known[complete] = model.at[complete]
        done = [max(position, other) for position, other in zip(done, known, strict=True)]


@dataclass
class Device:
    """A device that runs its tracks as far out of step as the waits allow; `choose` selects the next track."""

    queues: list[list[tuple[str, object]]] = field(default_factory=lambda: [[] for _ in range(TRACKS)])

    def run(self, choose: list[int]) -> list[int]:
        """Runs all queues, and returns the commands in the order in which they ran."""
        reached: set[int] = set()
        ran: list[int] = []
        turn = 0
        while any(self.queues):
            able = [
                track
                for track, queue in enumerate(self.queues)
                if queue and not (queue[0][0] == "wait" and queue[0][1] not in reached)
            ]
            assert able, "circular wait"
            track = able[choose[turn % len(choose)] % len(able)]
            turn += 1
            what, value = self.queues[track].pop(0)
            if what == "event":
                reached.add(value)  # type: ignore[arg-type]
            elif what == "command":
                ran.append(value)  # type: ignore[arg-type]
        return ran


@settings(max_examples=200)
@given(steps, st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_conflicting_commands_run_in_order_of_submission(program: list[Step], choose: list[int]) -> None:
    """Runs the plan on a device that chooses the worst order that the waits allow."""
    planner, device = Planner(), Device()
    for number, step in enumerate(program):
        for origin in planner.plan(step):
            event = (number, origin)
            device.queues[origin].append(("event", event))
            device.queues[step[0]].append(("wait", event))
        device.queues[step[0]].append(("command", number))
    ran = device.run(choose)
    place = {number: position for position, number in enumerate(ran)}
    for later, step in enumerate(program):
        for earlier in range(later):
            if conflict(program[earlier], step):
                assert place[earlier] < place[later], (program, ran)


@settings(max_examples=100)
@given(steps)
def test_commands_of_one_track_need_no_waits(program: list[Step]) -> None:
    """Streams that share a track are in order without waits."""
    planner = Planner(tracks=1)
    for _, writes, reads in program:
        assert planner.plan((0, writes, reads)) == []


def test_a_pair_is_fenced_once_per_position() -> None:
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x, y = Usage(), Usage()
    assert ordering.plan(a, [x, y]) == []
    assert ordering.plan(b, [], [x]) == [a]
    assert ordering.plan(b, [], [y]) == [], "the wait for x covered y"
    assert ordering.plan(a, [y]) == [b]


def test_an_in_place_write_after_a_sync_is_waited_for() -> None:
    """CubeCL recorded a buffer's position only at its allocation, and missed this case."""
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x = Usage()
    ordering.plan(a, [x])
    ordering.plan(b, [], [x])
    ordering.plan(a, [x])
    assert ordering.plan(b, [], [x]) == [a]


def test_a_write_waits_for_every_read_before_it() -> None:
    ordering = Ordering()
    a, b, c, d = (ordering.add_track() for _ in range(4))
    x = Usage()
    ordering.plan(a, [x])
    for reader in (b, c):
        assert ordering.plan(reader, [], [x]) == [a]
    assert set(ordering.plan(d, [x])) == {a, b, c}, "write after read"
    assert ordering.plan(a, [x]) == [d], "the write of d was ordered after the earlier reads"


def test_readers_do_not_wait_for_each_other() -> None:
    ordering = Ordering()
    a, b, c = (ordering.add_track() for _ in range(3))
    x = Usage()
    ordering.plan(a, [x])
    for _ in range(3):
        ordering.plan(b, [], [x])
        ordering.plan(c, [], [x])
    assert ordering.plan(b, [], [x]) == []
    assert ordering.plan(c, [], [x]) == []


def test_a_buffer_named_as_both_is_written() -> None:
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x = Usage()
    ordering.plan(a, [x], [x])
    assert ordering.plan(b, [], [x]) == [a]
    ordering.plan(b, [x], [x])
    assert ordering.plan(a, [x]) == [b]
    assert x.tracks() == {a: ordering.position(a)}, "no read remains"


def test_wait_covers_earlier_work_of_the_origin_only() -> None:
    """The event is recorded when the wait is made, not when the buffer was used."""
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x, y, z = Usage(), Usage(), Usage()
    ordering.plan(a, [x])
    ordering.plan(a, [y])
    assert ordering.plan(b, [x]) == [a], "covers the write of y, which followed that of x"
    assert ordering.plan(b, [y]) == []
    ordering.plan(a, [z])
    assert ordering.plan(b, [z]) == [a], "the write followed the event"


def test_a_step_without_buffers_is_fenced_like_any_other() -> None:
    """A track that waited for an event has a new position, although it used no buffer."""
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    ordering.plan(a, [Usage()])
    assert ordering.fence(b, a, ordering.position(a))
    assert not ordering.fence(b, a, ordering.position(a))
    assert ordering.plan(a, ()) == []
    assert ordering.fence(b, a, ordering.position(a))
    assert not ordering.fence(a, a, ordering.position(a)), "never for itself"


def test_state_is_bounded_by_the_number_of_tracks() -> None:
    ordering = Ordering()
    tracks = [ordering.add_track() for _ in range(16)]
    usages = [Usage() for _ in range(8)]
    for turn in range(20_000):
        usage, other = usages[turn % 8], usages[(turn * 5 + 1) % 8]
        ordering.plan(tracks[turn * 7 % 16], [usage] if turn % 11 == 0 else [], [other])
    view = ordering.inspect()
    assert view.tracks == 16 and 0 < view.fenced_pairs <= 16 * 15
    assert all(len(usage.reads or ()) <= 16 for usage in usages)


def test_tracks_lists_every_user() -> None:
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x = Usage()
    assert x.tracks() == {}
    ordering.plan(a, [x])
    ordering.plan(b, [], [x])
    assert set(x.tracks()) == {a, b}
