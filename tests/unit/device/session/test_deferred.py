"""Deferred commands: conflicting commands run in order, unrelated commands are not delayed, and each command runs
once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.device.session.deferred import Deferred


class Command:
    def __init__(
        self, number: int, writes: Sequence[int] = (), reads: Sequence[int] = (), barrier: bool = False
    ) -> None:
        self.number = number
        self.writes = tuple(writes)
        self.reads = tuple(reads)
        self.barrier = barrier
        self.ready = True
        self.log: list[int] = []
        self.scheduled = False
        self.may_announce = False
        self.asked = 0

    def step(self) -> bool:
        if self.ready:
            self.log.append(self.number)
        return self.ready

    def announce(self, ahead: Sequence[Command]) -> None:
        self.asked += 1
        self.scheduled = self.may_announce

    def conflicts(self, other: Command) -> bool:
        if self.barrier or other.barrier:
            return True
        mine, theirs = set(self.writes), set(other.writes)
        return bool(mine & (theirs | set(other.reads)) or theirs & set(self.reads))


keys = st.sets(st.integers(0, 4), max_size=2)
commands = st.lists(
    st.tuples(keys, keys, st.sampled_from([False] * 9 + [True]), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=300)
@given(commands, st.data())
def test_order_liveness_and_freedom(program: list[tuple[set[int], set[int], bool, bool]], data: st.DataObject) -> None:
    deferred = Deferred()
    log: list[int] = []
    made: list[Command] = []
    for number, (writes, reads, barrier, ready) in enumerate(program):
        command = Command(number, sorted(writes), sorted(reads - writes), barrier)
        command.ready = ready
        command.log = log
        made.append(command)
        deferred.submit(command)
        free = not any(other.number not in log and other.conflicts(command) for other in made[:number])
        assert (number in log) == (ready and free), "runs immediately exactly if nothing blocks it"
        if data.draw(st.booleans()):
            waiting = [each for each in made if not each.ready]
            if waiting:
                data.draw(st.sampled_from(waiting)).ready = True
            deferred.pump()
    for command in made:
        command.ready = True
    deferred.pump()
    assert sorted(log) == list(range(len(program))), "each exactly once"
    assert len(deferred) == 0
    place = {number: position for position, number in enumerate(log)}
    for later in made:
        for earlier in made[: later.number]:
            if earlier.conflicts(later):
                assert place[earlier.number] < place[later.number]


def test_cost_of_many_deferred_commands_is_linear() -> None:
    deferred = Deferred()
    log: list[int] = []
    steps = 0

    class Counting(Command):
        def step(self) -> bool:
            nonlocal steps
            steps += 1
            return super().step()

    made = [Counting(number, writes=[1]) for number in range(10_000)]
    made[0].ready = False
    for command in made:
        command.log = log
        deferred.submit(command)
    for _ in range(100):
        deferred.pump()
    made[0].ready = True
    deferred.pump()
    assert log == list(range(10_000))
    assert steps < 10_200


def test_clear_returns_all_commands_in_order() -> None:
    deferred = Deferred()
    made = [Command(number, writes=[1]) for number in range(5)]
    made[0].ready = False
    for command in made:
        deferred.submit(command)
    assert [command.number for command in deferred.clear()] == [0, 1, 2, 3, 4]
    assert len(deferred) == 0
    assert deferred.submit(Command(9, writes=[1]))


def test_command_made_ready_by_another_runs_in_the_same_pump() -> None:
    deferred = Deferred()
    log: list[int] = []
    second = Command(1, writes=[2])

    class First(Command):
        def step(self) -> bool:
            if self.ready:
                second.ready = True
                deferred.pump()
            return super().step()

    first = First(0, writes=[1])
    first.ready = second.ready = False
    for command in (first, second):
        command.log = log
        deferred.submit(command)
    first.ready = True
    deferred.pump()
    assert log == [0, 1]


def test_announcements_end_at_the_first_command_that_cannot_be_announced() -> None:
    deferred = Deferred()
    made = [Command(number, writes=[1]) for number in range(6)]
    for command in made:
        command.ready = False
        command.may_announce = command.number != 3
    made[0].scheduled = True  # waits for the answer to its own announcement
    for command in made:
        deferred.submit(command)
    assert [command.asked for command in made] == [0, 1, 1, 1, 0, 0], (
        "not beyond the command that could not be announced"
    )
    alone = Command(9, writes=[2])
    deferred.submit(alone)
    assert alone.asked == 0, "one with no predecessor asks when it runs"
