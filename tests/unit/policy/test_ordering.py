"""Random programs over random tracks: whatever the waits leave free must still equal the order of submission."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.device.policy.ordering import Ordering, Usage

TRACKS = 4
BUFFERS = 4

steps = st.lists(
    st.tuples(
        st.integers(0, TRACKS - 1),
        st.sets(st.integers(0, BUFFERS - 1), max_size=2),
        st.sets(st.integers(0, BUFFERS - 1), max_size=2),
    ),
    max_size=40,
)


@dataclass
class Device:
    """A device that runs its tracks as far apart as the waits allow: `choose` picks which track goes next."""

    queues: list[list[tuple[str, object]]] = field(default_factory=lambda: [[] for _ in range(TRACKS)])

    def run(self, choose: list[int]) -> list[int]:
        """The commands in the order in which they ran."""
        reached: set[int] = set()
        ran: list[int] = []
        turn = 0
        while any(self.queues):
            able = [
                track
                for track, queue in enumerate(self.queues)
                if queue and not (queue[0][0] == "wait" and queue[0][1] not in reached)
            ]
            assert able, "the waits are a circle"
            track = able[choose[turn % len(choose)] % len(able)]
            turn += 1
            what, value = self.queues[track].pop(0)
            if what == "event":
                reached.add(value)  # type: ignore[arg-type]
            elif what == "command":
                ran.append(value)  # type: ignore[arg-type]
        return ran


@settings(max_examples=300)
@given(steps, st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_conflicting_commands_run_in_order_of_submission(
    program: list[tuple[int, set[int], set[int]]], choose: list[int]
) -> None:
    ordering = Ordering()
    for _ in range(TRACKS):
        ordering.add_track()
    usages = [Usage() for _ in range(BUFFERS)]
    device = Device()
    for number, (track, writes, reads) in enumerate(program):
        waits = ordering.plan(track, [usages[b] for b in writes], [usages[b] for b in reads - writes])
        assert len(waits) == len(set(waits)), "a pair is fenced once per command"
        assert track not in waits
        for origin in waits:
            event = (number, origin)
            device.queues[origin].append(("event", event))
            device.queues[track].append(("wait", event))
        device.queues[track].append(("command", number))
    ran = device.run(choose)
    place = {number: position for position, number in enumerate(ran)}
    for later, (_, writes, reads) in enumerate(program):
        for earlier in range(later):
            _, writes_before, reads_before = program[earlier]
            if writes & (writes_before | reads_before) or reads & writes_before:
                assert place[earlier] < place[later], (program, ran)


def test_a_pair_is_fenced_once_per_position() -> None:
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x, y = Usage(), Usage()
    assert ordering.plan(a, [x, y]) == []
    assert ordering.plan(b, [], [x]) == [a]
    assert ordering.plan(b, [], [y]) == [], "the wait for x covered y"
    assert ordering.plan(a, [y]) == [b]


def test_an_in_place_write_after_a_sync_is_waited_for() -> None:
    """CubeCL noted a buffer's position at its allocation only, and missed this one."""
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x = Usage()
    ordering.plan(a, [x])
    ordering.plan(b, [], [x])
    ordering.plan(a, [x])
    assert ordering.plan(b, [], [x]) == [a]


def test_tracks_lists_every_user() -> None:
    ordering = Ordering()
    a, b = ordering.add_track(), ordering.add_track()
    x = Usage()
    assert x.tracks() == {}
    ordering.plan(a, [x])
    ordering.plan(b, [], [x])
    assert set(x.tracks()) == {a, b}
