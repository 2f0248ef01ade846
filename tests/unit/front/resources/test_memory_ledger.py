"""The ledger of a device's memory: never grants more than there is, and leaves no memory unused while a request
waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.front.resources.memory_ledger import ANSWER_TIMEOUT, RECLAIM_BACKOFF, SLAB, MemoryLedger, ProcessLimit

TOTAL = 64 * 100
OVERHEAD = 50


@dataclass
class Process:
    """A simulated device process: observes its limit, and returns unused memory at the ledger's request."""

    limit: int | None
    used: int = 0
    unconfirmed: deque[ProcessLimit] = field(default_factory=deque)
    said: deque[tuple[int, int]] = field(default_factory=deque)
    wanting: int = 0
    granted: int = 0
    denied: int = 0

    def on_report(self) -> None:
        limit = self.unconfirmed.popleft()
        self.limit = max(limit.bytes, self.used)
        self.said.append((self.limit, self.used))
        if limit.denied:
            self.denied += 1
        if self.wanting and (limit.denied or self.used + self.wanting <= self.limit):
            if not limit.denied:
                self.granted += 1
                self.used += self.wanting
            self.wanting = 0


class World:
    """A ledger, its processes, and the messages in transit between them."""

    def __init__(self, total: int = TOTAL) -> None:
        self.ledger = MemoryLedger(total)
        self.total = total
        self.processes: dict[int, Process] = {}
        self.entering: list[int] = []
        self.now = 0.0
        self.next = 0
        self.tenants: dict[int, str] = {}

    def step(self) -> None:
        limits = self.ledger.decide(self.now)
        for process in list(self.entering):
            if self.ledger.is_admitted(process):
                self.entering.remove(process)
                self.processes[process] = Process(self.ledger.initial_limit(process))
        for limit in limits:
            self.processes[limit.process].unconfirmed.append(limit)
        self.check()

    def check(self) -> None:
        """Checks the invariants for the present state, including all messages in transit."""
        most = sum(self.total if each.limit is None else each.limit for each in self.processes.values())
        everything = [each for each in self.processes.values() if each.limit is None]
        overheads = OVERHEAD * len(self.processes)
        if everything:
            assert len(everything) == 1 and all(
                not each.limit for each in self.processes.values() if each.limit is not None
            )
            assert everything[0].used <= self.total - overheads
        else:
            assert most + overheads <= self.total
        promised = sum(self.ledger.granted(number) for number in self.processes)
        assert promised + overheads <= self.total

    def start(self, tenant: str = "", quota: int = 0, serves_tenant: bool = True) -> int:
        self.next += 1
        self.entering.append(self.next)
        self.tenants[self.next] = tenant
        self.ledger.enter(self.next, OVERHEAD, tenant, quota, serves_tenant=serves_tenant)
        self.step()
        return self.next

    def allocate(self, number: int, size: int) -> None:
        process = self.processes[number]
        room = self.ledger.granted(number) if process.limit is None else process.limit
        if process.used + size <= room:
            process.used += size
        elif not process.wanting and process.limit is not None:
            process.wanting = size
            self.ledger.request(number, process.used + size - process.limit)
        self.step()

    def end(self, number: int) -> None:
        self.processes.pop(number, None)
        if number in self.entering:
            self.entering.remove(number)
        self.ledger.remove_process(number)
        self.step()

    def deliver(self, number: int) -> None:
        """Delivers the oldest message to the process, and its answer."""
        process = self.processes[number]
        if process.unconfirmed:
            process.on_report()
            self.ledger.confirm(number, *process.said.popleft(), self.now)
            self.step()

    def settle(self) -> None:
        """Delivers messages until none is in transit."""
        for _ in range(1000):
            busy = [number for number, each in self.processes.items() if each.unconfirmed]
            for number in busy:
                if number in self.processes:
                    self.deliver(number)
            if not busy:
                wake = self.ledger.next_decision_at(self.now)
                if wake is None or not any(each.wanting for each in self.processes.values()):
                    return
                self.now = wake
                self.step()
        raise AssertionError("it does not settle")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(["", "x", "y"]), st.sampled_from([0, 0, TOTAL // 3])),
        st.tuples(st.just("allocate"), st.integers(0, 5), st.integers(1, TOTAL)),
        st.tuples(st.just("free"), st.integers(0, 5), st.integers(1, TOTAL)),
        st.tuples(st.just("deliver"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([RECLAIM_BACKOFF, ANSWER_TIMEOUT + 1]), st.just(0)),
    ),
    max_size=60,
)


def test_request_crossing_a_reclaim_is_answered() -> None:
    """The request exceeded the memory of the process at the time; when it is served, the process has even less."""
    world = World()
    first, second = world.start("x", TOTAL // 3), world.start("x", TOTAL // 3)
    world.allocate(second, 1)
    world.allocate(first, TOTAL // 3 + 1)
    world.settle()
    assert world.processes[first].denied == 1 and not world.processes[first].wanting
    assert world.processes[second].granted == 1


@settings(deadline=None, max_examples=300)
@given(steps)
def test_grants_never_exceed_the_device(sequence: list[tuple[str, int | str | float, int]]) -> None:
    world = World()
    quotas = {"": 0, "x": TOTAL // 3, "y": 0}
    for action, which, amount in sequence:
        if action == "start":
            world.start(str(which), quotas[str(which)])
            continue
        if action == "wait":
            world.now += float(which)
            world.step()
            continue
        running = sorted(world.processes)
        if not running:
            continue
        number = running[int(which) % len(running)]
        process = world.processes[number]
        if action == "allocate":
            world.allocate(number, amount)
        elif action == "free":
            process.used -= min(process.used, amount)
            world.step()
        elif action == "deliver":
            world.deliver(number)
        else:
            world.end(number)
        of_x = [each for each in world.processes if world.tenants[each] == "x"]
        assert sum(world.ledger.granted(each) for each in of_x) <= quotas["x"]
    world.settle()
    assert not any(each.wanting for each in world.processes.values()), "a request was never answered"


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, TOTAL // 4), min_size=2, max_size=4), st.data())
def test_unused_memory_is_granted_to_processes_that_request_it(used: list[int], data: st.DataObject) -> None:
    world = World()
    numbers = [world.start() for _ in used]
    world.settle()
    for number, size in zip(numbers, used, strict=True):
        if size:
            world.allocate(number, size)
            world.settle()
    for number in numbers:  # memory that the processes do not use is available to all of them
        process = world.processes[number]
        process.used -= data.draw(st.integers(0, process.used))
    unused = TOTAL - len(used) * OVERHEAD - sum(each.used for each in world.processes.values())
    who = data.draw(st.sampled_from(numbers[1:]))
    size = data.draw(st.integers(1, TOTAL))
    process = world.processes[who]
    before = process.used
    process.denied = 0
    world.allocate(who, size)
    world.settle()
    if size <= unused:
        assert process.used == before + size and not process.denied
    else:
        assert process.used == before and process.denied == 1


def test_lone_process_has_all_memory_and_gets_no_message() -> None:
    world = World()
    only = world.start()
    assert world.processes[only].limit is None and not world.processes[only].unconfirmed
    assert world.ledger.granted(only) == TOTAL - OVERHEAD
    world.allocate(only, TOTAL - OVERHEAD)
    assert not world.processes[only].unconfirmed and world.ledger.next_decision_at(0.0) is None


def test_total_memory_is_reported_by_the_first_process() -> None:
    world = World(0)
    world.total = TOTAL
    first, second = world.start(), world.start()
    assert list(world.processes) == [first]
    world.ledger.set_total(TOTAL)
    world.step()
    world.settle()
    assert list(world.processes) == [first, second]
    assert world.processes[second].limit == 0
    world.ledger.set_total(7)
    assert world.ledger.total == TOTAL, "the total does not change"


def test_a_second_process_is_granted_slabs_of_the_memory_that_the_first_returns() -> None:
    world = World()
    first, second = world.start(), world.start()
    world.settle()
    assert world.processes[first].limit == TOTAL - 2 * OVERHEAD
    world.allocate(first, 1000)
    world.allocate(second, 1)
    world.settle()
    slab = TOTAL // 64
    assert world.processes[second].limit == slab and world.processes[second].used == 1
    assert 1000 <= (world.processes[first].limit or 0) < TOTAL - 2 * OVERHEAD
    asked = world.ledger.free
    assert asked > slab, "it returned more than one slab, because more will be requested"
    world.end(second)
    world.settle()
    assert world.processes[first].limit == TOTAL - OVERHEAD, "alone again"


def test_slabs_are_a_quarter_of_a_gigabyte_on_a_large_device() -> None:
    assert MemoryLedger(141 << 30).slab == SLAB == 256 << 20
    assert MemoryLedger(64 << 20).slab == 1 << 20


def test_an_idle_process_holds_only_its_context() -> None:
    world = World()
    first = world.start()
    spare = world.start(serves_tenant=False)
    world.settle()
    assert world.processes[spare].limit == 0
    assert world.processes[first].limit == TOTAL - 2 * OVERHEAD
    world.end(first)
    world.ledger.assign(spare, "", 0)
    world.step()
    world.settle()
    assert world.processes[spare].limit == TOTAL - OVERHEAD


def test_a_quota_counts_for_all_processes_of_a_tenant() -> None:
    world = World()
    one = world.start("x", 1000)
    assert world.processes[one].limit == 1000
    other, stranger = world.start("x", 1000), world.start("y")
    world.settle()
    world.allocate(one, 600)
    world.allocate(other, 300)
    world.settle()
    assert world.processes[other].used == 300, "the memory that the first did not use"
    world.now += RECLAIM_BACKOFF
    world.ledger.request(other, 200)
    denied = world.ledger.decide(world.now)
    while denied and not denied[-1].denied:
        for limit in denied:
            world.processes[limit.process].unconfirmed.append(limit)
        number = denied[-1].process
        world.processes[number].on_report()
        world.ledger.confirm(number, *world.processes[number].said.popleft(), world.now)
        denied = world.ledger.decide(world.now)
    assert denied[-1].process == other and denied[-1].quota == 1000
    world.ledger.confirm(other, *(300, 300), world.now)
    world.allocate(stranger, 2000)
    world.settle()
    assert world.processes[stranger].used == 2000


def test_an_unresponsive_holder_is_not_waited_for() -> None:
    world = World()
    deaf, other = world.start(), world.start()
    world.settle()
    world.allocate(other, TOTAL // 2)
    assert world.processes[deaf].unconfirmed and not world.processes[other].unconfirmed
    wake = world.ledger.next_decision_at(world.now)
    assert wake == pytest.approx(world.now + ANSWER_TIMEOUT)
    world.now = wake
    world.step()
    assert world.processes[other].unconfirmed[0].denied
    world.deliver(other)
    world.allocate(other, TOTAL // 2)
    assert world.processes[other].unconfirmed, "it is answered again, although nothing has changed"


def test_process_without_unused_memory_is_not_queried_again_immediately() -> None:
    world = World()
    full, other = world.start(), world.start()
    world.settle()
    world.allocate(full, TOTAL - 2 * OVERHEAD)
    for _ in range(2):
        world.allocate(other, 1)
        begin = world.now
        world.settle()
        assert world.processes[other].used == 0
    assert world.processes[other].denied == 2
    assert world.now == pytest.approx(begin + RECLAIM_BACKOFF), "the second time it pauses first"


def test_a_process_waits_for_room_to_start() -> None:
    world = World()
    full = world.start()
    world.allocate(full, TOTAL - OVERHEAD)
    late = world.start()
    world.settle()
    assert late in world.entering
    world.processes[full].used -= OVERHEAD
    while late in world.entering:
        wake = world.ledger.next_decision_at(world.now)
        assert wake is not None and wake < 5.0
        world.now = wake
        world.step()
        world.settle()
    assert world.processes[late].limit == 0


def test_messages_of_ended_processes_are_ignored() -> None:
    ledger = MemoryLedger(TOTAL)
    ledger.request(7, 5)
    ledger.confirm(7, 5, 5, 0.0)
    ledger.remove_process(7)
    ledger.assign(7, "x", 0)
    ledger.on_report(7, 3)
    assert ledger.decide(0.0) == [] and ledger.granted(7) == ledger.held(7) == 0
